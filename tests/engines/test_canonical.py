"""Canonical token strings only: against the enumeration of all, each encoded again."""

from __future__ import annotations

import itertools
import math
import pickle
import random
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import charwise
from charwise import CharLM, Vocabulary
from charwise.coverings import reference
from charwise.engines.ngram import NgramLM
from charwise.engines.wrapped import CanonicalLM, with_estimand
from charwise.errors import SettingError, VocabularyError, ZeroProbabilityError
from charwise.token_lm import held_bytes
from models import CLOSE, examples, log_of, random_lm

#: What splits texts: nothing; GPT-2's way; with line ends drawing in spaces, digits in twos; with
#: each digit alone; with spaces that end a word.
SPLITS = (
    None,
    r"'s|'t| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"\p{N}| ?\p{L}+|\s+",
)
ALPHABETS = ("a ", "ab", " \n", "a \n", "'s", "'sa", "1a", "1", " 1", "a!", "!\n ")
_WRITTEN = {" ": "Ġ", "\n": "Ċ"}


@cache
def tokenizer(seed: int) -> Any:
    """A random byte-level BPE tokenizer over two or three characters, as transformers holds it."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    rng = random.Random(seed)
    alphabet = [_WRITTEN.get(c, c) for c in rng.choice(ALPHABETS)]
    tokens, merges = list(alphabet), []
    for _ in range(rng.randrange(0, 7)):
        pair = rng.choice(tokens), rng.choice(tokens)
        if len("".join(pair)) <= 4 and pair not in merges:
            merges.append(pair)
            tokens += ["".join(pair)] if "".join(pair) not in tokens else []
    if rng.random() < 0.3:
        rng.shuffle(merges)
    ids = {token: id for id, token in enumerate([*tokens, "<end>"])}
    bpe = models.BPE(vocab=ids, merges=merges, ignore_merges=rng.random() < 0.3)
    one = tokenizers.Tokenizer(bpe)
    one.add_special_tokens(["<end>"])
    split = rng.choice(SPLITS)
    parts = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    if split is not None:
        parts.insert(0, pre_tokenizers.Split(tokenizers.Regex(split), "isolated"))
    one.pre_tokenizer = pre_tokenizers.Sequence(parts)
    one.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=one, eos_token="<end>")


class Enumerated:
    """The oracle: p_Δ of a model over canonical token strings, by encoding all texts again."""

    def __init__(self, seed: int, estimand: str, further: int = 3) -> None:
        self.vocabulary = Vocabulary.from_transformers(tokenizer(seed))
        self.lm: NgramLM = random_lm(self.vocabulary, 2, seed, zeros=0.1)
        self.estimand = estimand
        letters = sorted({bytes([b]) for token in self.vocabulary.tokens if token for b in token})
        self.further = [
            b"".join(some)
            for size in range(further + 1)
            for some in itertools.product(letters, repeat=size)
        ]
        self.encode = cache(self.vocabulary.encode)
        self.begins = cache(self._begins)
        self.p = cache(self._p)

    def _begins(self, tokens: tuple[int, ...]) -> bool:
        """Whether the encoding of some text begins with these tokens."""
        text = self.vocabulary.decode(tokens)
        size = len(tokens)
        return any(tuple(self.encode(text + more)[:size]) == tokens for more in self.further)

    def _p(self, tokens: tuple[int, ...]) -> np.ndarray[Any, Any]:
        row = self.lm.row((*self.vocabulary.bos_ids, *tokens)).copy()
        if not self.begins(tokens):
            return np.zeros_like(row)
        for id, token in enumerate(self.vocabulary.tokens):
            if token is not None and row[id] > 0 and not self.begins((*tokens, id)):
                row[id] = 0.0
        if tuple(self.encode(self.vocabulary.decode(tokens))) != tokens:
            row[list(self.vocabulary.end_ids)] = 0.0
        total = row.sum()
        return row / total if self.estimand == "canonical" and total > 0 else row


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, bytes]:
    seed = draw(st.integers(0, 2**20))
    vocabulary = Vocabulary.from_transformers(tokenizer(seed))
    rng = random.Random(seed)
    some = [token for token in vocabulary.tokens if token is not None]
    return seed, b"".join(rng.choices(some, k=4))[: draw(st.integers(0, 6))]


@pytest.mark.parametrize("estimand", ["canonical", "canonical-mass"])
@given(cases())
@examples(150)
def test_sums_are_those_of_the_enumeration(estimand: str, case: tuple[int, bytes]) -> None:
    seed, text = case
    oracle = Enumerated(seed, estimand)
    lm = CharLM(CanonicalLM(oracle.lm, estimand), preset="exact")
    expected = reference.by_definition(text, oracle.p, oracle.vocabulary)
    if expected == 0:
        with pytest.raises(ZeroProbabilityError):
            lm.score(text)
        return
    assert lm.prefix_logprob(text) == pytest.approx(log_of(expected), abs=1e-9)
    ended = reference.string_probability(text, oracle.p, oracle.vocabulary)
    assert lm.logprob(text) == pytest.approx(log_of(ended), abs=1e-9)
    bounds = lm.covering(text, tolerance=0).prefix_logprob()
    assert bounds.lower == pytest.approx(log_of(expected), abs=1e-9)
    masses = [
        reference.by_definition(text + bytes([byte]), oracle.p, oracle.vocabulary)
        for byte in range(256)
    ]
    if sum(masses) + ended > 0:
        found = lm.state(text).next().probs
        assert found == pytest.approx(np.array([*masses, ended]) / (sum(masses) + ended), abs=1e-9)
    state = lm.state("")
    for byte in text:
        state = state + bytes([byte])
    assert state.logprob == pytest.approx(log_of(expected), abs=1e-9)


@given(cases())
@examples(150)
def test_the_mass_is_a_lower_bound_of_the_full_sum(case: tuple[int, bytes]) -> None:
    seed, text = case
    lm = Enumerated(seed, "canonical-mass").lm
    full = reference.by_definition(text, reference.conditional(lm), lm.vocabulary)
    try:
        found = CharLM(CanonicalLM(lm, "canonical-mass"), preset="exact").prefix_logprob(text)
    except ZeroProbabilityError:
        return
    assert math.exp(found) <= full * (1 + CLOSE["rel"])


def test_an_end_that_must_go_on_does_not_end() -> None:
    """`x` and two spaces: the second belongs to what follows, which is no space."""
    lm = charwise.load(estimand="canonical", preset="exact")
    vocabulary = lm.vocabulary
    x, space = vocabulary.encode("x")[0], vocabulary.encode(" ")[0]
    tree = lm.engine.tree(vocabulary.bos_ids)
    *_, node = tree.extend([(0, x), (1, space), (2, space)])
    row = tree.logprobs([node])[0]
    assert row[vocabulary.encode("\t")[0]] == -math.inf
    assert row[list(vocabulary.end_ids)].max() == -math.inf
    assert len(vocabulary.encode("x  ")) == 2


@pytest.mark.parametrize("estimand", ["canonical", "canonical-mass"])
def test_the_embedded_model_works_with_it_everywhere(estimand: Any) -> None:
    lm = charwise.load(estimand=estimand)
    assert lm.info()["estimand"] == estimand
    for text in ("import numpy as np\n", "x = 1234  # it's", "déjà 你好 🙂"):
        score = lm.score(text, end=True, entropy="byte")
        assert np.isfinite(score.logprobs).all()
        [ids] = [member.token_ids for member in lm.encodings(text).top(2)]
        assert list(ids) == lm.vocabulary.encode(text)
        assert lm.prefix_logprob(text, preset="exact") <= 0
    state = lm.state("import nu") + "mp"
    assert state.next().top(1)[0][0] == "y"
    assert (state - 2).raw == b"import nu"
    assert lm.complete("import nump", max_new_bytes=1)[0].text == "y"
    assert lm.choose("for i in ra", ["nge(", "ndom."]).top(1)[0][0] == "nge("
    assert lm.next_chars("import nump", coverage=0.5).top(1)[0][0] == "y"


@pytest.mark.parametrize("estimand", ["canonical", "canonical-mass"])
def test_what_is_drawn_is_canonical(estimand: Any) -> None:
    lm = charwise.load(estimand=estimand)
    prompt = "def get_no"
    for one in lm.complete(prompt, n=4, temperature=1.0, seed=7, max_new_bytes=40):
        raw = lm.vocabulary.decode(one.token_ids)
        begins = lm.vocabulary.encode(raw)
        # The last tokens may be others when more comes.
        agreed = sum(a == b for a, b in zip(begins, one.token_ids, strict=False))
        assert raw.startswith(prompt.encode())
        assert agreed >= len(one.token_ids) - 3


def test_weights_are_held_once_and_travel_as_one_engine() -> None:
    lm, plain = charwise.load(estimand="canonical"), charwise.load()
    assert isinstance(lm.engine, CanonicalLM)
    assert lm.engine.engine is plain.engine
    copy = pickle.loads(pickle.dumps(lm))
    assert copy.engine.engine is plain.engine
    assert copy.info()["estimand"] == "canonical"
    assert with_estimand(plain.engine, "all") is plain.engine


def test_memory_is_that_of_the_tree_around_which_it_is() -> None:
    lm = charwise.load(estimand="canonical")
    tree = lm.engine.tree(lm.vocabulary.bos_ids)
    alike = charwise.load().engine.tree(lm.vocabulary.bos_ids)
    width = lm.vocabulary.width
    assert held_bytes(tree, width) == held_bytes(alike, width)
    before, nodes = held_bytes(tree, width), tree.extend([(0, 5), (0, 6)])
    grown = held_bytes(tree, width)
    tree.forget(nodes)
    assert before <= held_bytes(tree, width) < grown


def test_what_is_not_canonical_has_no_probability() -> None:
    lm = charwise.load(estimand="canonical")
    with pytest.raises(ZeroProbabilityError):
        lm.score(b"a\xff")  # no text: no tokenizer is given it
    assert np.isfinite(lm.score("é".encode()[:1]).logprobs).all()  # begins one


def test_refusals_say_what_to_do() -> None:
    with pytest.raises(SettingError, match="canonical-mass"):
        charwise.load(estimand="canonica")  # type: ignore[arg-type]
    vocabulary = Vocabulary.from_bytes([b"a", None], end_ids=[1], bos_ids=[1])
    with pytest.raises(VocabularyError, match="merges"):
        CanonicalLM(NgramLM(vocabulary, 1, {(): [0.5, 0.5]}), "canonical")
