"""Distances between next-byte distributions, and the uncertainty of their means."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.errors import SettingError

Floats = NDArray[np.float64]


def js_distance(p: Floats, q: Floats) -> Floats:
    """Jensen-Shannon distance of each row: the square root of the divergence in bits.

    With m = (p + q) / 2 the divergence is [KL(p‖m) + KL(q‖m)] / 2, in [0, 1]; its square root is
    a metric. Rows are distributions over the 256 bytes and the end of text, `[n, 257]`; the
    result is `[n]`, and what the paper's Figure 1 averages.

    >>> js_distance(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]))
    array([1.])
    """
    if p.shape != q.shape:
        raise SettingError(f"the distributions have shapes {p.shape} and {q.shape}.")
    middle = (p + q) / 2
    divergence = (_relative_entropy(p, middle) + _relative_entropy(q, middle)) / 2
    return np.asarray(np.sqrt(np.clip(divergence, 0.0, 1.0)))


def _relative_entropy(p: Floats, q: Floats) -> Floats:
    """KL(p‖q) of each row, bits; q must be positive wherever p is."""
    positive = p > 0
    ratio = np.divide(p, q, out=np.ones_like(p), where=positive)
    return np.asarray((p * np.log2(ratio)).sum(axis=-1))


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
