"""The rank of contexts at each position of a text, as a beam sees it.

At position t stand the contexts that end there, and those before it with a token that reaches
further: a beam of width K keeps the K heaviest of them, and a context that is not among them
has no future. What weighs little may still decide what follows, where a model goes on as the text
began: the share alone says nothing of that. So the rank is looked at too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: What weighs less than this share of a text is worth nothing, whatever its rank.
_NOTHING = 1e-9


class Rivals(NamedTuple):
    """What stands at positions of a text: one entry for each context at each position.

    >>> Rivals(np.array([0, 0]), np.array([0.9, 0.1])).at.tolist()
    [0, 0]
    """

    at: NDArray[np.int64]
    shares: Floats  # of the mass there


def reaching(
    positions: Sequence[int], weights: Floats, longer: Sequence[Sequence[float]]
) -> Rivals:
    """What contexts weigh where they end and wherever their next token reaches.

    Args:
        positions: where each ends.
        weights: what each weighs.
        longer: for each, the masses of the tokens that begin with 1, 2, … of the next bytes and
            go on.

    >>> found = reaching([0, 1], np.array([1.0, 0.25]), [[0.5, 0.125], []])
    >>> found.at.tolist(), found.shares.tolist()
    ([0, 1, 2, 1], [1.0, 0.5, 0.125, 0.25])
    """
    counts = np.array([len(masses) + 1 for masses in longer], dtype=np.int64)
    masses = np.array([mass for some in longer for mass in (1.0, *some)])
    steps = np.arange(len(masses)) - np.repeat(np.cumsum(counts) - counts, counts)
    at = np.repeat(np.asarray(positions, dtype=np.int64), counts) + steps
    return Rivals(at, np.repeat(weights, counts) * masses)


def floors(rivals: Rivals, start: int, stop: int, width: int) -> Floats:
    """`[stop - start]` the share of the `width`-th heaviest at each position; there may be none.

    >>> floors(Rivals(np.array([3, 3, 3, 4]), np.array([0.1, 0.7, 0.2, 1.0])), 3, 5, width=2)
    array([2.e-01, 1.e-09])
    """
    inside = (rivals.at >= start) & (rivals.at < stop) & (rivals.shares > 0)
    at, shares = rivals.at[inside] - start, rivals.shares[inside]
    order = np.lexsort((-shares, at))
    at, shares = at[order], shares[order]
    nth = np.searchsorted(at, np.arange(stop - start)) + width - 1
    there = np.append(at, -1)[np.minimum(nth, len(at))] == np.arange(stop - start)
    found = np.append(shares, 0.0)[np.minimum(nth, len(at))]
    return np.maximum(np.where(there, found, 0.0), _NOTHING)
