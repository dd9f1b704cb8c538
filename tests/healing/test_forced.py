"""Where a prompt is cut, what remains forced, and which tokens may come next."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters import allowed as naive_allowed
from charwise import SortedVocabulary, Vocabulary
from charwise.errors import VocabularyError
from charwise.healing import allowed_next, cut, prompt_ids, remaining
from conftest import Data
from models import examples

Tokens = Sequence[bytes | None]

# Drawn by hand: 26 tokens, of which the first two are special.
END, START, SPACE, S, W, WEEP, SALAD, E, P, ARROW, N_, NO, D = range(13)
NODE, NOT, OTING, NEWLINE, INDENT, BREAK, RETURN, C3, A9, E_ACUTE, NEE, N, DEEP = range(13, 26)
TOKENS: list[bytes | None] = [
    *(None, None, b" ", b"s", b"w", b"weep", b"salad", b"e", b"p", b"->", b" N", b" No", b"d"),
    *(b" Node", b" Not", b"oting", b"\n", b"    ", b"\n    ", b"    return", b"\xc3", b"\xa9"),
    *("é".encode(), "née".encode(), b"n", b"        return"),
]
VOCABULARY = Vocabulary.from_bytes(
    TOKENS, end_ids=[END], bos_ids=[START], special={END: "</s>", START: "<s>"}, width=32
)
INDEX = SortedVocabulary(VOCABULARY)


# --- the naive definitions ---------------------------------------------------------------------


def naive_cut(ids: Sequence[int], tokens: Tokens) -> tuple[list[int], bytes]:
    """The automatic rule, word for word as it is defined, over the whole vocabulary."""
    first = max((at + 1 for at, id in enumerate(ids) if tokens[id] is None), default=0)
    tail = [tokens[id] or b"" for id in ids[first:]]
    text = b"".join(tail)
    overruns = [
        j
        for j in range(len(text))
        if any(t and t.startswith(text[j:]) and len(t) > len(text) - j for t in tokens)
    ]
    if not overruns:
        return list(ids), b""
    boundaries = [0, *itertools.accumulate(map(len, tail))]
    at = max(boundary for boundary in boundaries if boundary <= min(overruns))
    if not first + boundaries.index(at):  # the first token of all is kept
        at = boundaries[1]
    return list(ids[: first + boundaries.index(at)]), text[at:]


# --- cut ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "kept_ids", "forced"),
    [
        pytest.param([N_], 1, b"", id="one token, which a model needs to start from"),
        pytest.param([ARROW, NO, D], 1, b" Nod", id="inside a word"),
        pytest.param([ARROW, BREAK], 1, b"\n    ", id="newline and indentation in one token"),
        pytest.param([ARROW, N, C3], 1, b"n\xc3", id="half a character"),
        pytest.param([ARROW, NO, START, D], 4, b"", id="nothing across a special token"),
        pytest.param([ARROW, 30, W], 2, b"w", id="after an id without bytes"),
        pytest.param([S, W, E, E], 1, b"wee", id="several tokens given back"),
        pytest.param([ARROW, OTING], 2, b"", id="a finished word"),
    ],
)
def test_automatic_cut(ids: list[int], kept_ids: int, forced: bytes) -> None:
    assert cut(ids, INDEX) == (ids[:kept_ids], forced)
    assert naive_cut(ids, VOCABULARY.tokens) == (ids[:kept_ids], forced)


def test_cut_of_text_and_bytes() -> None:
    assert cut("-> Nod", INDEX) == ([START, ARROW], b" Nod")
    assert cut(b"->n\xc3", INDEX) == ([START, ARROW], b"n\xc3")
    for buffer in (bytearray(b"-> Nod"), memoryview(b"-> Nod")):
        assert cut(buffer, INDEX) == ([START, ARROW], b" Nod")
    assert cut([START, "->", bytearray(b" Nod")], INDEX) == ([START, ARROW], b" Nod")
    assert cut(["-> Nod"], INDEX) == ([ARROW], b" Nod")  # a list is taken as it is
    assert cut("", INDEX) == ([START], b"")
    result = cut("sw", INDEX)
    assert (result.kept, result.forced) == ([START, S], b"w")
    with pytest.raises(VocabularyError, match="LATIN SMALL LETTER X"):
        cut("->x", INDEX)


def test_a_text_gets_the_leading_space_that_the_tokenizer_implies() -> None:
    vocabulary = Vocabulary(TOKENS, end_ids=[END], bos_ids=[START], implied_prefix=b" ")
    index = SortedVocabulary(vocabulary)
    assert cut("No", index) == ([START], b" No")
    assert cut([START, "weep"], index).kept == [START, WEEP]
    assert prompt_ids("No", vocabulary) == [START, NO]


def test_an_empty_prompt_without_a_start_token() -> None:
    index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab"]))
    assert cut("a", index) == ([0], b"")
    for empty in ("", b"", []):
        with pytest.raises(VocabularyError, match="no start token"):
            cut(empty, index)
    started = SortedVocabulary(Vocabulary.from_bytes([b"a", None], bos_ids=[1]))
    assert cut("", started) == ([1], b"")
    with pytest.raises(VocabularyError, match="the prompt is empty: there"):
        cut([], started)  # ids are taken as they are


@pytest.mark.parametrize(
    ("rule", "kept_ids", "forced"),
    [
        ("off", 5, b""),
        (0, 5, b""),
        (1, 4, b"d"),
        (2, 3, b" Nod"),
        (3, 2, b"-> Nod"),
        (9, 2, b"-> Nod"),  # never through the special token
        ("word", 3, b" Nod"),
        ("auto", 3, b" Nod"),
    ],
)
def test_rules(rule: Any, kept_ids: int, forced: bytes) -> None:
    ids = [S, START, ARROW, NO, D]
    assert cut(ids, INDEX, rule) == (ids[:kept_ids], forced)


@pytest.mark.parametrize(
    ("text", "forced"),
    [
        ("s weep", b" weep"),
        ("s ", b" "),
        ("s\nw", b"\nw"),
        ("weepsw", b"weepsw"),
        ("s    w", b"    w"),  # the token boundary at or before the word's space
        ("", b""),
    ],
)
def test_last_word(text: str, forced: bytes) -> None:
    assert cut(text, INDEX, "word").forced == forced


def test_last_word_of_a_very_long_word() -> None:
    ids = [W] * 30_000 + [SPACE]
    assert cut(ids, INDEX, "word") == (ids[:-1], b" ")


@pytest.mark.parametrize(
    ("tokens", "text", "kept_ids", "forced"),
    [
        ([b"a", b"abc", None], "aab", b"a", b"ab"),
        ([b"a", b"ab", b"bcd", None], "abc", b"", b"abc"),  # after "ab" nothing would follow
        ([b"abc", None], "ab", b"", b"ab"),
    ],
)
@pytest.mark.parametrize("rule", ["auto", "off"])
def test_a_text_that_begins_a_token_needs_no_token_of_its_own(
    tokens: list[bytes | None], text: str, kept_ids: bytes, forced: bytes, rule: Any
) -> None:
    vocabulary = Vocabulary.from_bytes(tokens, bos_ids=[len(tokens) - 1])
    index = SortedVocabulary(vocabulary)
    ids, rest = cut(text, index, rule)
    assert vocabulary.decode(ids) + rest == text.encode()
    assert index.spellable(rest)
    if rule == "auto":
        assert (vocabulary.decode(ids), rest) == (kept_ids, forced)
    with pytest.raises(VocabularyError):
        cut(text + "z", index, rule)


# --- any vocabulary ----------------------------------------------------------------------------

LETTERS = [0x61, 0x62, 0xC3, 0xFF]
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
def test_cut_loses_nothing(tokens: list[bytes | None], numbers: list[int], back: int) -> None:
    index = indexed(tokens)
    vocabulary = index.vocabulary
    ids = [number % vocabulary.width for number in numbers] or [vocabulary.width - 1]
    for rule in ("auto", "word", "off", back):
        kept_ids, forced = cut(ids, index, rule)  # type: ignore[arg-type]
        assert vocabulary.decode(kept_ids) + forced == vocabulary.decode(ids)
        assert kept_ids == ids[: len(kept_ids)]
        assert kept_ids
        assert all(vocabulary.tokens[id] is not None for id in ids[len(kept_ids) :])
        if forced:
            assert len(allowed_next(forced, index)) > 0  # the tokens given back, at least
    assert cut(ids, index) == naive_cut(ids, vocabulary.tokens)


# --- real vocabularies -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "cl100k", "llama3", "qwen2", "llama2", "tinystories-3m"])
def test_real_cuts_of_real_code(name: str, data: Data) -> None:
    """The automatic rule against its definition, at the random cuts of HumanEval's spans."""
    index = data.index(name)
    vocabulary = index.vocabulary
    path = data.folder / "prompts" / "humaneval_random_span_light.jsonl"
    prompts = [json.loads(line)["prompt"] for line in path.read_text("utf-8").splitlines()]
    continued = {token[:k] for token in index.sorted for k in range(1, len(token))}
    healed = 0
    for prompt in prompts:
        text = prompt.encode()
        ids = vocabulary.encode(text)
        kept_ids, forced = cut(ids, index)
        assert kept_ids == ids[: len(kept_ids)]
        assert vocabulary.decode(kept_ids) + forced == text
        start = next((j for j in range(len(text)) if text[j:] in continued), len(text))
        # The cut is the last token boundary at or before `start`.
        assert len(text) - len(forced) <= start
        assert not forced or len(vocabulary.decode(ids[: len(kept_ids) + 1])) > start
        healed += bool(forced)
        for rule in ("word", 1, 3):
            kept_ids, forced = cut(ids, index, rule)  # type: ignore[arg-type]
            assert vocabulary.decode(kept_ids) + forced == text
    assert healed > len(prompts) / 2
