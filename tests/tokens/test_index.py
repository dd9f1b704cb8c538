"""The sorted vocabulary against hash tables of every prefix, and a known text against it."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from charwise import SortedVocabulary, Vocabulary
from charwise.tokens import known_text
from charwise.tokens.index import END_OF_TOKEN
from charwise.tokens.known_text import KnownText
from conftest import WIDTHS, Data
from models import Case, cases, examples

approx = pytest.approx
Tokens = Sequence[bytes | None]


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


def check(index: SortedVocabulary, naive: Prefixes, forced: bytes) -> None:
    """Range, prefixes, allowed ids and twins of one prefix; and the range with one more byte."""
    tokens = index.vocabulary.tokens
    starting, shorter = naive(forced)
    lo, hi = index.range(forced)
    assert 0 <= lo <= hi <= len(index.sorted)
    assert sorted(index.ids[lo:hi].tolist()) == starting, forced
    for byte in (0x61, 0x00, 0xFF):
        longer = naive(forced + bytes([byte]))[0]
        assert sorted(index.ids[slice(*index.narrow(lo, hi, len(forced), byte))]) == longer
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


@pytest.mark.parametrize("name", WIDTHS)
def test_order_and_masks(name: str, data: Data) -> None:
    index = data.index(name)
    assert index.sorted == sorted(index.sorted)
    assert [index.vocabulary.tokens[id] for id in index.ids] == index.sorted
    assert len(index.ids) == len(index.vocabulary)
    naive = Prefixes(index.vocabulary.tokens)
    for forced in random.Random(0).sample(index.sorted, 500):
        check(index, naive, forced)
    for forced in (b" ", b"a", b"the", b" some", b"\n\n", b"\xff", b"", b"\xe2\x80"):
        check_masks(index, forced, [id for ids in naive(forced) for id in ids])


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
            check(index, naive, text)
    starting, shorter = naive(forced)
    check(index, naive, forced)
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


def ranges_along(index: SortedVocabulary, text: bytes) -> list[tuple[int, int]]:
    """The ranges of `text[:1]`, `text[:2]`, …, asked one by one, as long as there are tokens."""
    ranges = []
    for depth in range(1, len(text) + 1):
        lo, hi = index.range(text[:depth])
        if lo == hi:
            break
        ranges.append((lo, hi))
    return ranges


def check_known(
    index: SortedVocabulary, text: bytes, positions: list[int], rows: np.ndarray
) -> None:
    """Everything `KnownText` knows of a text, and what it sums from rows `[n, width]`."""
    known = KnownText.of(text, index)
    assert len(known.depths) == len(text)
    for at in range(len(text)):
        ranges = ranges_along(index, text[at:])
        depth = int(known.depths[at])
        assert list(zip(known.lo[at, :depth], known.hi[at, :depth], strict=True)) == ranges
        for d in range(depth):
            lo, hi = index.same_bytes(text[at : at + d + 1])
            assert known.exact[at, d] - known.lo[at, d] == hi - lo
            if lo < hi:
                assert (known.lo[at, d], known.exact[at, d]) == (lo, hi)

    places = np.array(positions, dtype=np.int64)
    result = [ranges_along(index, text[at:]) for at in positions]
    assert known.depths_at(places).tolist() == [len(ranges) for ranges in result]

    edges = sorted(zip(*(part.tolist() for part in known.edges(places)), strict=True))
    assert edges == sorted(
        (row, id, at + len(token))
        for row, at in enumerate(positions)
        for id, token in enumerate(index.vocabulary.tokens)
        if token is not None and text.startswith(token, at)
    )

    with np.errstate(divide="ignore"):
        logs = torch.from_numpy(np.log(rows))
    masses = known.starting(logs, places)
    assert masses.shape == (len(positions), known.lo.shape[1])

    def on_device(rows: np.ndarray, _: np.ndarray, edges: np.ndarray) -> np.ndarray:
        return known_text._shells_on_device(torch.from_numpy(rows), index, edges)

    with patch.object(known_text, "_shells", on_device):  # as an accelerator sums
        assert known.starting(logs, places) == approx(masses, rel=1e-12, abs=1e-300)
    for row, at in enumerate(positions):
        in_order = index.in_order(np.exp(logs[row].numpy()))
        starting = [math.fsum(in_order[lo:hi]) for lo, hi in ranges_along(index, text[at:])]
        assert masses[row, : len(starting)] == approx(starting, rel=1e-12, abs=1e-300)
        assert not masses[row, len(starting) :].any()


@given(cases(longest=12, largest=10**9), st.integers(0, 2**32 - 1))
@examples(700)
def test_against_the_index(case: Case, seed: int):
    index = case.model.index
    rng = np.random.default_rng(seed)
    positions = rng.integers(0, len(case.text) + 1, size=rng.integers(0, 5)).tolist()
    rows = rng.random((len(positions), index.vocabulary.width)) ** 20
    rows[rng.random(rows.shape) < 0.3] = 0  # -inf among the logs
    check_known(index, case.text, positions, rows)


@pytest.mark.parametrize("text", [b"", b"z", b"zz", b"az", b"za", b"\xff", b"\xff\xff\xff\xff"])
@pytest.mark.parametrize(
    "tokens",
    [
        [b"a"],
        [b"a", b"a", None, b"a\xff", b"\xff", b"\xff", b"\xff\xff"],
        [b"\xff\xff\xff", b"\xfe\xff", b"\x00", b"\x00\x00"],
        [b"aaaa", b"zzzz"],
    ],
)
def test_edges_of_the_byte_range(tokens: list[bytes | None], text: bytes):
    index = SortedVocabulary(Vocabulary.from_bytes(tokens))
    positions = list(range(len(text) + 1))
    rows = np.full((len(positions), len(tokens)), 1 / len(tokens))
    check_known(index, text, positions, rows)
    check_known(index, text, [], rows[:0])


def test_float32_rows_are_summed_in_float64():
    index = SortedVocabulary(Vocabulary.from_bytes([b"a" + bytes([c]) for c in range(200)]))
    logs = torch.from_numpy(np.linspace(-9, -1, 200)).float()[None]
    masses = KnownText.of(b"a", index).starting(logs, np.array([0]))
    assert masses.dtype == np.float64
    assert masses[0, 0] == approx(np.exp(logs[0].double().numpy()).sum(), rel=1e-14)
