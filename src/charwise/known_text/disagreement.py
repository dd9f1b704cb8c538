"""By how much contexts that end alike disagree on what comes next: what lending costs, measured.

A candidate that is not evaluated lends its weight to a context that ends in the same tokens. What
that costs depends on the model and on the text: how soon it forgets in which tokens it has read
something. Of contexts that are evaluated it is known, as both are there to be compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from charwise.known_text.effort import agreement
from charwise.known_text.lattice import Lattice
from charwise.known_text.vertex import Vertex

#: So many of the next bytes are compared.
_BYTES = 4

#: What is expected before anything was compared, in nats a byte, and for how many bytes it counts.
_EXPECTED, _WORTH = 0.1, 0.125


class Disagreement:
    """Compares the contexts of a lattice, each with the heavier one that agrees most with it.

    Where one has come, all that end there are compared again, in whatever order they came; their
    shares are as of then.

    Args:
        lattice: of the text.

    >>> from charwise.known_text.effort import Effort
    >>> from charwise.known_text.ranges import KnownText
    >>> from charwise.tokens.index import SortedVocabulary
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab"]))
    >>> root = Vertex(node=0, position=0, tail=(), depth=0)
    >>> lattice = Lattice(KnownText.of(b"ab", index), root, Effort(1e-3, 0.5), through=False)
    >>> round(Disagreement(lattice).nats, 9)
    0.1
    """

    def __init__(self, lattice: Lattice) -> None:
        self._lattice = lattice
        size = len(lattice.at)
        # Of each position: contexts that were compared, by how much they differ, on how many bytes.
        self._compared = [0] * size
        self._differences: NDArray[np.float64] = np.zeros(size)
        self._bytes: NDArray[np.float64] = np.zeros(size)

    @property
    def nats(self) -> float:
        """Mean difference of a byte's log-probability, by the shares of the lighter contexts."""
        apart = _EXPECTED * _WORTH + float(self._differences.sum())
        return apart / (_WORTH + float(self._bytes.sum()))

    def compare(self, first: int, stop: int) -> None:
        """Compare what ends between two positions, where something has come since the last time.

        >>> from charwise.known_text.effort import Effort
        >>> from charwise.known_text.ranges import KnownText
        >>> from charwise.tokens.index import SortedVocabulary
        >>> from charwise.tokens.vocabulary import Vocabulary
        >>> index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab", b"c"]))
        >>> root = Vertex(node=0, position=0, tail=(), depth=0)
        >>> lattice = Lattice(KnownText.of(b"ab", index), root, Effort(1e-3, 0.5), through=False)
        >>> for tail, starting, share in (((0, 1), (0.5,), 0.5), ((0, 2), (0.25,), 0.25)):
        ...     lattice.at[1].append(Vertex(0, 1, tail, depth=2, starting=starting))
        ...     lattice.at[1][-1].log_p = math.log(share)
        >>> lattice.log_prefix[1] = 0.0
        >>> disagreement = Disagreement(lattice)
        >>> disagreement.compare(0, 2)
        >>> round(disagreement.nats, 9) == round((0.1 * 0.125 + 0.25 * math.log(2)) / 0.375, 9)
        True
        """
        for t in range(first, stop):
            here, log_prefix = self._lattice.at[t], float(self._lattice.log_prefix[t])
            if len(here) == self._compared[t] or log_prefix == -math.inf:
                continue
            self._compared[t] = len(here)
            total = compared = 0.0
            for vertex in here:
                other = _closest(vertex, here)
                if other is not None:
                    share = math.exp(min(0.0, vertex.log_p - log_prefix))
                    apart = _apart(vertex.starting, other.starting)
                    total += share * sum(apart)
                    compared += share * len(apart)
            self._differences[t], self._bytes[t] = total, compared


def _closest(vertex: Vertex, here: Sequence[Vertex]) -> Vertex | None:
    """The heavier context that agrees with one on most last tokens, on one at least."""
    best, longest = None, 0
    for other in here:
        if other.log_p > vertex.log_p and other.tail[0] == vertex.tail[0]:
            agreed = agreement(vertex.tail, other.tail)
            if agreed > longest:
                best, longest = other, agreed
    return best


def _apart(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """By how much two contexts differ in the log-probability of each of the next bytes, nats.

    >>> [round(nats, 3) for nats in _apart([0.5, 0.25], [0.25, 0.125, 0.1])]
    [0.693, 0.0]
    """
    found, before, before_too = list[float](), 0.0, 0.0
    for mine, its in zip(one[:_BYTES], other[:_BYTES], strict=False):
        if mine <= 0.0 or its <= 0.0:
            break
        log_mine, log_its = math.log(mine), math.log(its)
        found.append(abs(log_mine - before - log_its + before_too))
        before, before_too = log_mine, log_its
    return found
