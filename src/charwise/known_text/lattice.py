"""Evaluated contexts over a known text, and the sums that run through them.

    →p(σ[:t]) = Σ_δ w(δ) · m_δ(σ[|κ(δ)|:t]),     w(δ·token) = w(δ) · p_Δ(token | δ)       (*)

A context is a vertex at the text position where it ends. Each token that spells the next bytes of
the text is an edge to a later position: to the context that it makes, if that is evaluated; else
it is a *candidate*, whose weight is lent to an evaluated context or left out. Which of them are
worth an evaluation, `candidates.py` says.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.known_text.effort import Effort, tail_after
from charwise.known_text.ranges import KnownText
from charwise.known_text.vertex import Vertex, by_last_token, closest

#: Rescale when a running sum falls below this, so that long texts do not underflow.
_SMALL = 1e-120

_LARGE = 1e300

#: A pass keeps what it needs to start again from every so many positions.
_KEPT = 16

#: A candidate lighter than this share, and than this part of θ, is lent without a search for who
#: agrees most.
_LIGHT, _OF_THETA = 1e-6, 1e-2

#: A candidate, by the position where it ends: (parent, token, weight).
Candidate = tuple[Vertex, int, float]


class _Front(NamedTuple):
    """What the contexts before a position send on to it and beyond: all that a pass starts from."""

    position: int
    log_scale: float  # log of the unit of all that follows
    sums: list[float]  # [deepest + 1] what they add to →p(text[:position + d])
    weights: dict[Vertex, float]  # of evaluated contexts there and beyond
    candidates: dict[int, list[Candidate]]


class Seen:
    """The candidates that a pass came by, in the order of the text: a column each.

    Attributes:
        positions: where each ends.
        shares: ρ, its share of the mass there.
        agreed: tokens in common with the context that it was lent to; −1 where that is not known.
        parents, tokens: the context before its last token, and that token.

    >>> Seen().positions
    []
    """

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.shares: list[float] = []
        self.agreed: list[int] = []
        self.parents: list[Vertex] = []
        self.tokens: list[int] = []

    def cut(self, position: int) -> None:
        """Forget those that end at a position or beyond."""
        first = bisect_left(self.positions, position)
        for column in (self.positions, self.shares, self.agreed, self.parents, self.tokens):
            del column[first:]


class Lattice:
    """All evaluated contexts of one text, from a root.

    Attributes:
        known: the text.
        root: the context before the text.
        effort: when a candidate is worth an evaluation.
        through: whether contexts that spell the whole text matter too.
        vertices: the evaluated contexts, in the order in which they were added.
        at: `[len(text) + 1]` those that end at each position.
        log_scale: `[len(text) + 1]` log of the unit of the vertices' weights.
        log_prefix: `[len(text) + 1]` log →p(text[:t]), nats, as of the last pass.
        missing: `[len(text) + 1]` share of the mass at t that was left out there.
        lent: `[len(text) + 1]` share of the mass at t that was lent to another context there.
        error: `[len(text) + 1]` estimated error of log p(text[t - 1] | text[:t - 1]), nats.
        seen: the candidates, as of the last pass; none of what is finished.
        renewed: passes have started here or later since `Candidates` last looked, which sets it.

    >>> from charwise.tokens.index import SortedVocabulary
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab"]))
    >>> root = Vertex(node=0, position=0, tail=(), depth=0)
    >>> Lattice(KnownText.of(b"ab", index), root, Effort(1e-3, 0.5), through=False).frozen
    0
    """

    def __init__(self, known: KnownText, root: Vertex, effort: Effort, through: bool) -> None:
        self.known = known
        self.root = root
        self.effort = effort
        self.through = through
        size = len(known.text) + 1
        self.vertices = [root]
        self.at: list[list[Vertex]] = [[] for _ in range(size)]
        self.at[0].append(root)
        self.log_scale = [0.0] * size
        self.log_prefix: NDArray[np.float64] = np.full(size, -np.inf)
        self.missing: NDArray[np.float64] = np.zeros(size)
        self.lent: NDArray[np.float64] = np.zeros(size)
        self.error: NDArray[np.float64] = np.zeros(size)
        self.seen = Seen()
        # Where passes may start again: the first place, and those kept on the way; before where
        # something changed since the last pass, which went to `_stop` and left `_reached`.
        self._fronts: list[_Front] = []
        self._changed = self._stop = 0
        self.renewed = 0
        self._base = self._reached = _Front(0, 0.0, [1.0] + [0.0] * known.deepest, {root: 1.0}, {})

    @property
    def frozen(self) -> int:
        """The position before which all sums are final."""
        return self._base.position

    def add(self, vertex: Vertex, parent: Vertex, token: int) -> None:
        """A newly evaluated context: `token` after `parent`."""
        self._changed = min(self._changed, vertex.position)
        self.vertices.append(vertex)
        self.at[vertex.position].append(vertex)
        parent.follow(token, vertex)

    def log_weight(self, vertex: Vertex) -> float:
        """log w of a context, nats, as of the last pass; −inf if it has none."""
        if vertex.weight <= 0:
            return -math.inf
        return self.log_scale[vertex.position] + math.log(vertex.weight)

    def sum(self, stop: int) -> None:
        """One pass over the text to `stop`, from where something changed since the last.

        >>> from charwise.tokens.index import SortedVocabulary
        >>> from charwise.tokens.vocabulary import Vocabulary
        >>> index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab"]))
        >>> root = Vertex(0, 0, (), 0, starting=[0.75, 0.25], edges=[(0, 1, 0.5)])
        >>> lattice = Lattice(KnownText.of(b"ab", index), root, Effort(1e-3, 0.5), through=False)
        >>> lattice.sum(stop=2)
        >>> lattice.seen.positions, lattice.seen.tokens  # [a], not evaluated yet
        ([1], [0])
        >>> np.exp(lattice.log_prefix[:2]).tolist(), lattice.log_weight(root)
        ([1.0, 0.75], 0.0)
        >>> lattice.freeze(), lattice.frozen
        ([], 2)
        """
        base = self._restart(stop)
        start, log_scale, ahead, _, _ = base
        last, deepest = len(self.known.text), self.known.deepest
        reach = min(last + 1, stop + deepest)
        sums = [0.0] * (reach + deepest + 1)  # of the contexts before t, by the position that adds
        sums[start : start + deepest + 1] = ahead
        candidates = self._resume(base, reach)
        seen = self.seen
        for t in range(start, stop):
            if t % _KEPT == 0 and t > start:
                self._fronts.append(self._front(t, log_scale, sums, candidates))
            if sums[t] <= 0.0:
                continue
            if sums[t] < _SMALL:
                log_scale = self._rescale(t, log_scale, sums, candidates)
            self.log_scale[t] = log_scale
            self.log_prefix[t] = log_scale + math.log(sums[t])
            if t in candidates and (t < last or self.through):
                self._settle(t, sums[t], candidates[t], seen)
            for vertex in self.at[t]:
                weight = vertex.weight
                for s, mass in enumerate(vertex.starting, t + 1):
                    sums[s] += weight * mass
                for child, mass in vertex.followed:
                    child.weight += weight * mass
                for token, end, mass in vertex.edges:
                    candidates[end].append((vertex, token, weight * mass))
        self._reached = self._front(stop, log_scale, sums, candidates)

    def _front(
        self,
        t: int,
        log_scale: float,
        sums: list[float],
        candidates: dict[int, list[Candidate]],
    ) -> _Front:
        """What goes on beyond t, where a pass has come to it."""
        deepest = self.known.deepest
        there = self.at[t : t + deepest]
        weights = {v: v.weight for here in there for v in here if v.weight > 0}
        beyond = {end: list(some) for end, some in candidates.items() if end >= t}
        return _Front(t, log_scale, sums[t : t + deepest + 1], weights, beyond)

    def _restart(self, stop: int) -> _Front:
        """The last front kept before all that changed; what was seen beyond it is forgotten."""
        if self._stop != stop:
            self._changed, self._stop = self.frozen, stop
        fronts = [self._base, *self._fronts]
        while fronts[-1].position > self._changed:
            fronts.pop()
        self._fronts, self._changed = fronts[1:], len(self.known.text) + 1
        self.seen.cut(fronts[-1].position)
        self.renewed = min(self.renewed, fronts[-1].position)
        return fronts[-1]

    def freeze(self) -> list[Vertex]:
        """End all work on what the last pass covered; later passes start where it stopped.

        Nothing that comes later changes the sums before it. Returns the vertices that later
        passes still refer to: the nodes of all others, their ancestors apart, can be dropped.
        """
        self._base = self._reached
        self._fronts, self.seen, self._changed = [], Seen(), self.frozen
        later = [vertex for there in self.at[self.frozen :] for vertex in there]
        parents = (parent for there in self._base.candidates.values() for parent, _, _ in there)
        return [*later, *dict.fromkeys(parents)]

    def _resume(self, base: _Front, reach: int) -> defaultdict[int, list[Candidate]]:
        """Take all back to a front; returns the candidates that are still that.

        Those that were evaluated since then are vertices, and get their weight.
        """
        for there in self.at[base.position : reach]:
            for vertex in there:
                vertex.weight = 0.0
        for vertex, weight in base.weights.items():
            vertex.weight = weight
        candidates: defaultdict[int, list[Candidate]] = defaultdict(list)
        for end, there_too in base.candidates.items():
            for parent, token, weight in there_too:
                child = parent.children.get(token)
                if child is None:
                    candidates[end].append((parent, token, weight))
                else:
                    child.weight += weight
        self.missing[base.position : reach] = self.lent[base.position : reach] = 0.0
        self.log_prefix[base.position : reach] = -np.inf
        return candidates

    def _rescale(
        self,
        t: int,
        log_scale: float,
        sums: list[float],
        candidates: dict[int, list[Candidate]],
    ) -> float:
        """Bring the sum at t to 1, and with it all that contexts before t sent to t and beyond.

        Returns the new log scale.
        """
        for _ in range(2):  # the inverse of the least floats is infinite: in two steps
            factor = min(1.0 / sums[t], _LARGE)
            log_scale -= math.log(factor)
            for s in range(t, min(len(self.at), t + self.known.deepest + 1)):
                sums[s] *= factor
                if s in candidates:
                    candidates[s] = [(v, token, w * factor) for v, token, w in candidates[s]]
                for vertex in self.at[s]:
                    vertex.weight *= factor
        return log_scale

    def _settle(self, t: int, total: float, candidates: list[Candidate], seen: Seen) -> None:
        """Lend or leave out the candidates that end at t, and add them to those seen."""
        here = self.at[t]
        lend = bool(here) and self.effort.gamma < 1.0
        missing = lent = 0.0
        light = min(_LIGHT, self.effort.theta * _OF_THETA)
        for vertex in here:
            vertex.arrived = vertex.weight
        heaviest = max(here, key=lambda vertex: vertex.weight, default=self.root)
        like = by_last_token(here) if lend else {}
        for parent, token, weight in candidates:
            rho, agreed = weight / total, -1
            if lend:
                to = heaviest
                if rho >= light:
                    tail = tail_after(token, parent.tail)
                    to, agreed = closest(like.get(token, ()), tail, weight, heaviest)
                to.weight += weight
                lent += rho
            else:
                missing += rho
            seen.positions.append(t)
            seen.shares.append(rho)
            seen.agreed.append(agreed)
            seen.parents.append(parent)
            seen.tokens.append(token)
        self.missing[t] = missing
        self.lent[t] = lent
