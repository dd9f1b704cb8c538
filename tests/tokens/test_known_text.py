"""A known text seen from all positions at once, against the index asked position by position."""

import math
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import charwise.tokens.known_text
from charwise import SortedVocabulary, Vocabulary
from charwise.tokens.known_text import KnownText
from models import Case, cases, examples

approx = pytest.approx


def ranges_along(index: SortedVocabulary, text: bytes) -> list[tuple[int, int]]:
    """The ranges of `text[:1]`, `text[:2]`, …, asked one by one, as long as there are tokens."""
    ranges = []
    for depth in range(1, len(text) + 1):
        lo, hi = index.range(text[:depth])
        if lo == hi:
            break
        ranges.append((lo, hi))
    return ranges


def masses_along(index: SortedVocabulary, probabilities: np.ndarray, text: bytes) -> list[float]:
    """The mass of each of those ranges, summed for itself and without error."""
    in_order = index.in_order(probabilities)
    return [math.fsum(in_order[lo:hi]) for lo, hi in ranges_along(index, text)]


def check(index: SortedVocabulary, text: bytes, positions: list[int], rows: np.ndarray) -> None:
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
    assert known_on_device(known, logs, places) == approx(masses, rel=1e-12, abs=1e-300)
    for row, at in enumerate(positions):
        starting = masses_along(index, np.exp(logs[row].numpy()), text[at:])
        assert masses[row, : len(starting)] == approx(starting, rel=1e-12, abs=1e-300)
        assert not masses[row, len(starting) :].any()


def known_on_device(known: KnownText, logs: torch.Tensor, places: np.ndarray) -> np.ndarray:
    """`starting`, by the sums that an accelerator would make."""

    def shells(rows: np.ndarray, ids: np.ndarray, edges: np.ndarray) -> np.ndarray:
        return charwise.tokens.known_text._shells_on_device(
            torch.from_numpy(rows), known.index, edges
        )

    with patch.object(charwise.tokens.known_text, "_shells", shells):
        return known.starting(logs, places)


@given(cases(longest=12, largest=10**9), st.integers(0, 2**32 - 1))
@examples(700)
def test_against_the_index(case: Case, seed: int):
    index = case.model.index
    rng = np.random.default_rng(seed)
    positions = rng.integers(0, len(case.text) + 1, size=rng.integers(0, 5)).tolist()
    rows = rng.random((len(positions), index.vocabulary.width)) ** 20
    rows[rng.random(rows.shape) < 0.3] = 0  # -inf among the logs
    check(index, case.text, positions, rows)


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
    check(index, text, positions, rows)
    check(index, text, [], rows[:0])


def test_float32_rows_are_summed_in_float64():
    index = SortedVocabulary(Vocabulary.from_bytes([b"a" + bytes([c]) for c in range(200)]))
    logs = torch.from_numpy(np.linspace(-9, -1, 200)).float()[None]
    masses = KnownText.of(b"a", index).starting(logs, np.array([0]))
    assert masses.dtype == np.float64
    assert masses[0, 0] == approx(np.exp(logs[0].double().numpy()).sum(), rel=1e-14)
