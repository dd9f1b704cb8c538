"""Intervals of means over text: whole texts are drawn again, of all models at once.

So the interval of a difference is that of pairs: a passage that is hard for all models cancels. A
unit has its bits and its bytes, of which bits a byte is the ratio. Surprisals are skewed and units
may be few, so Student's t is resampled: each drawn mean is measured by the spread of the units that
it was drawn with (Efron 1981, Canadian Journal of Statistics 9(2)); scipy's `bootstrap` lacks it.
Of few texts the parts are units: nearly independent if much longer than bytes depend on each other.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Fewest degrees of freedom that an interval is drawn from: units, less one.
_LEAST = 4

#: Texts from which on they are drawn whole.
_MANY = 20

#: Numbers that are drawn at a time, at most.
_AT_ONCE = 2**21


class Mean(NamedTuple):
    """A mean and its bootstrapped 95 % interval, NaN where there are too few units."""

    value: float
    low: float
    high: float


def units_of(series: Sequence[Floats]) -> list[Floats]:
    """Return what is drawn again: texts, or parts of them where there are fewer than 20.

    A text is cut into equal parts, 32 of all texts together, but of 32 to 2,048 bytes each.
    """
    if len(series) >= _MANY:
        return list(series)
    length = min(2048, max(32, sum(map(len, series)) // 32))
    units: list[Floats] = []
    for values in series:
        units += np.array_split(values, max(1, round(len(values) / length)))
    return units


def intervals(units: Sequence[Floats], resamples: int = 10_000, seed: int = 0) -> list[Mean]:
    """Return the means of the m columns of units `[n_bytes, m]`, with 95 % intervals."""
    sums = np.array([values.sum(axis=0) for values in units])  # [units, m]
    sizes = np.array([len(values) for values in units])
    size = sizes.sum()
    total, variance = _totals(sums, sizes)
    values, spread = total / size, variance / size**2
    rng = np.random.default_rng(seed)
    step = max(1, _AT_ONCE // sums.size)
    means, squares = [], []
    for first in range(0, resamples, step):
        chosen = rng.integers(0, len(units), (min(step, resamples - first), len(units)))
        drawn, drawn_variance = _totals(sums[chosen], sizes[chosen])
        drawn_size = sizes[chosen].sum(axis=1)[:, None]
        means.append(drawn / drawn_size)
        squares.append(drawn_variance / drawn_size**2)
    # Where much of a text repeats, a resample may happen to have next to no spread, and a t
    # without bound: it counts as no less than a quarter of that of the texts.
    own = np.maximum(np.concatenate(squares), spread / 16)
    # What is the same everywhere, up to the last digits of sums, has no spread.
    some = own > (1e-12 * np.maximum(np.abs(values), 1e-300)) ** 2
    off = np.concatenate(means) - values
    t = np.divide(off, np.sqrt(own), out=np.zeros_like(off), where=some)
    low, high = np.percentile(t, [2.5, 97.5], axis=0) * np.sqrt(spread)
    if len(units) <= _LEAST:
        low = high = np.full_like(values, math.nan)
    return [
        Mean(*map(float, each)) for each in zip(values, values - high, values - low, strict=True)
    ]


def _totals(sums: Floats, sizes: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """The totals of units `[…, units, m]` of some sizes, and the variance of these totals."""
    units = sums.shape[-2]
    total = sums.sum(axis=-2)
    mean = total / sizes.sum(axis=-1, keepdims=True)
    off = sums - mean[..., None, :] * sizes[..., None]
    return total, (off**2).sum(axis=-2) * (units / max(1, units - 1))
