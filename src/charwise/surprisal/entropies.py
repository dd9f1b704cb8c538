"""Entropies and ranks, read off the distributions of the next byte, and those of spans."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from charwise.surprisal.spans import Spans

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


def with_entropies(
    spans: Spans,
    ahead: NDArray[np.int64],
    entropies: Floats,
    most: Floats | None,
    ranks: NDArray[np.int64],
) -> Spans:
    """The spans with entropy, reduction and rank; see `Span`.

    Args:
        spans: in bytes or characters.
        ahead: `[n + 1]` place of the first letter from each byte or character on.
        entropies, ranks: `[n]` before each; NaN where there is none.
        most: `[n]` upper bounds of the entropies, which are then lower ones.
    """
    size = len(entropies)
    rows = []
    for row in spans:
        at, then = int(ahead[row.start]), int(ahead[row.end])
        at = at if at < row.end else row.start
        entropy = _known(entropies[at])
        # The difference of two lower bounds would bound nothing.
        later = _known(entropies[then]) if most is None and then < size else None
        rows.append(
            row._replace(
                entropy=entropy,
                reduction=None if entropy is None or later is None else entropy - later,
                rank=int(ranks[at]),
                entropy_most=None if most is None else _known(most[at]),
            )
        )
    return Spans(tuple(rows), spans.unit)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
