"""Entropies and ranks, read off the distributions of the next byte."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Columns of a distribution of the next byte that end a word: the ASCII characters that `\s`
#: matches, and the end of text.
ENDS = [*range(9, 14), *range(28, 33), 256]


def entropies(rows: Floats) -> Floats:
    """`[n]` entropies of `[n, m]` distributions, bits."""
    logs = np.log2(rows, out=np.zeros_like(rows), where=rows > 0)
    return np.asarray(np.maximum(0.0, -(rows * logs).sum(axis=1)) + 0.0)


def ranks(rows: Floats, came: bytes) -> NDArray[np.int64]:
    """`[n]` rank of the byte that came in each of `[n, 257]` distributions; 1 is the likeliest."""
    codes = np.frombuffer(came, dtype=np.uint8).astype(np.int64)
    likelihoods = rows[np.arange(len(codes)), codes]
    return np.asarray(1 + (rows > likelihoods[:, None]).sum(axis=1), dtype=np.int64)


def word_ends(rows: Floats) -> Floats:
    """`[n]` log-probability of ASCII whitespace or the end of text in `[n, 257]` rows, nats."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(rows[:, ENDS].sum(axis=1)))
