"""Tries other ways to split what a text repeats, beside the rounds: see `respellings.py`.

A respelling shows what it is worth only where it has come by several occurrences, so it is followed
along all of its path, which is as before elsewhere, whatever its share is on the way. What tells is
its *gain*: by how much its path is more likely than the base path up to the same byte. Neither
takes a sum over the lattice, so a path may run ahead of what is summed.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from charwise.coverings.log_sums import log
from charwise.known_text.respellings import Place, Respelling
from charwise.known_text.runs import OFTEN
from charwise.known_text.trial import Trial
from charwise.known_text.vertex import Branch, Vertex, contexts_of
from charwise.known_text.walk import Walk
from charwise.tokens.index import SortedVocabulary

#: How often respellings are tried: each time but the first on a base path that was respelled, or
#: late, from the second place on that differs, where none was better from the first.
_SWEEPS = 7

#: A respelling that differs at more places than this is tried late.
_LATE = 9

#: A respelling whose first place costs so much, in nats, is tried from the second on, too.
_COSTLY = 2.0

#: By so much, in nats, a respelling that waits for others must be better than these.
_BETTER = 1.0

#: Of the respellings that wait so many are followed beyond their second place, and so many to it:
#: there may be dozens of one run or word, and each takes as much room.
_FOLLOWED, _BEGUN = 4, 16

#: Share of the surprisal of what repeats often that a split may save which was not followed to its
#: end, for want of room, with this gain or more.
_DOUBT, _DOUBTED = 0.03, -4.0


class Repeats:
    """Tries respellings of what a section of the text repeats: at one place, at two, then at all.

    A base path, at first the canonical tokens, is respelled one stretch at a time. The respelling
    that proves best becomes the base, and the others are tried again on that.

    Args:
        found: the respellings of the whole text.
        tokens: the base path: tokens from the beginning of the text.
        index: their vocabulary.
        begin, stop: the bytes of the section; the base path is evaluated up to its end.
        most: contexts to spend on all of them, at most, before one is taken; and as many on those
            that wait.
        too_deep: whether a context of so many tokens that ends there has no room to go on.

    Attributes:
        index: the vocabulary.
        base: the base path as it is now, which later sections begin with.
        untried: respellings of what repeats often that there was no room for, as of the last time
            that they were tried, and of the time before if that was late.
        done: whether there is nothing left to try.
    """

    def __init__(
        self,
        found: Sequence[Respelling],
        tokens: list[int],
        index: SortedVocabulary,
        begin: int,
        stop: int,
        most: int,
        too_deep: Callable[[int, int], bool],
    ) -> None:
        self.index, self.base = index, Walk(tokens, index)
        self._most = most
        self._too_deep = too_deep
        self._start, self._stop = begin, stop
        self._found = [one for one in found if len(self._inside(one.places)) > 1]
        self._trials: list[Trial] | None = None
        self._best: Trial | None = None
        self._shortened: Trial | None = None  # the best that was tried from its second place on
        self._waiting: list[Trial] = []
        self._sweeps, self._late = _SWEEPS, False
        self.untried: list[Respelling] = []
        self._left = most
        self.done = not self._found

    def _inside(self, places: Sequence[Place]) -> tuple[Place, ...]:
        return tuple(p for p in places if self._start <= p.start and p.stop <= self._stop)

    def branches(self, root: Vertex) -> list[Branch]:
        """What to evaluate next, nothing when all is done; the root is the context before the text.

        What was asked for before has been evaluated.
        """
        while not self.done:
            if self._trials is None:
                self.base.follow(root)
                trials, self._best, self._left = self._begin(), None, self._most
                self._trials = [trial for trial in trials if not trial.respelling.waits]
                self._waiting = [trial for trial in trials if trial.respelling.waits]
                self.untried = self.untried if self._late else []
            if asked := self._asked(self._trials):
                return asked
            if self._waiting:
                self._trials, self._waiting = self._waiting, []
                self._left = self._most
                continue
            if later := self._from_second_place():
                return [later]
            self._sweeps, self._trials = self._sweeps - 1, None
            self.done = not self._sweeps or (self._best is None and self._late)
            # One may be better that begins after the usual tokens were seen once.
            self._late = self._best is None
            best, self._best = self._best, None
            if best and (rest := self._adopt(best)):
                return [rest]
        return []

    def _asked(self, trials: list[Trial]) -> list[Branch]:
        """What trials need evaluated next, the best first; those that need nothing have ended."""
        for trial in trials:
            self._weigh(trial)
        trials.sort(key=lambda trial: trial.gain, reverse=True)
        if all(trial.respelling.waits and trial.reached >= 0 for trial in trials):
            twice = all(trial.reached > 0 for trial in trials)
            trials = trials[: _FOLLOWED if twice else _BEGUN]
        trials = self._with_room(trials)
        asked = [(trial, more) for trial in trials if (more := self._more(trial))]
        self._trials = [trial for trial, _ in asked]
        return [branch for _, branch in asked]

    def _with_room(self, trials: list[Trial]) -> list[Trial]:
        """Of trials that have come by two places, the best, as many as there is room to end."""
        left, kept = self._left, list[Trial]()
        for trial in trials:
            if trial.reached > 1 and trial.hopeful:
                rest = len(self.base.between(trial.places[trial.reached - 1 :]))
                if kept and rest > left:
                    self._doubt(trial)
                    continue
                left -= rest
            kept.append(trial)
        return kept

    def end(self) -> None:
        """Try no more: the best is the base, and what has not come to its end is doubted."""
        for trial in self._trials or []:
            self._doubt(trial)
        if self._best:
            self._adopt(self._best)
        self.done = True

    def _from_second_place(self) -> Branch | None:
        """The best respelling once more, from its second place on, if the first cost it much.

        Where a text begins, or a word comes first, other tokens may cost more than later.
        """
        if self._best is None or self._best is self._shortened:
            return None
        self._shortened = best = self._best
        first, places = best.places[0], best.places[1:]
        vertex, log_p = self.base.vertex(first.start), 0.0
        for token in first.tokens:
            log_p += log(vertex.mass(token))
            vertex = vertex.children[token]
        if log_p > self.base.log_p(first.start, first.stop) - _COSTLY or len(places) < 2:
            return None
        vertex, spent = self.base.vertex(places[0].start), self.base.spent(places)
        later = Trial(best.respelling, places, spent, vertex, reached=len(places))
        later.gain = -math.inf  # not known yet, and in no doubt: it is better as it was
        self._trials = [later]
        return self._ask(later, self.base.between(places))

    def _doubt(self, trial: Trial) -> None:
        if not trial.respelling.waits and len(trial.places) >= OFTEN and trial.gain > _DOUBTED:
            self.untried.append(trial.respelling._replace(places=trial.places))

    def doubts(self, start: int, log_prefix: NDArray[np.float64]) -> NDArray[np.float64]:
        """Error to expect at each byte from `start` on for what there was no room to try."""
        doubted = np.zeros(len(log_prefix) - 1, dtype=bool)
        for one in self.untried:
            for place in one.places[1:]:
                doubted[max(0, place.start - start) : max(0, place.stop - start)] = True
        falls = np.zeros(len(doubted))
        np.subtract(log_prefix[:-1], log_prefix[1:], out=falls, where=doubted)
        return _DOUBT * falls

    def _begin(self) -> list[Trial]:
        """The respellings whose first token may be made up for."""
        trials, kept = list[Trial](), list[Respelling]()
        for one in self._found:
            often, places = self._places(one)
            if len(places) < (OFTEN if one.waits else 2):
                continue
            vertex, share = self.base.first(places[0])
            trial = Trial(one, places, self.base.spent(places), vertex, gain=share)
            if trial.hopeful and (often or not self._late):
                trials.append(trial)
            if trial.hopeful or often or self._late:
                kept.append(one)
        self._found = kept
        return trials

    def _places(self, one: Respelling) -> tuple[bool, tuple[Place, ...]]:
        """Whether a respelling has many places, and those that are tried.

        They begin with the first that the base path spells otherwise, late with the second. One
        alone is an alternative like any other.
        """
        inside = self._inside(one.places)
        base = self.base
        places = [place for place in inside if base.reaches(place.stop) and base.tokens_at(place)]
        differ = [n for n, place in enumerate(places) if base.tokens_at(place) != place.tokens]
        often = len(differ) > _LATE
        skipped = int(self._late and often)
        return often, tuple(places[differ[skipped] :] if len(differ) > skipped else ())

    def _more(self, trial: Trial) -> Branch | None:
        """What a respelling needs evaluated next: all of its first place, two, twice as many."""
        places, done = trial.places, max(0, trial.reached)
        spelled: Sequence[int] = places[0].tokens[:-1]  # all that the first place needs
        if trial.reached < 0:
            trial.reached = 0
            if spelled:
                return self._ask(trial, spelled)
            self._weigh(trial)
        if done == len(places):
            best = self._best
            first_to_wait = trial.respelling.waits and not (best and best.respelling.waits)
            if trial.gain > (best.gain if best else 0.0) + _BETTER * first_to_wait:
                self._best = trial
            return None
        if not trial.hopeful:
            return None
        if done:
            spelled = self.base.between(places[:done])
        trial.reached = min(len(places), max(2, 2 * done))
        return self._ask(trial, self.base.between(places[: trial.reached])[len(spelled) :])

    def _ask(self, trial: Trial, tokens: Sequence[int]) -> Branch | None:
        """Contexts after those of a trial; without room for them it is doubted."""
        stop = trial.vertex.position + sum(map(self.index.length, tokens))
        deep = self._too_deep(trial.vertex.depth + len(tokens), stop)
        new = contexts_of([Branch(trial.vertex, tokens)])
        if deep or new > self._left:
            self._doubt(trial)
            return None
        self._left -= new
        trial.ahead = tuple(tokens)
        return Branch(trial.vertex, tokens)

    def _weigh(self, trial: Trial) -> None:
        """The gain of a trial, now that what it asked for is evaluated."""
        if trial.reached < 0:
            return
        for token in trial.ahead:
            trial.log_p += log(trial.vertex.mass(token))
            trial.vertex = trial.vertex.children[token]
        trial.ahead = ()
        first, last = trial.places[0], trial.places[max(1, trial.reached) - 1]
        end = 0.0 if trial.reached else log(trial.vertex.mass(first.tokens[-1]))
        trial.gain = trial.log_p + end - self.base.log_p(first.start, last.stop)

    def _adopt(self, trial: Trial) -> Branch | None:
        """Make a respelled path the base, here and in what comes later; returns its rest here.

        Later only as far as there is room in the window, and not at all where there is none here.
        """
        inside = trial.respelling.places
        later = [
            place for place in inside if place.start >= self._stop and self.base.tokens_at(place)
        ]
        base = Walk(self.base.respelled([*trial.places, *later]), self.index)
        while self._ends_early(base):
            if not later:
                return None
            later = later[: len(later) // 2]
            base = Walk(self.base.respelled([*trial.places, *later]), self.index)
        self.base = base
        first = bisect_left(base.starts, trial.vertex.position)
        last = bisect_left(base.starts, self._stop + 1) - 1
        return Branch(trial.vertex, base.tokens[first:last]) if last > first else None

    def _ends_early(self, base: Walk) -> bool:
        """Whether a base path has a context with no room to go on."""
        return any(self._too_deep(n, start) for n, start in enumerate(base.starts[:-1]))
