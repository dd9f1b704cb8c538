"""Evaluated contexts over a known text, and the sums that run through them.

    →p(σ[:t]) = Σ_δ w(δ) · m_δ(σ[|κ(δ)|:t]),     w(δ·token) = w(δ) · p_Δ(token | δ)       (*)

A context is a vertex at the text position where it ends. Each token that spells the next bytes of
the text is an edge to a later position: to the context that it makes, if that is evaluated; else
it is a *candidate*, whose weight is lent to an evaluated context or left out, and which `Effort`
says is worth an evaluation or not.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.known_text.effort import Effort, Tail, agreement, hindsight
from charwise.known_text.ranges import KnownText
from charwise.known_text.ranks import Rivals, floors, reaching

#: Rescale when a running sum falls below this, so that long texts do not underflow.
_SMALL = 1e-120

_LARGE = 1e300

#: A pass keeps what it needs to start again from every so many positions.
_KEPT = 16

#: A candidate lighter than this share, and than this part of θ, is lent without a search for who
#: agrees most.
_LIGHT, _OF_THETA = 1e-6, 1e-2

#: With a tolerance, where a context was evaluated another one's rank counts from this part of θ on.
_RANKED = 2e-4

#: (token, position where it ends, p_Δ(token | context)).
Edge = tuple[int, int, float]


class Vertex:
    """An evaluated context: its node in the token tree, and how the text may go on from it.

    Attributes:
        node: in the token tree.
        position: where in the text it ends.
        tail: its tokens after the root, latest first.
        depth: how many these are.
        starting: masses of the tokens that start with `text[position:][:d + 1]`, for d = 0, 1, …
        longer: the same without the tokens that end there: those that go on.
        edges: the tokens that spell the next bytes, if the context that they make is not evaluated.
        followed: the evaluated contexts that such tokens make, with their mass.
        children: all evaluated contexts that are one token longer, by that token.
        end: mass of the end tokens.
        next_bytes: what `next_bytes.rows_of` says of it, if that was asked for.
        weight: →p_Δ, and what was lent to it, as of the last pass, in units of its scale there.
        arrived: the same without what was lent to it there.

    >>> Vertex(node=0, position=3, tail=(7, None), depth=1).weight
    0.0
    """

    __slots__ = (
        "arrived", "children", "depth", "edges", "end", "followed", "longer", "next_bytes", "node",
        "position", "starting", "tail", "weight",
    )  # fmt: skip

    def __init__(
        self,
        node: int,
        position: int,
        tail: Tail,
        depth: int,
        starting: Sequence[float] = (),
        edges: Sequence[Edge] = (),
        end: float = 0.0,
    ) -> None:
        self.node = node
        self.position = position
        self.tail = tail
        self.depth = depth
        self.starting = starting
        self.edges = list(edges)
        self.longer = list(starting)
        for _, stop, mass in edges:
            if (d := stop - position - 1) < len(self.longer):
                self.longer[d] = max(0.0, self.longer[d] - mass)
        self.followed: list[tuple[Vertex, float]] = []
        self.children: dict[int, Vertex] = {}
        self.end = end
        self.next_bytes: NDArray[np.float64] | None = None
        self.weight = self.arrived = 0.0

    def follow(self, token: int, child: Vertex) -> None:
        """Let a token lead to a context that was evaluated; one of no mass adds nothing to it."""
        self.children[token] = child
        for n, (other, _, mass) in enumerate(self.edges):
            if other == token:
                del self.edges[n]
                self.followed.append((child, mass))
                return

    def mass(self, token: int) -> float:
        """p_Δ(token | context) of a token that spells the next bytes of the text."""
        if token in self.children:
            there = self.children[token]
            return next((mass for child, mass in self.followed if child is there), 0.0)
        return next((mass for other, _, mass in self.edges if other == token), 0.0)


class Branch(NamedTuple):
    """Contexts to evaluate: those that tokens make one after the other, after a vertex.

    >>> root = Vertex(node=0, position=0, tail=None, depth=0)
    >>> Branch(root, [7, 8]).after(0) == Branch(root, [7, 8])
    True
    """

    parent: Vertex
    tokens: Sequence[int]

    def after(self, done: int) -> Branch:
        """What is left of it when the first of its contexts have been evaluated."""
        parent = self.parent
        for token in self.tokens[:done]:
            parent = parent.children[token]
        return Branch(parent, self.tokens[done:])


#: A candidate, by the position where it ends: (parent, token, weight).
Candidate = tuple[Vertex, int, float]


class Wanted(NamedTuple):
    """A candidate worth evaluating: the context of `parent`, and `token` up to `position`.

    >>> parent = Vertex(node=0, position=0, tail=None, depth=0)
    >>> Wanted(0.1, parent, token=3, position=2, share=0.1).tail
    (3, None)
    """

    rho: float  # its share of the mass at `position`
    parent: Vertex
    token: int
    position: int
    share: float  # what that may rise to, by hindsight

    @property
    def tail(self) -> Tail:
        """Its tokens, latest first."""
        return (self.token, self.parent.tail)


class _Front(NamedTuple):
    """What the contexts before a position send on to it and beyond: all that a pass starts from."""

    position: int
    log_scale: float  # log of the unit of all that follows
    sums: list[float]  # [deepest + 1] what they add to →p(text[:position + d])
    weights: dict[Vertex, float]  # of evaluated contexts there and beyond
    candidates: dict[int, list[Candidate]]


class _Seen:
    """The candidates that a pass came by, in the order of the text: a column each."""

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.shares: list[float] = []  # ρ
        self.agreed: list[int] = []  # tokens in common with whom it was lent to; −1: not known
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
        floor: `[len(text) + 1]` least share that is worth an evaluation by its rank there.
        error: `[len(text) + 1]` estimated error of log p(text[t - 1] | text[:t - 1]), nats.

    >>> from charwise.tokens.index import SortedVocabulary
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab"]))
    >>> root = Vertex(node=0, position=0, tail=None, depth=0)
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
        self.floor: NDArray[np.float64] = np.full(size, np.inf)
        self.error: NDArray[np.float64] = np.zeros(size)
        self._seen = _Seen()
        # Where passes may start again: the first place, and those kept on the way; before where
        # something changed since the last pass, which went to `_stop` and left `_reached`.
        self._fronts: list[_Front] = []
        self._changed = self._stop = 0
        # From where on the floors are to be found anew, and the width that they are of.
        self._unranked, self._width = 0, 0
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
        >>> root = Vertex(0, 0, None, 0, starting=[0.75, 0.25], edges=[(0, 1, 0.5)])
        >>> lattice = Lattice(KnownText.of(b"ab", index), root, Effort(1e-3, 0.5), through=False)
        >>> lattice.sum(stop=2)
        >>> [wanted.tail for wanted in lattice.wanted(stop=2)]  # [a], not evaluated yet
        [(0, None)]
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
        seen = self._seen
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
                weight, s = vertex.weight, t
                for mass in vertex.starting:
                    s += 1
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
        there = self.at[t : t + deepest + 1]
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
        self._seen.cut(fronts[-1].position)
        self._unranked = min(self._unranked, fronts[-1].position)
        return fronts[-1]

    def freeze(self) -> list[Vertex]:
        """End all work on what the last pass covered; later passes start where it stopped.

        Nothing that comes later changes the sums before it. Returns the vertices that later
        passes still refer to: the nodes of all others, their ancestors apart, can be dropped.
        """
        self._base = self._reached
        self._fronts, self._seen, self._changed = [], _Seen(), self.frozen
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

    def _settle(self, t: int, total: float, candidates: list[Candidate], seen: _Seen) -> None:
        """Lend or leave out the candidates that end at t, and add them to those seen."""
        here = self.at[t]
        lend = bool(here) and self.effort.gamma < 1.0
        missing = lent = 0.0
        light = min(_LIGHT, self.effort.theta * _OF_THETA)
        for vertex in here:
            vertex.arrived = vertex.weight
        heaviest = max(here, key=lambda vertex: vertex.weight, default=self.root)
        for parent, token, weight in candidates:
            rho, agreed = weight / total, -1
            if lend:
                to = heaviest
                if rho >= light:
                    to, agreed = self._closest(t, (token, parent.tail), weight, heaviest)
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

    def wanted(self, stop: int) -> list[Wanted]:
        """Of the candidates seen, those worth an evaluation, now that what follows is known."""
        seen = self._seen
        if not seen.positions:
            return []
        effort, start = self.effort, self.frozen
        position, rho = np.array(seen.positions), np.array(seen.shares)
        rise = hindsight(self.log_prefix[start:stop])[position - start]
        share = np.minimum(1.0, rho * rise)
        self._rank(stop)
        heavy = rho >= self.floor[position]
        alone = np.array([not here for here in self.at[start:stop]])[position - start]
        maybe = (share >= effort.theta) | (alone & (rho >= effort.first)) | heavy
        chosen = []
        for n in np.flatnonzero(maybe & (rho > 0)).tolist():
            if alone[n] or heavy[n] or effort.worth(float(share[n]), self._agreed(seen, n)):
                chosen.append(n)
        # Whatever θ is, the better part is never left out.
        for t in np.setdiff1d(position[self.missing[position] > 0.5], position[chosen]).tolist():
            chosen.append(int(np.argmax(np.where(position == t, rho, -1.0))))
        return [
            Wanted(
                seen.shares[n], seen.parents[n], seen.tokens[n], seen.positions[n], float(share[n])
            )
            for n in chosen
        ]

    def _rank(self, stop: int) -> None:
        """Set the floors where sums or the width have changed since they were set."""
        width, seen = self.effort.width, self._seen
        if not width:
            return
        start = self.frozen if width != self._width else max(self.frozen, self._unranked)
        self._width, self._unranked = width, stop
        if start >= stop:
            return
        first, begin = max(0, start - self.known.deepest), bisect_left(seen.positions, start)
        some = [vertex for here in self.at[first:stop] for vertex in here if vertex.weight > 0]
        positions = [vertex.position for vertex in some]
        weights = np.array([vertex.weight for vertex in some])
        at, weights = reaching(positions, weights, [vertex.longer for vertex in some])
        scale = np.array(self.log_scale)[np.repeat(positions, [len(v.longer) + 1 for v in some])]
        at = np.minimum(at, len(self.log_prefix) - 1)
        with np.errstate(invalid="ignore", over="ignore"):
            shares = np.nan_to_num(weights * np.exp(scale - self.log_prefix[at]), posinf=0.0)
        ends = np.append(at, seen.positions[begin:]).astype(int)
        rivals = Rivals(ends, np.append(shares, seen.shares[begin:]))
        found = floors(rivals, start, stop, width)
        taken = np.array([bool(here) for here in self.at[start:stop]])
        least = 0.0 if self.effort.tolerance is None else self.effort.theta * _RANKED
        self.floor[start:stop] = np.where(taken, np.maximum(found, least), found)

    def _agreed(self, seen: _Seen, n: int) -> int:
        """On how many tokens a candidate agrees with an evaluated context at its position."""
        if self.effort.gamma >= 1.0:
            return 0  # it counts for nothing
        if seen.agreed[n] >= 0:
            return seen.agreed[n]
        return self._closest(seen.positions[n], (seen.tokens[n], seen.parents[n].tail))[1]

    def _closest(
        self, t: int, tail: Tail, weight: float = 0.0, heaviest: Vertex | None = None
    ) -> tuple[Vertex, int]:
        """The evaluated context at t that agrees longest with these tokens, and how long.

        Of several, the heaviest; where none agrees, the heaviest of all. None that arrived there
        lighter than this weight: it would grow out of all proportion, a loan on a loan.
        """
        here = self.at[t]
        best, longest = heaviest or max(here, key=lambda vertex: vertex.arrived), 0
        last = tail[0] if tail else None
        for vertex in here:
            # Most differ in their last token, and need no more than this look.
            if vertex.tail is None or vertex.tail[0] != last or vertex.arrived < weight:
                continue
            agreed = agreement(tail, vertex.tail)
            if agreed > longest or (agreed == longest and vertex.arrived > best.arrived):
                best, longest = vertex, agreed
        return best, longest
