"""The sorted vocabulary against hash tables of every prefix: ranges, allowed ids, masks, masses."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from charwise import SortedVocabulary, Vocabulary
from charwise.tokens.index import END_OF_TOKEN
from conftest import WIDTHS, Data
from models import examples

Tokens = Sequence[bytes | None]


# --- the naive side ----------------------------------------------------------------------------


class Prefixes:
    """Ids of the tokens that start with a prefix, and of its proper prefixes, in rising order."""

    def __init__(self, tokens: Tokens) -> None:
        self.exact: dict[bytes, list[int]] = defaultdict(list)
        self.starting: dict[bytes, list[int]] = defaultdict(list)
        for id, token in enumerate(tokens):
            if token is not None:
                self.exact[token].append(id)
                for length in range(len(token) + 1):
                    self.starting[token[:length]].append(id)

    def __call__(self, forced: bytes) -> tuple[list[int], list[int]]:
        shorter = [id for k in range(len(forced)) for id in self.exact.get(forced[:k], ())]
        return self.starting.get(forced, []), shorter


def by_next_byte(tokens: Tokens, ids: Sequence[int], depth: int) -> list[list[int]]:
    """Ids grouped by the byte at `depth`; the last group's tokens end there."""
    groups: list[list[int]] = [[] for _ in range(257)]
    for id in ids:
        token = tokens[id] or b""
        groups[token[depth] if len(token) > depth else END_OF_TOKEN].append(id)
    return groups


def close(value: float, expected: float) -> bool:
    """Equal to twelve digits, however small; exactly zero where zero is expected."""
    return abs(value - expected) <= 1e-12 * expected


def check(index: SortedVocabulary, forced: bytes, starting: list[int], shorter: list[int]) -> None:
    """Range, prefixes, allowed ids and twins of one prefix."""
    tokens = index.vocabulary.tokens
    lo, hi = index.range(forced)
    assert 0 <= lo <= hi <= len(index.sorted)
    assert sorted(index.ids[lo:hi].tolist()) == starting, forced
    prefixes = index.prefixes(forced)
    assert sorted(prefixes) == sorted(shorter), forced
    lengths = [index.length(id) for id in prefixes]
    assert lengths == sorted(lengths, reverse=True)
    assert sorted(index.allowed(forced).tolist()) == sorted(starting + shorter), forced
    lo, hi = index.same_bytes(forced)
    assert index.ids[lo:hi].tolist() == [id for id in starting if tokens[id] == forced]


def check_masks(index: SortedVocabulary, forced: bytes, allowed: list[int]) -> None:
    """Masks as floats, and as bits."""
    expected = torch.full((index.vocabulary.width,), -torch.inf)
    expected[allowed] = 0.0
    assert torch.equal(index.mask(forced), expected)
    words = index.bitmask(forced)
    assert words.dtype == np.int32
    assert words.shape == (-(-index.vocabulary.width // 32),)
    bits = np.unpackbits(words.astype("<i4").view(np.uint8), bitorder="little")
    assert np.flatnonzero(bits).tolist() == sorted(allowed)


# --- real vocabularies -------------------------------------------------------------------------


@pytest.mark.parametrize("name", WIDTHS)
def test_order_and_masks(name: str, data: Data) -> None:
    index = data.index(name)
    assert index.sorted == sorted(index.sorted)
    assert [index.vocabulary.tokens[id] for id in index.ids] == index.sorted
    assert len(index.ids) == len(index.vocabulary)
    naive = Prefixes(index.vocabulary.tokens)
    for forced in random.Random(0).sample(index.sorted, 500):
        check(index, forced, *naive(forced))
    for forced in (b" ", b"a", b"the", b" some", b"\n\n", b"\xff", b"", b"\xe2\x80"):
        check_masks(index, forced, [id for ids in naive(forced) for id in ids])


# --- small random vocabularies -----------------------------------------------------------------

# Two letters and the two extreme bytes: many shared prefixes, twins and edges.
strings = st.lists(st.sampled_from([0x00, 0x61, 0x62, 0xFF]), min_size=1, max_size=4).map(bytes)
vocabularies = st.lists(st.one_of(strings, st.none()), min_size=1, max_size=30).filter(any)
texts = st.lists(st.sampled_from([0x00, 0x61, 0x62, 0xFF]), max_size=7).map(bytes)
#: Positive, over three hundred orders of magnitude.
positive = st.tuples(st.integers(1, 2**53), st.integers(-1000, 0)).map(lambda m: math.ldexp(*m))


@given(vocabularies, texts)
@example([b"a"] * 33, b"a")
@examples(400)
def test_small_vocabularies(tokens: list[bytes | None], forced: bytes) -> None:
    vocabulary, naive = Vocabulary.from_bytes(tokens), Prefixes(tokens)
    index = SortedVocabulary.of(vocabulary)
    assert SortedVocabulary.of(vocabulary) is index
    for token in filter(None, tokens):
        for text in (token, token + b"a"):
            check(index, text, *naive(text))
    starting, shorter = naive(forced)
    check(index, forced, starting, shorter)
    check_masks(index, forced, starting + shorter)
    # Spellable: some split into tokens exists, the last of which may be longer than what is left.
    ends = {0}
    for at in range(len(forced)):
        if at in ends:
            ends |= {at + len(tokens[id] or b"") for id in naive(forced[at:])[1]}
    assert index.spellable(forced) == any(naive(forced[at:])[0] for at in ends)


@given(vocabularies, texts, st.data())
@examples(400)
def test_small_masses(tokens: list[bytes | None], text: bytes, draw: st.DataObject) -> None:
    index, naive = SortedVocabulary(Vocabulary.from_bytes(tokens)), Prefixes(tokens)
    weights = draw.draw(st.lists(positive, min_size=len(tokens), max_size=len(tokens)))
    in_order = index.in_order(np.array(weights))
    for depth in range(len(text) + 1):
        prefix = text[:depth]
        masses = index.next_byte_masses(in_order, *index.range(prefix), depth)
        assert masses.shape == (257,)
        groups = by_next_byte(tokens, naive(prefix)[0], depth)
        for value, ids in zip(masses, groups, strict=True):
            assert close(value, float(sum((Fraction(weights[id]) for id in ids), Fraction(0))))


@given(vocabularies, texts, st.data())
@examples(300)
def test_small_narrowing(tokens: list[bytes | None], text: bytes, draw: st.DataObject) -> None:
    """From the range of a prefix to that of the prefix and one more byte."""
    index = SortedVocabulary(Vocabulary.from_bytes(tokens))
    following = [0x61, 0x00, 0xFF, *draw.draw(st.lists(st.integers(0, 255), max_size=4))]
    lo, hi = index.range(text)
    for byte in following:
        value = index.narrow(lo, hi, len(text), byte)
        assert value[0] <= value[1]
        longer = index.range(text + bytes([byte]))
        assert index.ids[slice(*value)].tolist() == index.ids[slice(*longer)].tolist()
