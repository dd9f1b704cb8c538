"""Where a prompt is cut, what remains forced, and which tokens may come next."""

import itertools
import json
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charwise import SortedVocabulary, Vocabulary
from charwise.errors import VocabularyError
from charwise.healing import allowed_next, cut, prompt_ids, remaining
from conftest import Data
from models import examples

Tokens = Sequence[bytes | None]

# --- the definitions ---------------------------------------------------------------------------


def naive_cut(ids: Sequence[int], tokens: Tokens, rule: Any = "auto") -> tuple[list[int], bytes]:
    """The rules, word for word as they are defined, over the whole vocabulary."""
    first = max((at + 1 for at, id in enumerate(ids) if tokens[id] is None), default=0)
    tail = [tokens[id] or b"" for id in ids[first:]]
    text, boundaries = b"".join(tail), [0, *itertools.accumulate(map(len, tail))]
    if rule == "word":  # with one space before it
        start = re.search(rb"(\r\n|\s)?\S*\Z", text).start()  # type: ignore[union-attr]
    elif rule == "auto":
        starts = range(len(text))
        longer = (
            at
            for at in starts
            if any(t and t.startswith(text[at:]) and len(t) > len(text) - at for t in tokens)
        )
        start = next(longer, len(text))
    else:
        start = boundaries[max(0, len(tail) - (0 if rule == "off" else rule))]
    at = max(boundary for boundary in boundaries if boundary <= start)
    kept = first + boundaries.index(at)
    if not kept and ids:  # the first token of all is kept
        kept, at = 1, boundaries[1]
    return list(ids[:kept]), text[at:]


def naive_allowed(tokens: Tokens, rest: bytes) -> set[int]:
    """The ids that may come next, by trying every token; nothing of charwise is used."""

    def spells(rest: bytes) -> bool:
        ends = {0}
        for at in range(len(rest)):
            if at in ends:
                for token in tokens:
                    if token and token.startswith(rest[at:]):
                        return True
                    if token and rest.startswith(token, at):
                        ends.add(at + len(token))
        return not rest

    return {
        id
        for id, token in enumerate(tokens)
        if token
        and (token.startswith(rest) or (rest.startswith(token) and spells(rest[len(token) :])))
    }


# --- cut ---------------------------------------------------------------------------------------

# Drawn by hand: 12 tokens, of which the first two are special; ids from 12 on have no bytes.
TOKENS: list[bytes | None] = [
    *(None, None, b" ", b"s", b"w", b"weep", b"->", b" N", b" No", b"d", b" Node", b"\n"),
]
START, SPACE, S, W, WEEP, ARROW, N, NO, D = 1, 2, 3, 4, 5, 6, 7, 8, 9
VOCABULARY = Vocabulary.from_bytes(TOKENS, end_ids=[0], bos_ids=[START], width=16)
INDEX = SortedVocabulary(VOCABULARY)


@pytest.mark.parametrize(
    ("prompt", "rule", "kept", "forced"),
    [
        ([N], "auto", [N], b""),  # one token, which a model needs to start from
        ([ARROW, NO, D], "auto", [ARROW], b" Nod"),
        ([ARROW, NO, START, D], "auto", [ARROW, NO, START, D], b""),
        ([ARROW, 14, W], "auto", [ARROW, 14], b"w"),
        ([S, START, ARROW, NO, D], 9, [S, START], b"-> Nod"),  # never through the special one
        ("-> Nod", "auto", [START, ARROW], b" Nod"),
        (bytearray(b"-> Nod"), "auto", [START, ARROW], b" Nod"),
        ([START, "->", memoryview(b" Nod")], "auto", [START, ARROW], b" Nod"),
        (["-> Nod"], "auto", [ARROW], b" Nod"),  # a list is taken as it is
        ("", "auto", [START], b""),
        ("s weep", "word", [START, S], b" weep"),
        ("s    w", "word", [START, S, SPACE, SPACE, SPACE], b" w"),
        ([W] * 30_000 + [SPACE], "word", [W] * 30_000, b" "),
    ],
)
def test_a_prompt_is_cut_by_its_rule(
    prompt: Any, rule: Any, kept: list[int], forced: bytes
) -> None:
    assert cut(prompt, INDEX, rule) == (kept, forced)


def test_a_text_gets_start_token_and_implied_space() -> None:
    index = SortedVocabulary(Vocabulary(TOKENS, bos_ids=[START], implied_prefix=b" "))
    assert cut("No", index) == ([START], b" No")
    assert cut([START, "weep"], index).kept == [START, WEEP]
    assert prompt_ids("No", index.vocabulary) == [START, NO]


def test_an_empty_prompt_is_refused_without_a_start_token() -> None:
    index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab"]))
    assert cut("a", index) == ([0], b"")
    for empty, which in (("", index), ([], INDEX)):
        with pytest.raises(VocabularyError, match="the prompt is empty"):
            cut(empty, which)


@pytest.mark.parametrize(
    ("tokens", "text", "kept", "forced"),
    [
        ([b"a", b"abc", None], "aab", b"a", b"ab"),
        ([b"a", b"ab", b"bcd", None], "abc", b"", b"abc"),  # after "ab" nothing would follow
    ],
)
def test_a_text_that_begins_a_token_needs_no_token_of_its_own(
    tokens: list[bytes | None], text: str, kept: bytes, forced: bytes
) -> None:
    vocabulary = Vocabulary.from_bytes(tokens, bos_ids=[len(tokens) - 1])
    index = SortedVocabulary(vocabulary)
    ids, rest = cut(text, index)
    assert (vocabulary.decode(ids), rest) == (kept, forced)
    ids, rest = cut(text, index, "off")
    assert vocabulary.decode(ids) + rest == text.encode()
    assert index.spellable(rest)
    with pytest.raises(VocabularyError):
        cut(text + "z", index)


