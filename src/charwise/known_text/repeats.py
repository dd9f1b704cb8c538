"""Stretches of text that occur again, and other ways to split them, the same at each occurrence.

A model that sees a word a second time expects it in the tokens in which it came first. So a
tokenization that splits a word in its own way gains on the canonical one at each occurrence, if it
splits it so every time, and an alternative that is tried once does not show it. A *respelling* is
such a path: one stretch split in one other way wherever it occurs, and all else as before.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.errors import TokenizationError
from charwise.known_text.lattice import Branch, Lattice, Vertex
from charwise.tokens.index import SortedVocabulary

#: Longest word that is taken as a whole, in bytes.
_LONGEST = 24
_OFTEN = 4

#: Most nats that a split gains on another at one occurrence.
_GAIN = 4.0

#: Where a respelling proved better, others that were not tried may, too: what was lent errs by
#: so much more.
RESPELLED = 3.0

#: Share of the surprisal of what repeats that another split, which was not tried, may save.
_DOUBT = 0.1


class Place(NamedTuple):
    """An occurrence: the bytes [start, stop), which begin and end with tokens, and its tokens.

    >>> Place(start=3, stop=6, tokens=(7, 8)).stop
    6
    """

    start: int
    stop: int
    tokens: tuple[int, ...]


class Respelling(NamedTuple):
    """Other tokens for each occurrence of a stretch, from left to right.

    >>> Respelling(b"ab", (Place(0, 2, (1, 2)), Place(3, 5, (1, 2)))).places[1].start
    3
    """

    stretch: bytes
    places: tuple[Place, ...]


@dataclass
class _Trial:
    """A respelling along a base path, and how far it has been evaluated."""

    respelling: Respelling
    log_rho: float  # of its first token
    parent: Vertex  # on the base path, at the first place
    places: tuple[Place, ...]
    tokens: list[int]  # asked for so far, after `parent`
    reached: int = 2  # places that they go through


class Repeats:
    """Tries respellings of what a portion of the text repeats: first at two places, then at all.

    A base path, at first the canonical tokens, is respelled one stretch at a time. A respelling
    that proves better than the base becomes the base, and the others are tried again on that.

    Args:
        tokens: the base path: tokens from the beginning of the text.
        index: their vocabulary.
        begin, stop: the bytes in which places are taken.
        theta: share that a respelling must be able to reach.
        most: contexts to spend, at most.
        deepest: most tokens of a context.
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
        deepest: int | None,
    ) -> None:
        self.index = index
        self._least = math.log(max(theta, 1e-300))
        self.left = self._most = most
        self.deepest = deepest
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
        self.set_base(tokens)

    def set_base(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.starts = [0]
        for token in tokens:
            self.starts.append(self.starts[-1] + self.index.length(token))

    def branches(self, lattice: Lattice) -> list[Branch]:
        """What to evaluate next, after a pass."""
        if not self._found:
            return []
        out, rest = list[Branch](), list[Branch]()
        if self._phase == "two places":
            going = [trial for trial in self._trials if trial.reached < len(trial.places)]
            going.sort(key=lambda t: self._log_share_at(t, t.reached, lattice), reverse=True)
            kept = going[: max(6, len(going) // 2)]
            dropped = {id(trial) for trial in going[len(kept) :]}
            self._trials = [trial for trial in self._trials if id(trial) not in dropped]
            out = [more for trial in kept if (more := self._more(trial, lattice))]
            self._phase = "two places" if out else "all places"
        if self._phase == "all places" and not out:
            better = self._better(lattice) if self._sweeps else None
            self._phase = "done" if better is None else "begin"
            if better is not None:
                self._adopt(better)
                rest = self._rest(better)
        if self._phase == "begin":
            self._sweeps, self.left = self._sweeps - 1, self._most
            out = rest + self._begin(lattice)
            self._phase = "two places"
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
        """The first two places of each respelling that may come to weigh something."""
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
                rated.append((reach, log_rho, one, places, parent))
        rated.sort(key=lambda row: row[0], reverse=True)
        out, self._trials = [], []
        for _, log_rho, one, places, parent in rated:
            tokens = self._respelled(places[:2])
            if len(tokens) > self.left or (
                self.deepest is not None and parent.depth + len(tokens) > self.deepest
            ):
                if len(places) >= _OFTEN:
                    self.untried.append(one)
                continue
            self.left -= len(tokens)
            self._trials.append(_Trial(one, log_rho, parent, places, tokens))
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
        if len(tokens) > self.left:
            if len(places) >= _OFTEN:
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
        self.set_base([*self.tokens[:first], *trial.tokens, *self.tokens[last:]])

    def _rest(self, trial: _Trial) -> list[Branch]:
        """The base path from the end of a trial to the end of the portion."""
        there = Branch(trial.parent, trial.tokens).after(len(trial.tokens)).parent
        first = bisect_left(self.starts, there.position)
        tokens = [
            token
            for token, end in zip(self.tokens[first:], self.starts[first + 1 :], strict=False)
            if end <= self._stop
        ]
        if self.deepest is not None:
            tokens = tokens[: max(0, self.deepest - there.depth)]
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


def respellings(text: bytes, canonical: Sequence[int], index: SortedVocabulary) -> list[Respelling]:
    """All ways to split what occurs again otherwise, one change of the canonical tokens each.

    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"b", b" ", b"ab"]))
    >>> [found] = respellings(b"ab ab", [3, 2, 3], index)
    >>> found.stretch, [place.tokens for place in found.places]
    (b'ab', [(0, 1), (0, 1)])
    """
    starts = [0]
    for token in canonical:
        starts.append(starts[-1] + index.length(token))
    found = []
    for stretch, spans in occurrences(text, starts).items():
        splits = dict.fromkeys(
            tuple(end - (stop - len(stretch)) for end in starts[first + 1 : last])
            for first, last in spans
            for stop in (starts[last],)
        )
        others = [*splits, *_other_cuts(stretch, list(splits), index)]
        if len(spans) >= _OFTEN:
            inner = range(1, len(stretch))
            most = len(inner) if len(inner) < 6 else 2
            others += [cuts for k in range(most + 1) for cuts in combinations(inner, k)]
            others.append(tuple(inner))
        for cuts in dict.fromkeys(others):
            places = []
            for first, last in spans:
                whole = text[starts[first] : starts[last]]
                tokens = _tokens(whole, len(whole) - len(stretch), cuts, index)
                if tokens and tokens != tuple(canonical[first:last]):
                    places.append(Place(starts[first], starts[last], tokens))
            if len(places) > 1:
                found.append(Respelling(stretch, tuple(places)))
    return found


def occurrences(text: bytes, starts: Sequence[int]) -> dict[bytes, list[tuple[int, int]]]:
    """What occurs twice or more: words, and tokens inside longer words, without a leading space.

    Args:
        text: σ.
        starts: where its canonical tokens begin, and where the last ends.

    Returns:
        For each stretch the canonical tokens, first and last, of its occurrences.

    >>> occurrences(b"ab ab", [0, 2, 5])
    {b'ab': [(0, 1), (1, 2)]}
    """
    found: dict[bytes, list[tuple[int, int]]] = {}
    for first, last in _words(text, starts):
        word = text[starts[first] : starts[last]].removeprefix(b" ")
        if 1 < len(word) <= _LONGEST:
            found.setdefault(word, []).append((first, last))
        if last - first > 1:
            for n in range(first, last):
                part = text[starts[n] : starts[n + 1]].removeprefix(b" ")
                if len(part) > 1:
                    found.setdefault(part, []).append((n, n + 1))
    return {stretch: spans for stretch, spans in found.items() if len(spans) > 1}


def _words(text: bytes, starts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Runs of tokens that only letters and digits join."""
    first = 0
    for n, start in enumerate(starts[1:], start=1):
        if n == len(starts) - 1 or not (_inside(text[start]) and _inside(text[start - 1])):
            yield first, n
            first = n


def _inside(byte: int) -> bool:
    return byte >= 0x80 or chr(byte).isalnum()


def _other_cuts(
    stretch: bytes, splits: Sequence[tuple[int, ...]], index: SortedVocabulary
) -> Iterator[tuple[int, ...]]:
    """One token of a split made shorter or longer, and what follows split canonically."""
    for cuts in splits:
        for n, (begin, end) in enumerate(pairwise([0, *cuts, len(stretch)])):
            for token in index.prefixes(stretch[begin:]):
                size = index.length(token)
                first, at = stretch[begin : begin + size], begin + size
                if at == end:
                    continue
                yield from _joined((*cuts[:n], at), stretch, index)
                tiled = [*cuts[:n], at]
                while stretch.startswith(first, at) and at + size < len(stretch):
                    at += size
                    tiled.append(at)
                if len(tiled) > n + 1:
                    yield from _joined(tuple(tiled), stretch, index)


def _joined(
    cuts: tuple[int, ...], stretch: bytes, index: SortedVocabulary
) -> Iterator[tuple[int, ...]]:
    """A split that goes on canonically after its last cut, if what is left has tokens."""
    try:
        rest = index.vocabulary.encode(stretch[cuts[-1] :])
    except TokenizationError:
        return
    at = list(cuts)
    for token in rest[:-1]:
        at.append(at[-1] + index.length(token))
    yield tuple(at)


def _tokens(
    whole: bytes, lead: int, cuts: Sequence[int], index: SortedVocabulary
) -> tuple[int, ...]:
    """The tokens of a stretch, after `lead` bytes, cut so; none if one is no token."""
    edges = [0, *(lead + cut for cut in cuts), len(whole)]
    tokens = []
    for begin, end in pairwise(edges):
        lo, hi = index.twins(whole[begin:end])
        if lo == hi:
            return ()
        tokens.append(int(index.ids[lo]))
    return tuple(tokens)
