"""Tries other ways to split what a text repeats, beside the rounds: see `respellings.py`.

A respelling shows what it is worth only where it has come by several occurrences, so it is followed
along all of its path, which is canonical elsewhere, whatever its share is on the way.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from charwise.known_text.lattice import Branch, Lattice, Vertex
from charwise.known_text.respellings import OFTEN, Place, Respelling
from charwise.tokens.index import SortedVocabulary

#: Most nats that a split gains on another at one occurrence.
_GAIN = 4.0

#: Where a respelling proved better, others that were not tried may, too: what was lent errs by
#: so much more.
RESPELLED = 3.0

#: Share of the surprisal of what repeats that another split, which was not tried, may save.
_DOUBT = 0.1


@dataclass
class _Trial:
    """A respelling along a base path, and how far it has been evaluated."""

    respelling: Respelling
    parent: Vertex  # on the base path, at the first place
    places: tuple[Place, ...]
    tokens: list[int]  # asked for so far, after `parent`
    reached: int  # places that they go through


class Repeats:
    """Tries respellings of what a portion of the text repeats: at a place or two, then at all.

    A base path, at first the canonical tokens, is respelled one stretch at a time. A respelling
    that proves better than the base becomes the base, and the others are tried again on that.

    Args:
        found: the respellings of the whole text.
        tokens: the base path: tokens from the beginning of the text.
        index: their vocabulary.
        begin, stop: the bytes in which places are taken.
        theta: share that a respelling must be able to reach.
        most: contexts to spend, at most.
        too_deep: whether a context of so many tokens that ends there has no room to go on.
    """

    def __init__(
        self,
        found: Sequence[Respelling],
        tokens: list[int],
        index: SortedVocabulary,
        begin: int,
        stop: int,
        theta: float,
        most: int,
        too_deep: Callable[[int, int], bool],
    ) -> None:
        self.index = index
        self._least = math.log(max(theta, 1e-300))
        self.left = self._most = most
        self._too_deep = too_deep
        self._stop = stop
        self.untried: list[Respelling] = []
        self._found = [
            Respelling(one.stretch, places)
            for one in found
            for places in (tuple(p for p in one.places if begin <= p.start and p.stop <= stop),)
            if len(places) > 1
        ]
        self._trials: list[_Trial] = []
        self._sweeps = 4
        self.adopted = False
        self._phase = "begin"
        self.tokens, self.starts = tokens, self._edges(tokens)

    def _edges(self, tokens: list[int]) -> list[int]:
        """Where each token begins, and where the last ends."""
        return list(accumulate(map(self.index.length, tokens), initial=0))

    def branches(self, lattice: Lattice) -> list[Branch]:
        """What to evaluate next, after a pass."""
        if not self._found:
            return []
        out, rest = list[Branch](), list[Branch]()
        if self._phase == "some places":
            going = [trial for trial in self._trials if trial.reached < len(trial.places)]
            going.sort(key=lambda t: self._log_share_at(t, t.reached, lattice), reverse=True)
            begun = [trial for trial in going if trial.reached == 1]
            longer = [trial for trial in going if trial.reached > 1]
            most = max(6, len(longer) // 2)
            kept, dropped = [*begun, *longer[:most]], {id(trial) for trial in longer[most:]}
            self._trials = [trial for trial in self._trials if id(trial) not in dropped]
            out = [more for trial in kept if (more := self._more(trial, lattice))]
            self._phase = "some places" if out else "all places"
        if self._phase == "all places" and not out:
            better = self._better(lattice) if self._sweeps else None
            self._phase = "done" if better is None else "begin"
            if better is not None:
                self._adopt(better)
                rest = self._rest(better)
        if self._phase == "begin":
            self._sweeps, self.left = self._sweeps - 1, self._most
            out = rest + self._begin(lattice)
            self._phase = "some places"
        return out

    def doubts(self, start: int, log_prefix: NDArray[np.float64]) -> NDArray[np.float64]:
        """Error to expect at each byte from `start` on for what there was no room to try."""
        errors = np.zeros(len(log_prefix) - 1)
        for one in self.untried:
            for place in one.places[1:]:
                part = slice(place.start - start, place.stop - start)
                errors[part] = np.maximum(errors[part], -_DOUBT * np.diff(log_prefix)[part])
        return errors

    def _begin(self, lattice: Lattice) -> list[Branch]:
        """The first place of each respelling that may come to weigh something, or the first two."""
        log_prefix, rated = lattice.log_prefix, []
        path = self._vertices(lattice)
        for one in self._found:
            places = tuple(p for p in one.places if self._fits(p))
            if len(places) < 2 or places[0].start not in path:
                continue
            parent = path[places[0].start]
            log_rho = self._log_share(parent, places[0].tokens, lattice)
            room = _fall(log_prefix, places[0].stop, places[-1].stop)
            reach = log_rho + min(0.8 * room, _GAIN * (len(places) - 1))
            if reach > self._least:
                rated.append((reach, one, places, parent))
        rated.sort(key=lambda row: row[0], reverse=True)
        out, self._trials = [], []
        for _, one, places, parent in rated:
            # What occurs often may gain much from one place to the next; else the first tells.
            reached = 2 if len(places) >= OFTEN else 1
            tokens = self._respelled(places[:reached])
            deep = self._too_deep(parent.depth + len(tokens), places[reached - 1].stop)
            if len(tokens) > self.left or deep:
                if len(places) >= OFTEN:
                    self.untried.append(one)
                continue
            self.left -= len(tokens)
            self._trials.append(_Trial(one, parent, places, tokens, reached))
            out.append(Branch(parent, tokens))
        return out

    def _more(self, trial: _Trial, lattice: Lattice) -> Branch | None:
        """Twice as many places of a respelling that may still come to weigh something."""
        places, done = trial.places, trial.reached
        share = self._log_share_at(trial, done, lattice)
        if done == len(places):
            return None
        room = lattice.log_prefix[places[done - 1].stop] - lattice.log_prefix[places[-1].stop]
        reach = share + min(0.8 * room, _GAIN * (len(places) - done))
        if reach < self._least:
            return None
        trial.reached = min(len(places), 2 * done)
        tokens = self._respelled(places[: trial.reached])[len(trial.tokens) :]
        depth = trial.parent.depth + len(trial.tokens) + len(tokens)
        deep = self._too_deep(depth, places[trial.reached - 1].stop)
        if len(tokens) > self.left or deep:
            if len(places) >= OFTEN:
                self.untried.append(trial.respelling)
            trial.reached = done
            return None
        self.left -= len(tokens)
        parent = Branch(trial.parent, trial.tokens).after(len(trial.tokens)).parent
        trial.tokens = trial.tokens + tokens
        return Branch(parent, tokens)

    def _better(self, lattice: Lattice) -> _Trial | None:
        """The respelling that outweighs the base path most where both end."""
        best, found = 0.0, None
        path = self._vertices(lattice)
        for trial in self._trials:
            if trial.reached < len(trial.places):
                continue
            stop = trial.places[-1].stop
            there = Branch(trial.parent, trial.tokens).after(len(trial.tokens)).parent
            base = lattice.log_weight(path[stop]) if stop in path else -math.inf
            gain = lattice.log_weight(there) - base
            if gain > best:
                best, found = gain, trial
        return found

    def _adopt(self, trial: _Trial) -> None:
        """Make a respelled path the base."""
        self.adopted = True
        first = bisect_left(self.starts, trial.places[0].start)
        last = bisect_left(self.starts, trial.places[-1].stop)
        self.tokens = [*self.tokens[:first], *trial.tokens, *self.tokens[last:]]
        self.starts = self._edges(self.tokens)

    def _rest(self, trial: _Trial) -> list[Branch]:
        """The base path from the end of a trial to the end of the portion."""
        there = Branch(trial.parent, trial.tokens).after(len(trial.tokens)).parent
        first = bisect_left(self.starts, there.position)
        tokens = [
            token
            for token, end in zip(self.tokens[first:], self.starts[first + 1 :], strict=False)
            if end <= self._stop
        ]
        ends = self.starts[first + 1 :]
        while tokens and self._too_deep(there.depth + len(tokens), ends[len(tokens) - 1]):
            tokens.pop()
        return [Branch(there, tokens)] if tokens else []

    def _vertices(self, lattice: Lattice) -> dict[int, Vertex]:
        """The evaluated contexts of the base path, by position."""
        vertex, found = lattice.root, {0: lattice.root}
        for token in self.tokens:
            if token not in vertex.children:
                break
            vertex = vertex.children[token]
            found[vertex.position] = vertex
        return found

    def _fits(self, place: Place) -> bool:
        """Whether a place begins and ends with tokens of the base path, and differs from it."""
        first, last = bisect_left(self.starts, place.start), bisect_left(self.starts, place.stop)
        if last == len(self.starts) or self.starts[first] != place.start:
            return False
        return self.starts[last] == place.stop and tuple(self.tokens[first:last]) != place.tokens

    def _respelled(self, places: Sequence[Place]) -> list[int]:
        """The base path from the first of some places to the end of the last, respelled there."""
        out: list[int] = []
        at = bisect_left(self.starts, places[0].start)
        for place in places:
            out += self.tokens[at : bisect_left(self.starts, place.start)]
            out += place.tokens
            at = bisect_left(self.starts, place.stop)
        return out

    def _log_share(self, vertex: Vertex, tokens: Sequence[int], lattice: Lattice) -> float:
        """The share that tokens have after a vertex, up to the first that leaves what is known."""
        log_weight = lattice.log_weight(vertex)
        position = vertex.position
        for token in tokens:
            mass = vertex.mass(token)
            if mass <= 0:
                return -math.inf
            log_weight += math.log(mass)
            position += self.index.length(token)
            if token not in vertex.children:
                break
            vertex = vertex.children[token]
        return log_weight - float(lattice.log_prefix[position])

    def _log_share_at(self, trial: _Trial, places: int, lattice: Lattice) -> float:
        """The share of a respelling after some of its places."""
        size = len(self._respelled(trial.places[:places]))
        vertex = Branch(trial.parent, trial.tokens).after(size).parent
        return lattice.log_weight(vertex) - float(lattice.log_prefix[vertex.position])


def _fall(log_prefix: NDArray[np.float64], start: int, stop: int) -> float:
    """By how much the prefix probability falls between two positions; inf to what is not known."""
    before, after = float(log_prefix[start]), float(log_prefix[stop])
    return before - after if math.isfinite(after) else math.inf
