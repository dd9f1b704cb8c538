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
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from charwise.known_text.respellings import Place, Respelling
from charwise.known_text.runs import OFTEN
from charwise.known_text.trial import Trial
from charwise.known_text.vertex import Branch, Vertex, contexts_of
from charwise.tokens.index import SortedVocabulary

#: How often respellings are tried: each time but the first on a base path that was respelled, or
#: late, from the second place on that differs, where none was better from the first.
_SWEEPS = 7

#: A respelling that differs at more places than this is tried late.
_LATE = 9

#: Where a respelling proved better, others that were not tried may, too: what was lent errs by
#: so much more.
RESPELLED = 2.0

#: A respelling whose first place costs so much, in nats, is tried from the second on, too.
_COSTLY = 2.0

#: By so much, in nats, a respelling that waits for others must be better than these.
_BETTER = 4.0

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
        most: contexts to spend on all of them, at most, before one is taken.
        too_deep: whether a context of so many tokens that ends there has no room to go on.

    Attributes:
        index: the vocabulary.
        tokens: the base path as it is now, which later sections begin with.
        starts: where each of these tokens begins, and the last ends.
        untried: respellings of what repeats often that there was no room for, as of the last time
            that they were tried, and of the time before if that was late.
        adopted: whether a respelling became the base.
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
        self.index = index
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
        self.adopted = False
        self.done = not self._found
        self._set_base(tokens)

    def _inside(self, places: Sequence[Place]) -> tuple[Place, ...]:
        return tuple(p for p in places if self._start <= p.start and p.stop <= self._stop)

    def _set_base(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.starts = list(accumulate(map(self.index.length, tokens), initial=0))
        # Vertices of the base path by position, and log p of its tokens up to there.
        self._base: dict[int, tuple[Vertex, float]] = {}

    def branches(self, root: Vertex) -> list[Branch]:
        """What to evaluate next, nothing when all is done; the root is the context before the text.

        What was asked for before has been evaluated.
        """
        while not self.done:
            if self._trials is None:
                self._walk(root)
                trials, self._best, self._left = self._begin(), None, self._most
                self._trials = [trial for trial in trials if not trial.respelling.waits]
                self._waiting = [trial for trial in trials if trial.respelling.waits]
                self.untried = self.untried if self._late else []
            if asked := self._asked(self._trials):
                return asked
            if self._waiting:
                self._trials, self._waiting = self._waiting, []
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
        asked = [(trial, more) for trial in trials if (more := self._more(trial))]
        self._trials = [trial for trial, _ in asked]
        return [branch for _, branch in asked]

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
        vertex, log_p = self._base[first.start]
        for token in first.tokens:
            log_p += _log(vertex.mass(token))
            vertex = vertex.children[token]
        if log_p > self._base[first.stop][1] - _COSTLY or len(places) < 2:
            return None
        vertex, _ = self._base[places[0].start]
        later = Trial(best.respelling, places, self._spent(places), vertex, reached=len(places))
        later.gain = -math.inf  # not known yet, and in no doubt: it is better as it was
        self._trials = [later]
        return self._ask(later, self._respelled(places))

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

    def _walk(self, root: Vertex) -> None:
        """Find the base path, as far as it is evaluated and has any mass."""
        vertex, log_p = root, 0.0
        self._base = {0: (root, 0.0)}
        for token in self.tokens:
            if token not in vertex.children or not vertex.mass(token):
                break
            log_p += _log(vertex.mass(token))
            vertex = vertex.children[token]
            self._base[vertex.position] = vertex, log_p

    def _begin(self) -> list[Trial]:
        """The respellings whose first token may be made up for."""
        trials, kept = list[Trial](), list[Respelling]()
        for one in self._found:
            often, places = self._places(one)
            if len(places) < (OFTEN if one.waits else 2):
                continue
            vertex, share = self._first(places[0])
            trial = Trial(one, places, self._spent(places), vertex, gain=share)
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
        places = [place for place in inside if place.stop in self._base and self._fits(place)]
        differ = [n for n, place in enumerate(places) if self._now(place) != place.tokens]
        often = len(differ) > _LATE
        skipped = int(self._late and often)
        return often, tuple(places[differ[skipped] :] if len(differ) > skipped else ())

    def _spent(self, places: Sequence[Place]) -> Sequence[float]:
        """For each place what the base path spends at it and all later ones, nats; at last 0."""
        each = [self._base[place.start][1] - self._base[place.stop][1] for place in places]
        return list(accumulate(reversed(each), initial=0.0))[::-1]

    def _first(self, place: Place) -> tuple[Vertex, float]:
        """The context before a place, and the gain of the first token there on the usual one."""
        vertex, _ = self._base[place.start]
        usual = self.tokens[bisect_left(self.starts, place.start)]
        if place.tokens[0] == usual:
            return vertex, 0.0
        return vertex, _log(vertex.mass(place.tokens[0])) - _log(vertex.mass(usual))

    def _fits(self, place: Place) -> bool:
        """Whether a place begins and ends with tokens of the base path."""
        return self._now(place) is not None

    def _now(self, place: Place) -> tuple[int, ...] | None:
        """The tokens of the base path at a place, if it begins and ends with them."""
        first, last = bisect_left(self.starts, place.start), bisect_left(self.starts, place.stop)
        if last == len(self.starts) or self.starts[first] != place.start:
            return None
        return tuple(self.tokens[first:last]) if self.starts[last] == place.stop else None

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
            spelled = self._respelled(places[:done])
        trial.reached = min(len(places), max(2, 2 * done))
        return self._ask(trial, self._respelled(places[: trial.reached])[len(spelled) :])

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
            trial.log_p += _log(trial.vertex.mass(token))
            trial.vertex = trial.vertex.children[token]
        trial.ahead = ()
        first, last = trial.places[0], trial.places[max(1, trial.reached) - 1]
        end = 0.0 if trial.reached else _log(trial.vertex.mass(first.tokens[-1]))
        base = self._base[last.stop][1] - self._base[first.start][1]
        trial.gain = trial.log_p + end - base

    def _respelled(self, places: Sequence[Place]) -> list[int]:
        """The base path from the first of some places to the end of the last, respelled there."""
        out: list[int] = []
        at = bisect_left(self.starts, places[0].start)
        for place in places:
            out += self.tokens[at : bisect_left(self.starts, place.start)]
            out += place.tokens
            at = bisect_left(self.starts, place.stop)
        return out

    def _adopt(self, trial: Trial) -> Branch | None:
        """Make a respelled path the base, here and in what comes later; returns its rest here."""
        self.adopted = True
        later = [p for p in trial.respelling.places if p.start >= self._stop and self._fits(p)]
        places = [*trial.places, *later]
        first = bisect_left(self.starts, places[0].start)
        last = bisect_left(self.starts, places[-1].stop)
        self._set_base([*self.tokens[:first], *self._respelled(places), *self.tokens[last:]])
        first = bisect_left(self.starts, trial.vertex.position)
        last = bisect_left(self.starts, self._stop + 1) - 1
        while last > first and self._too_deep(trial.vertex.depth + last - first, self.starts[last]):
            last -= 1
        return Branch(trial.vertex, self.tokens[first:last]) if last > first else None


def _log(mass: float) -> float:
    return math.log(mass) if mass > 0 else -math.inf
