"""Looks ahead over a section, before its portions are worked on: for a better base path.

Two rounds with a coarse θ show what is near the canonical tokens, and where other tokens are more
likely (`best_path.py`). Along these, races find what pays later (`races.py`). All contexts that are
evaluated on the way are in every sum.
"""

from __future__ import annotations

from collections.abc import Iterator

from charwise.known_text.base_path import BasePath, Portion
from charwise.known_text.batches import Batches
from charwise.known_text.best_path import better
from charwise.known_text.candidates import Candidates
from charwise.known_text.effort import LENDING, Effort
from charwise.known_text.lattice import Lattice
from charwise.known_text.races import STAGES, Races
from charwise.known_text.vertex import Branch
from charwise.known_text.walk import Walk

#: The rounds, and what is worth an evaluation in them.
_ROUNDS, _EFFORT = 2, Effort(0.25, LENDING, first=0.005, width=3)

#: Another base path must be so much more likely, in nats.
_PAYS = 0.5


class Scout:
    """Respells the base path of one section by what is more likely.

    Args:
        lattice: the evaluated contexts.
        candidates, batches: of this lattice.
        base: the base path, which is respelled.
        start, stop: the positions of the section; the base path is evaluated there.

    Attributes:
        most: rounds that it takes, at most.

    >>> Scout.most
    10
    """

    most = _ROUNDS + len(STAGES) + 2

    def __init__(
        self,
        lattice: Lattice,
        candidates: Candidates,
        batches: Batches,
        base: BasePath,
        start: int,
        stop: int,
    ) -> None:
        self._lattice = lattice
        self._candidates = candidates
        self._batches = batches
        self._base = base
        self._start, self._stop = start, stop
        # The end of the text is no context's beginning, unless all of it is spelled through.
        self._end = min(stop, len(base.known.text) - (not base.through))
        self._stages = self._all()

    def branches(self) -> list[Branch]:
        """What to evaluate next, nothing when all is done. It sets the lattice's effort."""
        return next((branches for branches in self._stages if branches), [])

    def _all(self) -> Iterator[list[Branch]]:
        for _ in range(_ROUNDS):
            self._lattice.effort = _EFFORT
            self._lattice.sum(self._stop)
            yield self._batches.plan(self._candidates.wanted(self._stop))
        yield from self._improved()
        base = self._base
        races = Races(self._walk(), base.known.text, self._start, self._end, base.too_deep)
        while branches := races.branches():
            yield branches
        yield from self._improved()

    def _improved(self) -> Iterator[list[Branch]]:
        """Go along the best path that is known, if it proves better."""
        before = self._walk()
        tokens = better(before, self._start, self._end, _PAYS)
        if tokens is None:
            return
        base = self._base
        base.respell(tokens)
        yield base.branches(self._lattice, Portion(base.tokens_before(self._stop), self._stop))
        after = self._walk()
        known = max(p for p in before.starts if p <= self._stop and before.reaches(p))
        # One that ends before, as the model's window does, has nothing to go on from.
        ends = not after.reaches(known)
        if ends or after.log_p(self._start, known) <= before.log_p(self._start, known):
            base.respell(before.tokens)

    def _walk(self) -> Walk:
        walk = Walk(list(self._base.tokens), self._base.known.index)
        walk.follow(self._lattice.root)
        return walk
