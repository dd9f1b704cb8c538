"""The distance between next-byte distributions that the paper reports."""

from __future__ import annotations

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