# --- any vocabulary ----------------------------------------------------------------------------

LETTERS = [0x61, 0x20, 0xC3, 0xFF]
strings = st.lists(st.sampled_from(LETTERS), min_size=1, max_size=4).map(bytes)
complete = st.lists(st.one_of(strings, st.none()), max_size=14).map(
    lambda more: [*more, *(bytes([byte]) for byte in range(256))]
)
partial = st.lists(st.one_of(strings, st.none()), min_size=1, max_size=14).filter(any)
texts = st.lists(st.sampled_from(LETTERS), max_size=8).map(bytes)


def indexed(tokens: list[bytes | None]) -> SortedVocabulary:
    """One more id ends the text; one more is special; the output layer is wider still."""
    size = len(tokens)
    return SortedVocabulary(
        Vocabulary.from_bytes(
            [*tokens, None, None], end_ids=[size], special={size + 1: "<s>"}, width=size + 5
        )
    )


@given(st.one_of(complete, partial), texts, st.randoms(use_true_random=False))
@examples(500)
def test_walks_reproduce_the_forced_text(
    tokens: list[bytes | None], forced: bytes, rng: random.Random
) -> None:
    index = indexed(tokens)
    vocabulary = index.vocabulary
    if forced and not naive_allowed(vocabulary.tokens, forced):
        assert not index.spellable(forced)
        with pytest.raises(VocabularyError):
            allowed_next(forced, index)
        return
    generated: list[int] = []
    rest: bytes | None = forced
    for _ in range(len(forced) + 2):
        assert rest is not None
        allowed = allowed_next(rest, index)
        may = naive_allowed(vocabulary.tokens, rest)
        assert sorted(allowed.tolist()) == sorted(may if rest else may | {*vocabulary.end_ids})
        assert len(allowed) > 0  # no dead end
        generated.append(int(rng.choice(allowed.tolist())))
        replayed = remaining(forced, generated, vocabulary)
        assert replayed == remaining(rest, generated[-1:], vocabulary)
        rest = replayed
    assert rest == b""
    assert vocabulary.decode(generated).startswith(forced)


@given(st.one_of(complete, partial), texts, st.lists(st.integers(-1, 25), max_size=6))
@examples(300)
def test_remaining_is_a_pure_function(
    tokens: list[bytes | None], forced: bytes, generated: list[int]
) -> None:
    """The same whatever it is replayed from, and by its definition on the joined bytes."""
    vocabulary = indexed(tokens).vocabulary
    whole = remaining(forced, generated, vocabulary)
    for k in range(len(generated) + 1):
        first = remaining(forced, generated[:k], vocabulary)
        again = None if first is None else remaining(first, generated[k:], vocabulary)
        assert again == whole
    text, valid = b"", True
    for id in generated:
        if len(text) < len(forced):
            token = vocabulary.tokens[id] if 0 <= id < vocabulary.width else None
            valid = valid and token is not None
            text += token or b""
    agrees = text.startswith(forced) or forced.startswith(text)
    assert whole == (forced[len(text) :] if valid and agrees else None)


@given(partial, st.lists(st.integers(0, 40), max_size=8), st.integers(0, 9))
@examples(500)
def test_a_cut_is_its_definition(tokens: list[bytes | None], numbers: list[int], back: int) -> None:
    index = indexed(tokens)
    vocabulary = index.vocabulary
    ids = [number % vocabulary.width for number in numbers] or [vocabulary.width - 1]
    for rule in ("auto", "word", "off", back):
        kept, forced = cut(ids, index, rule)  # type: ignore[arg-type]
        assert (kept, forced) == naive_cut(ids, vocabulary.tokens, rule)
        assert vocabulary.decode(kept) + forced == vocabulary.decode(ids)
        if forced:
            assert len(allowed_next(forced, index)) > 0  # the tokens given back, at least


@pytest.mark.parametrize("name", ["gpt2", "cl100k", "llama3", "qwen2", "llama2", "tinystories-3m"])
def test_real_cuts_of_real_code_are_their_definition(name: str, data: Data) -> None:
    """At the random cuts of HumanEval's spans."""
    index = data.index(name)
    vocabulary = index.vocabulary
    path = data.folder / "prompts" / "humaneval_random_span_light.jsonl"
    prompts = [json.loads(line)["prompt"] for line in path.read_text("utf-8").splitlines()]
    continued = {token[:k] for token in index.sorted for k in range(1, len(token))}
    healed = 0
    for prompt in prompts:
        text = prompt.encode()
        ids = vocabulary.encode(text)
        kept, forced = cut(ids, index)
        assert kept == ids[: len(kept)]
        assert vocabulary.decode(kept) + forced == text
        # The cut is the last token boundary at or before the earliest start of a longer token.
        start = next((j for j in range(len(text)) if text[j:] in continued), len(text))
        assert len(text) - len(forced) <= start
        assert not forced or len(vocabulary.decode(ids[: len(kept) + 1])) > start
        healed += bool(forced)
    assert healed > len(prompts) / 2
