"""Intervals of means over text.

Intervals are of blocks of bytes or whole texts drawn again, of all models at once.
Neighbouring bytes are not independent: an interval that treats them so is too narrow. Two units
are, or nearly:

- *blocks*: runs of b consecutive bytes of a text laid in a circle, so that each byte is drawn as
  often as any other (the circular block bootstrap: Politis & Romano 1992; blocks: Künsch 1989). b
  must grow with the text and with how far its bytes depend on each other; `_block_length` chooses
  it from the data. Texts are resampled each within itself.
- *texts*, where there are many: each whole, with what it has of bits and of bytes (a ratio of two
  sums, as bits a byte of a corpus is).

What is drawn is drawn for all models together, so the interval of a difference is that of pairs:
what makes a passage hard for all of them cancels. Surprisals are skewed, and units may be few, so
what is resampled is Student's t (Efron 1981; of blocks, Götze & Künsch 1996): each mean that is
drawn is measured by the spread of the units it was drawn with.

scipy's `bootstrap` draws single observations, and has no Student's t; so this is our own.

Politis & Romano 1992, "A circular block-resampling procedure for stationary data", in Exploring
the Limits of Bootstrap. Künsch 1989, Annals of Statistics 17(3). Politis & White 2004, Econometric
Reviews 23(1), corrected in Patton, Politis & White 2009, 28(4). Efron 1981, Canadian Journal of
Statistics 9(2). Götze & Künsch 1996, Annals of Statistics 24(5).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.errors import SettingError

Floats = NDArray[np.float64]


class Mean(NamedTuple):
    """A mean and its bootstrapped 95 % interval.

    >>> mean = Mean(1.0, 0.5, 1.5)
    >>> mean.low < mean.value < mean.high
    True
    """

    value: float
    low: float
    high: float


def bootstrap(values: Floats, *, seed: int = 0) -> Mean:
    """Return the mean of `[n]` values, and the 2.5 and 97.5 percentiles of resampled means.

    scipy's `bootstrap` has such percentiles too; charwise does without scipy for these few lines.

    >>> bootstrap(np.array([1.0, 1.0, 1.0]))
    Mean(value=1.0, low=1.0, high=1.0)
    """
    if not len(values):
        raise SettingError("there is nothing to average.")
    rng = np.random.default_rng(seed)
    means = np.array(
        [values[rng.integers(0, len(values), len(values))].mean() for _ in range(1000)]
    )
    low, high = np.percentile(means, [2.5, 97.5])
    return Mean(float(values.mean()), float(low), float(high))


#: Fewest degrees of freedom that an interval is drawn from: units, less the texts they are of.
LEAST = 4

#: Numbers that are drawn at a time, at most.
_AT_ONCE = 2**21


class _Intervals(NamedTuple):
    """The means of several series, and the units of their intervals.

    Attributes:
        means: with their 95 % intervals; NaN where there are too few units.
        units: how many blocks or texts a resample has.
        lengths: bytes of a block, of each text; empty where texts are the units.
    """

    means: tuple[Mean, ...]
    units: int
    lengths: tuple[int, ...] = ()


def by_blocks(series: Sequence[Floats], resamples: int = 10_000, seed: int = 0) -> _Intervals:
    """Means over all bytes of some texts, each resampled in blocks of its own.

    Args:
        series: for each text `[n, m]`, a column for each mean that is wanted; n ≥ 1.
        resamples: how many to draw.
        seed: of the draws.

    >>> values = np.random.default_rng(1).random((1000, 1))
    >>> found = by_blocks([values], resamples=100)
    >>> found.units * found.lengths[0] >= 1000, found.means[0].low < 0.5 < found.means[0].high
    (True, True)
    >>> by_blocks([np.ones((3, 1))]).means
    (Mean(value=1.0, low=nan, high=nan),)
    """
    rng = np.random.default_rng(seed)
    size, columns = sum(map(len, series)), series[0].shape[1]
    drawn, spread = np.zeros((resamples, columns)), np.zeros((resamples, columns))
    total, own = np.zeros(columns), np.zeros(columns)
    units, lengths = 0, []
    for values in series:
        length = max(_block_length(values[:, column]) for column in range(columns))
        circle = _Circle(values, length)
        sums, squares = circle.draw(resamples, rng)
        drawn += sums
        spread += squares
        total += circle.upto[-1]
        own += circle.variance()
        units += circle.blocks
        lengths.append(length)
    means = _intervals(total / size, own / size**2, drawn / size, spread / size**2)
    enough = units - len(series) >= LEAST
    return _Intervals(means if enough else _none(means), units, tuple(lengths))


class _Circle:
    """The blocks of a text whose end is followed by its beginning."""

    def __init__(self, values: Floats, length: int) -> None:
        self.size, self.length = len(values), length
        self.blocks = -(-self.size // length)
        self.lengths = np.full(self.blocks, length)
        self.lengths[-1] = self.size - (self.blocks - 1) * length
        self.upto = np.concatenate((np.zeros((1, values.shape[1])), np.cumsum(values, axis=0)))

    def sums(self, begin: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Floats:
        """`[…, blocks, m]` sums of blocks of `lengths` that begin there."""
        end = begin + self.lengths
        around = end > self.size
        inside = self.upto[end - self.size * around] - self.upto[begin]
        return np.asarray(inside + around[..., None] * self.upto[-1])

    def draw(self, resamples: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """`[resamples, m]` sums of as many values as there are, and the variance of each."""
        columns = self.upto.shape[1]
        sums, squares = np.empty((resamples, columns)), np.empty((resamples, columns))
        step = max(1, _AT_ONCE // (self.blocks * columns))
        for first in range(0, resamples, step):
            begin = rng.integers(0, self.size, (min(step, resamples - first), self.blocks))
            part = slice(first, first + step)
            sums[part], squares[part] = _totals(self.sums(begin), self.lengths)
        return sums, squares

    def variance(self) -> Floats:
        """`[m]` of the sum of the text: of its blocks, wherever in it they begin."""
        ends = np.arange(self.size) + self.length
        around = ends > self.size
        sums = self.upto[ends - self.size * around] - self.upto[:-1]
        off = sums + around[:, None] * self.upto[-1] - self.upto[-1] * (self.length / self.size)
        scale = self.size / self.length / max(1e-9, 1 - self.length / self.size)
        return np.asarray((off**2).mean(axis=0) * scale)


def by_texts(series: Sequence[Floats], resamples: int = 10_000, seed: int = 0) -> _Intervals:
    """The same, whole texts drawn again: the sum of their values by that of their bytes.

    >>> found = by_texts([np.full((size, 1), size % 2) for size in range(1, 21)], resamples=100)
    >>> round(found.means[0].value, 3), found.units
    (0.476, 20)
    """
    rng = np.random.default_rng(seed)
    sums = np.array([values.sum(axis=0) for values in series])  # [texts, m]
    sizes = np.array([len(values) for values in series])
    total, own = _totals(sums, sizes)
    drawn, spread = np.empty((resamples, len(total))), np.empty((resamples, len(total)))
    step = max(1, _AT_ONCE // sums.size)
    for first in range(0, resamples, step):
        chosen = rng.integers(0, len(series), (min(step, resamples - first), len(series)))
        part, of = slice(first, first + step), sizes[chosen]
        found, squares = _totals(sums[chosen], of)
        size = of.sum(axis=1)[:, None]
        drawn[part], spread[part] = found / size, squares / size**2
    size = sizes.sum()
    means = _intervals(total / size, own / size**2, drawn, spread)
    return _Intervals(means if len(series) > LEAST else _none(means), len(series))


def _totals(sums: Floats, sizes: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Any:
    """The totals of units `[…, units, m]` of some sizes, and the variance of these totals."""
    units = sums.shape[-2]
    total = sums.sum(axis=-2)
    mean = total / sizes.sum(axis=-1, keepdims=True)
    off = sums - mean[..., None, :] * sizes[..., None]
    return total, (off**2).sum(axis=-2) * (units / max(1, units - 1))


def _intervals(
    values: Floats, variances: Floats, drawn: Floats, spread: Floats
) -> tuple[Mean, ...]:
    """Bootstrap-t: value − t s, with the percentiles of t = (drawn − value) / its own spread.

    A spread counts as no less than a quarter of that of the texts: where much of a text repeats, a
    resample may happen to have next to none, and a t without bound.
    """
    found = []
    for value, variance, means, squares in zip(values, variances, drawn.T, spread.T, strict=True):
        squares = np.maximum(squares, variance / 16)
        # What is the same everywhere, up to the last digits of sums, has no spread.
        some = squares > (1e-12 * max(abs(value), 1e-300)) ** 2
        t = np.divide(means - value, np.sqrt(squares), out=np.zeros_like(means), where=some)
        low, high = np.percentile(t, [2.5, 97.5]) * math.sqrt(variance)
        found.append(Mean(float(value), float(value - high), float(value - low)))
    return tuple(found)


def _none(means: tuple[Mean, ...]) -> tuple[Mean, ...]:
    return tuple(Mean(mean.value, math.nan, math.nan) for mean in means)


def _block_length(values: Floats) -> int:
    """Bytes of a block, for the mean of a dependent series `[n]` (Politis & White 2004).

    With R(k) the autocovariances, damped by a flat top λ that ends where no correlation is
    significant any more,

        b = (2 G² / D)^(1/3) n^(1/3),    G = Σ λ(k) |k| R(k),    D = 4/3 (Σ λ(k) R(k))²,

    at most 3 √n and n / 3.

    >>> rng = np.random.default_rng(0)
    >>> _block_length(rng.normal(size=1000)) < 10 < _block_length(rng.normal(size=1000).cumsum())
    True
    """
    size = len(values)
    most = max(1, min(math.ceil(3 * math.sqrt(size)), size // 3))
    off = values - values.mean()
    if most == 1 or not np.any(np.abs(off) > 1e-12 * np.abs(values).max()):
        return 1
    apart = max(5, math.ceil(math.sqrt(math.log10(size))))
    lags = min(size - 1, math.ceil(math.sqrt(size)) + apart)
    covariances = np.array([off[k:] @ off[: size - k] for k in range(lags + 1)]) / size
    small = np.abs(covariances / covariances[0]) < 2 * math.sqrt(math.log10(size) / size)
    quiet = next(
        (m for m in range(lags - apart + 1) if small[m + 1 : m + 1 + apart].all()),
        int(np.flatnonzero(~small)[-1]),
    )
    width = min(lags, 2 * max(1, quiet))
    k = np.arange(1, width + 1)
    damped = np.minimum(1.0, 2 * (1 - k / width)) * covariances[1 : width + 1]
    spread = covariances[0] + 2 * damped.sum()
    if spread <= 0:
        return most
    length = (2 * (2 * (k * damped).sum()) ** 2 / (4 / 3 * spread**2) * size) ** (1 / 3)
    return max(1, min(most, round(float(length))))
