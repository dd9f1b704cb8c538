"""Intervals: they cover what they promise to, where what they are of is known."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from charwise.evaluation.resampling import intervals, units_of
from models import examples

Floats = NDArray[np.float64]


def dependent(rng: np.random.Generator, size: int, carried: float, columns: int) -> Floats:
    """Skewed values of mean 0, each of which carries a share of the one before."""
    drawn = rng.exponential(size=(size + 100, columns)) - 1
    for t in range(1, len(drawn)):
        drawn[t] += carried * drawn[t - 1]
    return np.asarray(drawn[100:])


def coverage(many: Iterable[tuple[Floats, ...]], truth: float) -> NDArray[np.float64]:
    """How many of the intervals of 95 % have the truth in them, for each column."""
    drawn = [intervals(units_of(series), 400, n) for n, series in enumerate(many)]
    return np.mean([[mean.low <= truth <= mean.high for mean in means] for means in drawn], axis=0)


@pytest.mark.slow
@pytest.mark.parametrize(("carried", "size"), [(0.0, 300), (0.5, 1000)])
def test_parts_cover_a_known_mean(carried: float, size: int) -> None:
    """93 to 97 % of the intervals of 95 %, of a mean and of a difference of pairs."""
    rng, draws = np.random.default_rng(5), 400
    many = dependent(rng, size, carried, 2 * draws)
    shared = 3 * dependent(rng, size, carried, draws)  # what is hard for both models
    a, b = many[:, :draws] + shared, many[:, draws:] + shared
    covered = coverage(((np.column_stack(pair),) for pair in zip(a.T, (a - b).T, strict=True)), 0)
    assert ((covered >= 0.93) & (covered <= 0.97)).all(), covered


@pytest.mark.slow
def test_texts_cover_a_known_ratio() -> None:
    """Texts of different lengths, and each with a level of its own."""
    rng = np.random.default_rng(6)

    def texts() -> tuple[Floats, ...]:
        sizes = rng.integers(10, 60, 40)
        levels = 2 * rng.gamma(4.0, 0.25, 40)  # of mean 2, whatever the length
        return tuple(np.full((s, 1), level) for s, level in zip(sizes, levels, strict=True))

    [covered] = coverage((texts() for _ in range(1000)), 2)
    assert 0.93 <= covered <= 0.97


def test_pairs_are_narrower_than_what_they_are_of() -> None:
    rng = np.random.default_rng(0)
    shared = dependent(rng, 2000, 0.5, 1)
    a, b = (shared + 0.1 * dependent(rng, 2000, 0.5, 1) for _ in range(2))
    one, other, pair = intervals(units_of([np.column_stack([a, b, a - b])]), resamples=400)
    assert pair.high - pair.low < (one.high - one.low) / 4
    assert one.high - one.low < 2 * (other.high - other.low)


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    columns=st.integers(1, 3),
    seed=st.integers(0, 99),
)
@examples(100)
def test_any_sizes(sizes: list[int], columns: int, seed: int) -> None:
    """The mean is that of all bytes; equal columns have equal intervals, and 0 has none at all."""
    rng = np.random.default_rng(seed)
    series = []
    for size in sizes:
        values = rng.exponential(size=(size, columns))
        series.append(np.column_stack([values, values[:, 0], np.zeros(size)]))
    for units in (units_of(series), series):
        means = intervals(units, resamples=50, seed=seed)
        whole = np.concatenate(series)
        assert np.array_equal(np.concatenate(units), whole)
        for mean, column in zip(means, whole.T, strict=True):
            assert math.isclose(mean.value, column.mean(), rel_tol=1e-12)
            assert math.isnan(mean.low) or mean.low <= mean.high
        assert repr(means[0]) == repr(means[columns])
        zero = means[-1]
        assert math.isnan(zero.low) or tuple(zero) == (0.0, 0.0, 0.0)
        assert repr(intervals(units, resamples=50, seed=seed)) == repr(means)


def test_repeated_and_short_texts() -> None:
    values = np.tile(np.array([1.0, 5.0, 2.0, 2.0, 1.0]), 200)[:, None]
    values[:7] += 0.3
    [mean] = intervals(units_of([values]), resamples=500)
    assert 2.0 < mean.low <= mean.value <= mean.high < 2.4, "a text that repeats"
    for low, units in ((math.nan, 4), (1.0, 5)):
        for drawn in (units_of([np.ones((units * 32, 1))]), [np.ones((9, 1))] * units):
            assert repr(intervals(drawn, resamples=10)[0].low) == repr(low)
