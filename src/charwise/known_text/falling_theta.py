"""θ of a portion: it falls, step by step, until the estimated error is within the tolerance.

A step is a few rounds with one θ. At its end the error is estimated (`estimate.py`), and a finer θ
follows while that is too much, rounds and contexts are left, and θ is not at its least.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from charwise.known_text.base_path import Portion
from charwise.known_text.disagreement import Disagreement
from charwise.known_text.effort import FINER, Effort
from charwise.known_text.estimate import at_least, byte_errors, changes, in_hard_text
from charwise.known_text.lattice import Lattice
from charwise.known_text.loans import on_loan
from charwise.known_text.runs import made_again, over_and_over
from charwise.known_text.sections import Sections

#: Contexts that any portion may take, beside those that its length allows.
_SPARE = 250

#: Most rounds with a θ on the way to a tolerance, but where nothing spells the portion after them:
#: then as many again. What is left is wanted by the next θ too. A θ
#: whose error is within the tolerance may take up to `_LAST` before that is believed.
_STEP, _LAST = 4, 6

#: The same before a cursor, where a round is a call of a few contexts: with the first θ, and with
#: later ones.
_AT_CURSOR = (1, 2)

#: An estimate says little of a text that has few contexts: a score has so many at least, or
#: so many over its tolerance if those are fewer, where θ need not fall below this for it.
_FEWEST, _FEW_AT_ONE, _FALLS_TO = 256, 40, 1e-3


class FallingTheta:
    """Sets the effort of a lattice, portion by portion and step by step, and counts the rounds.

    Args:
        lattice: whose effort it sets, and whose errors it writes.
        sections: what was respelled and what was not tried, which adds to the error.
        effort: how much to spend.
        watch: another error that must fall below the tolerance, asked for after each step.
        at_cursor: whether a round is a call of a few contexts, of which there should be few.
        score: whether few contexts are not enough, whatever the error is estimated at.

    Attributes:
        limited: whether the error that is stated is above the tolerance: a limit on contexts,
            rounds or respellings ended the work, or no finer θ makes it less.

    >>> from charwise.known_text.base_path import BasePath
    >>> from charwise.known_text.ranges import KnownText
    >>> from charwise.known_text.vertex import Vertex
    >>> from charwise.tokens.index import SortedVocabulary
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> known = KnownText.of(b"a", SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab"])))
    >>> root = Vertex(0, 0, (), 0, starting=[0.75], edges=[(0, 1, 0.5)])
    >>> effort = Effort(0.01, 0.1)
    >>> lattice = Lattice(known, root, effort, through=False)
    >>> base = BasePath(known, [0], through=False, deepest=None, to_end=True)
    >>> theta = FallingTheta(lattice, Sections(lattice, base, lends=True), effort)
    >>> theta.begin(tokens=1, asked=0)
    >>> lattice.sum(stop=2)
    >>> lattice.effort.theta, theta.goes_on(base.portion(0, 1)), lattice.effort.theta
    (0.05, True, 0.01)
    """

    def __init__(
        self,
        lattice: Lattice,
        sections: Sections,
        effort: Effort,
        watch: Callable[[Lattice], float] | None = None,
        *,
        at_cursor: bool = False,
        score: bool = False,
    ) -> None:
        self._lattice = lattice
        self._sections = sections
        self._effort = effort
        self._watch = watch
        self._at_cursor = at_cursor
        self._score = score
        self._disagreement = Disagreement(lattice)
        self._made_again = made_again(lattice.known.text)
        self._over_and_over = over_and_over(lattice.known.text)
        self._errors = lattice.error.copy()  # before those of hard text are raised
        self.limited = False
        # In the portion: θ, rounds taken, those of this θ and the most of them; contexts that there
        # were before it, and the most to spend on it; log →p as of the step before.
        self._theta, self._taken, self._in_step, self._longest = effort.steps[0], 0, 0, 0
        self._begun = self._most = 0
        self._before: NDArray[np.float64] | None = None

    def begin(self, tokens: int, asked: int) -> None:
        """Begin a portion with the first θ.

        Args:
            tokens: how many of the base path the portion has.
            asked: contexts that are evaluated first, whatever θ is: they do not count.
        """
        self._begun, self._taken, self._before = len(self._lattice.vertices) + asked, 1, None
        self._most = self._allowed(tokens)
        self._take(self._effort.steps[0])

    def _allowed(self, tokens: int) -> int:
        """Most contexts to spend on a portion of so many tokens."""
        tolerance = self._effort.tolerance
        return 10**12 if tolerance is None else int(_SPARE + tokens * (16 + 0.1 / tolerance))

    def _take(self, theta: float) -> None:
        self._theta, self._in_step = theta, 0
        self._longest = _AT_CURSOR[self._before is not None] if self._at_cursor else _STEP
        self._lattice.effort = self._effort.at(theta)

    def aside(self, asked: int) -> None:
        """So many contexts are evaluated before the first θ: they do not count."""
        self._begun += asked

    def resume(self, tokens: int) -> None:
        """Set the effort of the lattice again, now that the portion has so many tokens."""
        self._lattice.effort = self._effort.at(self._theta)
        self._most = self._allowed(tokens)

    @property
    def brought(self) -> int:
        """Contexts that the portion brought, but for those that do not count."""
        return len(self._lattice.vertices) - self._begun

    @property
    def rounds_left(self) -> bool:
        """Whether the portion may take another round."""
        return self._taken < self._effort.rounds

    @property
    def spent(self) -> bool:
        """Whether rounds or contexts of the portion are used up.

        The first θ may spend half of the contexts: of one step alone too little is known.
        """
        most = self._most // 2 if self._before is None else self._most
        return not self.rounds_left or self.brought >= most

    @property
    def step_over(self) -> bool:
        """Whether this θ has had its rounds, on the way to a tolerance."""
        return self._in_step >= self._longest and self._effort.tolerance is not None

    @property
    def again_at_cursor(self) -> bool:
        """Whether this θ has had a round before a cursor: another is for few contexts."""
        return self._at_cursor and self._in_step > 0 and self._effort.tolerance is not None

    def count(self, asked: int) -> None:
        """Count a round, in which so many contexts are evaluated whatever θ is."""
        self._taken, self._in_step = self._taken + 1, self._in_step + 1
        self._begun += asked

    def goes_on(self, portion: Portion) -> bool:
        """End a step: estimate the error, and say whether there is more to do.

        That may be with the same θ, where its rounds were cut short, or with a finer one. While
        nothing spells the portion, there is no error to estimate.
        """
        lattice, tolerance = self._lattice, self._effort.tolerance
        first, stop = max(0, lattice.frozen - 1), min(portion.stop, len(lattice.known.text) + 1)
        part = slice(first, stop)
        after = lattice.log_prefix[part].copy()
        if not np.isfinite(after[-1]) and self.step_over and not self.spent:
            # Nothing spells the portion yet: where canonical tokens are impossible, what does is
            # found a token a round.
            self._longest += _STEP
            return True
        self._disagreement.compare(first, stop)
        lent, missing = on_loan(lattice, first, stop), lattice.missing[part]
        errors = byte_errors(after, lent, missing, self._disagreement.nats)
        if self._before is not None:
            there = self._over_and_over[first : stop - 1]
            errors[there] = at_least(errors[there], changes(self._before, after)[there])
        if not self.rounds_left:
            self._sections.end()
        doubts = self._sections.doubts(first, after)
        doubts += errors * (self._made_again[first : stop - 1] - 1.0)
        enough = self._enough(errors, after)
        if self._watch is not None and portion.stop > len(lattice.known.text):
            off = self._watch(lattice)
            enough &= tolerance is None or off <= (self._effort.variation or tolerance)
        cut_short = self.step_over and not self.spent and self._longest < _LAST
        if enough and cut_short and not self._at_cursor:
            self._longest = _LAST
            return True
        last, left = self._effort.steps[1], self.rounds_left and self.brought < self._most
        more = (not enough or self._few(portion)) and left and self._theta > last
        self._errors[first + 1 : stop] = lattice.error[first + 1 : stop] = errors + doubts
        if self._score and not more:
            lattice.error[first + 1 : stop] = in_hard_text(self._errors[1:stop], len(errors))
        if tolerance is not None and not more:
            # No finer θ takes doubts away, but they are stated.
            self.limited |= not enough or not _within(lattice.error[first + 1 : stop], tolerance)
        self._before = after
        if more:
            self._take(max(last, self._theta / FINER))
        return more

    def _few(self, portion: Portion) -> bool:
        """Whether a score ends here with too few contexts for its error to be believed."""
        if self._effort.tolerance is None or not self._score or self._theta <= _FALLS_TO:
            return False
        if portion.stop <= len(self._lattice.known.text):
            return False  # what is left brings more
        return len(self._lattice.vertices) < min(_FEWEST, _FEW_AT_ONE / self._effort.tolerance)

    def _enough(self, errors: NDArray[np.float64], after: NDArray[np.float64]) -> bool:
        """Whether the estimated errors of bytes are within the tolerance."""
        if self._before is None:
            return False
        if self._effort.tolerance is None:
            return True
        # All that was followed may end in contexts that do not go on: then nothing is known.
        return _within(errors, self._effort.tolerance) and bool(np.isfinite(after).all())


def _within(errors: NDArray[np.float64], tolerance: float) -> bool:
    """Whether errors in nats are, in the mean, within a tolerance in bits."""
    return float(errors.sum()) <= tolerance * math.log(2) * len(errors)
