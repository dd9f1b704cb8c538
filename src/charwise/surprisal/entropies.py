"""Entropies and ranks, read off the distributions of the next byte, and those of spans."""

from __future__ import annotations

import math
import re

import numpy as np
from numpy.typing import NDArray

from charwise.surprisal.spans import Spans

Floats = NDArray[np.float64]

#: Columns of a distribution of the next byte that end a word: the ASCII characters that `\s`
#: matches, and the end of text.
ENDS = [*range(9, 14), *range(28, 33), 256]


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


def with_entropies(
    spans: Spans,
    characters: tuple[str, NDArray[np.int64]],
    entropies: NDArray[np.float64],
    ranks: NDArray[np.int64],
    *,
    letters: bool,
) -> Spans:
    """The spans with entropy, reduction and rank; see `Span`.

    Args:
        spans: in bytes or characters.
        characters: of the whole text, as `characters_of` gives them.
        entropies, ranks: `[n]` before each byte, or each character: what the spans count. Of words
            `[n, 2]` bounds, or NaN.
        letters: whether to look at the first letter of each span, not at its beginning.

    >>> from charwise.surprisal.offsets import characters_of
    >>> from charwise.surprisal.spans import Span
    >>> spans = Spans((Span(" a", 0, 2, 3.0, 3.0, 0.0), Span(" b", 2, 4, 1.5, 4.5, 0.0)))
    >>> bits, ranks = np.array([0.5, 2.0, 0.25, 1.0]), np.array([1, 3, 1, 2])
    >>> found = with_entropies(spans, characters_of(b" a b"), bits, ranks, letters=True)
    >>> [(span.entropy, span.reduction, span.rank) for span in found]
    [(2.0, 1.0, 3), (1.0, None, 2)]
    """
    string, edges = characters
    size = len(entropies)
    ahead = np.arange(size + 1)  # where to look for what comes at each place
    if letters:
        spaces = [match.span() for match in re.finditer(r"\s+", string)]
        for start, end in spaces:
            if spans.unit == "byte":
                start, end = int(edges[start]), int(edges[end])
            ahead[start:end] = end
    rows = []
    for row in spans:
        at = min(int(ahead[row.start]), size)
        at = at if at < row.end else row.start
        then = int(ahead[row.end])
        bounds = entropies[[at, min(then, size - 1)]].reshape(2, -1)  # here and after it
        entropy, most = _known(bounds[0, 0]), _known(bounds[0, -1])
        # The difference of two lower bounds would bound nothing.
        later = _known(bounds[1, 0]) if then < size and entropies.ndim == 1 else None
        rows.append(
            row._replace(
                entropy=entropy,
                reduction=None if entropy is None or later is None else entropy - later,
                rank=int(ranks[at]),
                entropy_most=most if entropies.ndim == 2 else None,
            )
        )
    return Spans(tuple(rows), spans.unit)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
