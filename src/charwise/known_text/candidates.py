"""Which candidates of a lattice are worth an evaluation, by the rule of `effort.py`.

They are judged after a pass, so that what follows a candidate is known: by what their share may
rise to, by their rank, and by whether they are the first at a position.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.known_text.effort import Tail, hindsight, tail_after
from charwise.known_text.lattice import Lattice
from charwise.known_text.ranks import Rivals, floors, reaching
from charwise.known_text.vertex import Vertex, ends_with

#: With a tolerance, where a context was evaluated another one's rank counts from this part of θ on.
_RANKED = 2e-4


class Wanted(NamedTuple):
    """A candidate worth evaluating: the context of `parent`, and `token` up to `position`.

    >>> parent = Vertex(node=0, position=0, tail=(), depth=0)
    >>> Wanted(0.1, parent, token=3, position=2, share=0.1).tail
    (3,)
    """

    rho: float  # its share of the mass at `position`
    parent: Vertex
    token: int
    position: int
    share: float  # what that may rise to, by hindsight

    @property
    def tail(self) -> Tail:
        """Its tokens, latest first."""
        return tail_after(self.token, self.parent.tail)


class Candidates:
    """The candidates of a lattice, judged after each pass.

    Args:
        lattice: it says which there are, and how much to spend on them.

    Attributes:
        floor: `[len(text) + 1]` least share that is worth an evaluation by its rank there.

    >>> from charwise.known_text.effort import Effort
    >>> from charwise.known_text.ranges import KnownText
    >>> from charwise.tokens.index import SortedVocabulary
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab"]))
    >>> root = Vertex(0, 0, (), 0, starting=[0.75, 0.25], edges=[(0, 1, 0.5)])
    >>> lattice = Lattice(KnownText.of(b"ab", index), root, Effort(1e-3, 0.5), through=False)
    >>> lattice.sum(stop=2)
    >>> [wanted.tail for wanted in Candidates(lattice).wanted(stop=2)]  # [a]
    [(0,)]
    """

    def __init__(self, lattice: Lattice) -> None:
        self._lattice = lattice
        self.floor: NDArray[np.float64] = np.full(len(lattice.known.text) + 1, np.inf)
        self._width = 0  # that the floors are of

    def wanted(self, stop: int, *, foreseeing: bool = True) -> list[Wanted]:
        """Of the candidates seen, those worth an evaluation, now that what follows is known.

        Args:
            stop: the pass went so far.
            foreseeing: whether a share counts as what it may rise to, or as it is.
        """
        lattice = self._lattice
        seen, effort, start = lattice.seen, lattice.effort, lattice.frozen
        if not seen.positions:
            return []
        position, rho = np.array(seen.positions), np.array(seen.shares)
        rise = hindsight(lattice.log_prefix[start:stop])[position - start]
        share = np.minimum(1.0, rho * rise) if foreseeing else rho
        self.rank(stop)
        heavy = rho >= self.floor[position]
        alone = np.array([not here for here in lattice.at[start:stop]])[position - start]
        maybe = (share >= effort.theta) | (alone & (rho >= effort.first)) | heavy
        chosen = []
        for n in np.flatnonzero(maybe & (rho > 0)).tolist():
            if alone[n] or heavy[n] or effort.worth(float(share[n]), self._agreed(n)):
                chosen.append(n)
        # Whatever θ is, the better part is never left out.
        for t in np.setdiff1d(position[lattice.missing[position] > 0.5], position[chosen]).tolist():
            chosen.append(int(np.argmax(np.where(position == t, rho, -1.0))))
        return [
            Wanted(
                seen.shares[n], seen.parents[n], seen.tokens[n], seen.positions[n], float(share[n])
            )
            for n in chosen
        ]

    def rank(self, stop: int) -> None:
        """Set the floors where sums or the width have changed since they were set."""
        lattice, width = self._lattice, self._lattice.effort.width
        if not width:
            return
        seen, frozen = lattice.seen, lattice.frozen
        start = frozen if width != self._width else max(frozen, lattice.renewed)
        self._width, lattice.renewed = width, stop
        if start >= stop:
            return
        standing = self._standing(start, stop)
        begin = bisect_left(seen.positions, start)
        ends = np.append(standing.at, seen.positions[begin:]).astype(int)
        rivals = Rivals(ends, np.append(standing.shares, seen.shares[begin:]))
        found = floors(rivals, start, stop, width)
        taken = np.array([bool(here) for here in lattice.at[start:stop]])
        effort = lattice.effort
        least = 0.0 if effort.tolerance is None else effort.theta * _RANKED
        self.floor[start:stop] = np.where(taken, np.maximum(found, least), found)

    def _standing(self, start: int, stop: int) -> Rivals:
        """The evaluated contexts that end between two positions, or reach there."""
        lattice = self._lattice
        first = max(0, start - lattice.known.deepest)
        some = [vertex for here in lattice.at[first:stop] for vertex in here if vertex.weight > 0]
        positions = [vertex.position for vertex in some]
        weights = np.array([vertex.weight for vertex in some])
        at, weights = reaching(positions, weights, [vertex.longer for vertex in some])
        scale = np.array(lattice.log_scale)[np.repeat(positions, [len(v.longer) + 1 for v in some])]
        at = np.minimum(at, len(lattice.log_prefix) - 1)
        with np.errstate(invalid="ignore", over="ignore"):
            shares = np.nan_to_num(weights * np.exp(scale - lattice.log_prefix[at]), posinf=0.0)
        return Rivals(at, shares)

    def _agreed(self, n: int) -> int:
        """On how many tokens a candidate agrees with an evaluated context there: 1 for any."""
        lattice, seen = self._lattice, self._lattice.seen
        if lattice.effort.gamma >= 1.0:
            return 0  # it counts for nothing
        if seen.agreed[n] >= 0:
            return seen.agreed[n]
        return int(ends_with(lattice.at[seen.positions[n]], seen.tokens[n]))
