"""Entropies and ranks, read off the distributions of the next byte."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def entropies(rows: Floats) -> Floats:
    """`[n]` entropies of `[n, m]` distributions, bits.

    >>> entropies(np.array([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]])).tolist()
    [1.5, 0.0]
    """
    logs = np.log2(rows, out=np.zeros_like(rows), where=rows > 0)
    return np.asarray(np.maximum(0.0, -(rows * logs).sum(axis=1)) + 0.0)


def ranks(rows: Floats, came: bytes) -> NDArray[np.int64]:
    """`[n]` rank of the byte that came in each of `[n, 257]` distributions; 1 is the likeliest.

    >>> rows = np.zeros((1, 257))
    >>> rows[0, [97, 98, 256]] = 0.25, 0.5, 0.25
    >>> ranks(rows, b"a")
    array([2])
    """
    codes = np.frombuffer(came, dtype=np.uint8).astype(np.int64)
    chosen = rows[np.arange(len(codes)), codes]
    return np.asarray(1 + (rows > chosen[:, None]).sum(axis=1), dtype=np.int64)
