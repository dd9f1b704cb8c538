"""Intervals: they cover what they promise to, where what they are of is known."""

from __future__ import annotations

import math

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


@pytest.mark.slow
@pytest.mark.parametrize(("carried", "size"), [(0.0, 300), (0.5, 1000)])
def test_parts_cover_a_known_mean(carried: float, size: int) -> None:
    """93 to 97 % of the intervals of 95 %, of a mean and of a difference of pairs."""
    rng, draws, covered = np.random.default_rng(5), 400, np.zeros(2)
    many = dependent(rng, size, carried, 2 * draws)
    shared = dependent(rng, size, carried, draws)  # what is hard for both models
    for n in range(draws):
        a, b = many[:, n] + 3 * shared[:, n], many[:, draws + n] + 3 * shared[:, n]
        units = units_of([np.column_stack([a, a - b])])
        means = intervals(units, resamples=400, seed=n)
        covered += [mean.low <= 0 <= mean.high for mean in means]
    assert (covered / draws >= 0.93).all(), covered / draws
    assert (covered / draws <= 0.97).all(), covered / draws


@pytest.mark.slow
def test_texts_cover_a_known_ratio() -> None:
    """Texts of different lengths, and each with a level of its own."""
    rng, draws, covered = np.random.default_rng(6), 1000, 0
    for n in range(draws):
        sizes = rng.integers(10, 60, 40)
        levels = 2 * rng.gamma(4.0, 0.25, 40)  # of mean 2, whatever the length
        series = [np.full((s, 1), level) for s, level in zip(sizes, levels, strict=True)]
        [mean] = intervals(units_of(series), resamples=400, seed=n)
        covered += mean.low <= 2 <= mean.high
    assert 0.93 <= covered / draws <= 0.97


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


def test_a_text_that_repeats_has_no_endless_interval() -> None:
    values = np.tile(np.array([1.0, 5.0, 2.0, 2.0, 1.0]), 200)[:, None]
    values[:7] += 0.3
    [mean] = intervals(units_of([values]), resamples=500)
    assert 2.0 < mean.low <= mean.value <= mean.high < 2.4


def test_too_little_for_an_interval() -> None:
    assert math.isnan(intervals(units_of([np.ones((4 * 32, 1))]), resamples=10)[0].low)
    assert intervals(units_of([np.ones((5 * 32, 1))]), resamples=10)[0].low == 1.0
    assert math.isnan(intervals([np.ones((9, 1))] * 4, resamples=10)[0].low)
    assert intervals([np.ones((9, 1))] * 5, resamples=10)[0].low == 1.0
