"""Evaluated contexts over a known text, and the sums that run through them.

    →p(σ[:t]) = Σ_δ w(δ) · m_δ(σ[|κ(δ)|:t]),     w(δ·token) = w(δ) · p_Δ(token | δ)

A context is a vertex at the text position where it ends. Each token that spells the next bytes of
the text is an edge to a later position: to the context that it makes, if that is evaluated; else
it is a *candidate*, whose weight is lent to an evaluated context or left out, and which `Effort`
says is worth an evaluation or not.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.known_text.effort import Effort, Tail, agreement, hindsight
from charwise.known_text.ranges import KnownText

#: Rescale when a running sum falls below this, so that long texts do not underflow.
_SMALL = 1e-120

_LARGE = 1e300

#: A candidate lighter than this share of θ is lent without a search for who agrees most.
_LIGHT = 1e-2

#: (token, position where it ends, p_Δ(token | context)).
Edge = tuple[int, int, float]

#: By position: parent, token and weight of each candidate that ends there, one after the other.
_Pending = defaultdict[int, list[float]]


class Wanted(NamedTuple):
    """A candidate worth evaluating: the context of `parent`, and `token` up to `position`.

    >>> max(Wanted(0.1, 0, 1, 2), Wanted(0.2, 0, 0, 1)).token  # the heavier candidate
    0
    """

    rho: float
    parent: int
    token: int
    position: int


class Vertex:
    """An evaluated context: its node in the token tree, and how the text may go on from it.

    >>> Vertex(node=0, position=3, depth=1, tail=(7, None)).weight
    0.0
    """

    __slots__ = (
        "depth", "edges", "end", "followed", "node", "position", "starting", "tail", "weight",
    )  # fmt: skip

    def __init__(self, node: int, position: int, depth: int, tail: Tail) -> None:
        self.node = node
        self.position = position
        self.depth = depth  # tokens after the root
        self.tail = tail
        self.starting: list[float] = []  # mass of the tokens starting with text[position:][:d + 1]
        self.edges: list[Edge] = []  # to candidates
        self.followed: list[tuple[Vertex, float]] = []  # the evaluated contexts, with their mass
        self.end = 0.0  # mass of the end tokens
        self.weight = 0.0  # in units of the pass's scale at `position`

    def follow(self, token: int, child: Vertex) -> None:
        """Let an edge lead to a context that was evaluated; an edge of no mass is not there."""
        for n, (other, _, mass) in enumerate(self.edges):
            if other == token:
                del self.edges[n]
                self.followed.append((child, mass))
                return

    def mass(self, token: int) -> float:
        """p_Δ(token | context) of a token that spells the next bytes of the text."""
        for child, mass in self.followed:
            if child.tail is not None and child.tail[0] == token:
                return mass
        return next((mass for other, _, mass in self.edges if other == token), 0.0)


class _Base(NamedTuple):
    """What the frozen part of a lattice sends on to the rest."""

    sums: list[float]  # [deepest + 1] prefix sums from the frozen position on
    weights: dict[int, float]  # of vertices beyond it
    pending: list[tuple[int, int, int, float]]  # candidates: parent, token, end, weight
    log_scale: float


class Lattice:
    """All evaluated contexts of one text, from a root.

    Attributes:
        effort: when a candidate is worth an evaluation.
        through: whether contexts that spell the whole text matter too.
        frozen: position before which all sums are final.
        log_prefix: `[len(text) + 1]` log →p(text[:t]), nats, as of the last pass.
        missing: `[len(text) + 1]` share of the mass at t that was left out there.
        lent: `[len(text) + 1]` share of the mass at t that was lent to another context there.

    >>> from charwise.tokens.index import SortedVocabulary
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab"]))
    >>> Lattice(KnownText.of(b"ab", index), Effort(1e-3, 0.5), through=False).frozen
    0
    """

    def __init__(self, known: KnownText, effort: Effort, through: bool) -> None:
        self.known = known
        self.effort = effort
        self.through = through
        self.vertices: list[Vertex] = []
        self.children: dict[tuple[int, int], int] = {}
        size = len(known.text) + 1
        self.at: list[list[int]] = [[] for _ in range(size)]
        self.frozen = 0
        self._base = _Base([1.0] + [0.0] * known.lo.shape[1], {0: 1.0}, [], 0.0)
        self.log_scale = [0.0] * size
        self.log_prefix: NDArray[np.float64] = np.full(size, -np.inf)
        self.missing: NDArray[np.float64] = np.zeros(size)
        self.lent: NDArray[np.float64] = np.zeros(size)

    def add(self, vertex: Vertex, parent: int, token: int) -> int:
        """A newly evaluated context, made by `token` after `parent`; returns its number."""
        number = len(self.vertices)
        self.vertices.append(vertex)
        self.at[vertex.position].append(number)
        self.children[parent, token] = number
        if parent >= 0:
            self.vertices[parent].follow(token, vertex)
        return number

    def tail(self, parent: int, token: int) -> Tail:
        """The tokens of the context `parent · token`, latest first."""
        return (token, self.vertices[parent].tail)

    def log_weight(self, vertex: Vertex) -> float:
        """log w of a context, nats, as of the last pass; −inf if it has none."""
        if vertex.weight <= 0:
            return -math.inf
        return self.log_scale[vertex.position] + math.log(vertex.weight)

    def passage(self, stop: int) -> list[Wanted]:
        """One pass over the text from `frozen` to `stop`: sums anew, and what is wanted next.

        >>> from charwise.tokens.index import SortedVocabulary
        >>> from charwise.tokens.vocabulary import Vocabulary
        >>> index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab"]))
        >>> lattice = Lattice(KnownText.of(b"ab", index), Effort(1e-3, 0.5), through=False)
        >>> vertex = Vertex(node=0, position=0, depth=0, tail=None)
        >>> vertex.starting, vertex.edges = [0.75, 0.25], [(0, 1, 0.5)]
        >>> lattice.add(vertex, -1, -1), lattice.tail(0, 0)
        (0, (0, None))
        >>> [wanted.token for wanted in lattice.passage(stop=2)]  # [a], not evaluated yet
        [0]
        >>> np.exp(lattice.log_prefix[:2]).tolist(), lattice.log_weight(vertex)
        ([1.0, 0.75], 0.0)
        >>> lattice.freeze(), lattice.frozen
        ([], 2)
        """
        size, deepest = len(self.log_prefix), self.known.lo.shape[1]
        vertices, at, start = self.vertices, self.at, self.frozen
        reach = min(size, stop + deepest)
        sums = [0.0] * (reach + deepest + 1)
        sums[start : start + deepest + 1] = self._base.sums
        for t in range(start, reach):
            for v in at[t]:
                vertices[v].weight = 0.0
        pending = self._resumed()
        seen: list[float] = []
        self.missing[start:reach] = self.lent[start:reach] = 0.0
        self.log_prefix[start:reach] = -np.inf
        log_scale = self._base.log_scale
        for t in range(start, stop):
            if sums[t] <= 0.0:
                continue
            if sums[t] < _SMALL:
                for _ in range(2):  # the inverse of the least floats is infinite: in two steps
                    factor = min(1.0 / sums[t], _LARGE)
                    log_scale -= math.log(factor)
                    self._rescale(t, factor, sums, pending)
            self.log_scale[t] = log_scale
            self.log_prefix[t] = log_scale + math.log(sums[t])
            if t in pending and (t < size - 1 or self.through):
                self._settle(t, sums[t], pending[t], seen)
            for v in at[t]:
                vertex = vertices[v]
                weight, s = vertex.weight, t
                for mass in vertex.starting:
                    s += 1
                    sums[s] += weight * mass
                for child, mass in vertex.followed:
                    child.weight += weight * mass
                for token, end, mass in vertex.edges:
                    pending[end] += (v, token, weight * mass)
        self._last = (stop, sums, pending, log_scale)
        return self._wanted(seen, stop)

    def _resumed(self) -> _Pending:
        """The candidates that contexts before `frozen` sent on; evaluated ones get their weight."""
        pending: _Pending = defaultdict(list)
        for v, weight in self._base.weights.items():
            self.vertices[v].weight = weight
        for v, token, end, weight in self._base.pending:
            child = self.children.get((v, token))
            if child is None:
                pending[end] += (v, token, weight)
            else:
                self.vertices[child].weight += weight
        return pending

    def freeze(self) -> list[int]:
        """End all work on what the last pass covered; later passes start where it stopped.

        Nothing that comes later changes the sums before it. Returns the vertices that later
        passes still refer to: the nodes of all others, their ancestors apart, can be dropped.
        """
        stop, sums, pending, log_scale = self._last
        later = [v for t in range(stop, len(self.at)) for v in self.at[t]]
        left = [
            (int(v), int(token), end, weight)
            for end, flat in pending.items()
            if end >= stop
            for v, token, weight in _threes(flat)
        ]
        weights = {v: self.vertices[v].weight for v in later if self.vertices[v].weight > 0}
        deepest = self.known.lo.shape[1]
        self._base = _Base(sums[stop : stop + deepest + 1], weights, left, log_scale)
        self.frozen = stop
        return [*later, *{v for v, *_ in left}]

    def _rescale(self, t: int, factor: float, sums: list[float], pending: _Pending) -> None:
        """Multiply everything that contexts before t have sent to t and beyond."""
        for s in range(t, min(len(self.at), t + self.known.lo.shape[1] + 1)):
            sums[s] *= factor
            if s in pending:
                pending[s][2::3] = [weight * factor for weight in pending[s][2::3]]
            for v in self.at[s]:
                self.vertices[v].weight *= factor

    def _settle(self, t: int, total: float, pending: list[float], seen: list[float]) -> None:
        """Lend or leave out the candidates that end at t, and add them to those seen."""
        here = self.at[t]
        lend = bool(here) and self.effort.gamma < 1.0
        light = self.effort.theta * _LIGHT
        missing = lent = 0.0
        for parent, token, weight in _threes(pending):
            rho, agreed = weight / total, -1
            if lend:
                to = here[0]
                if rho >= light:
                    to, agreed = self._closest(t, int(parent), int(token))
                self.vertices[to].weight += weight
                lent += rho
            else:
                missing += rho
            seen += (t, rho, agreed, parent, token)
        self.missing[t] = missing
        self.lent[t] = lent

    def _wanted(self, seen: list[float], stop: int) -> list[Wanted]:
        """Of the candidates seen, those worth an evaluation, now that what follows is known."""
        effort, wanted = self.effort, list[Wanted]()
        if not seen:
            return wanted
        table = np.array(seen).reshape(-1, 5)
        at, rho = table[:, 0].astype(np.int64), table[:, 1]
        alone = np.array([not here for here in self.at[self.frozen : stop]])[at - self.frozen]
        rise = hindsight(self.log_prefix[self.frozen : stop])[at - self.frozen]
        share = np.minimum(1.0, rho * rise)
        worth = (share >= effort.theta) | (alone & (rho >= effort.first))
        for n in np.flatnonzero(worth & (rho > 0)).tolist():
            t, agreed, parent, token = (int(x) for x in table[n, [0, 2, 3, 4]])
            if alone[n] or effort.gamma >= 1.0:
                agreed = 0
            elif agreed < 0:
                agreed = self._closest(t, parent, token)[1]
            if alone[n] or effort.worth(float(share[n]), agreed):
                wanted.append(Wanted(float(rho[n]), parent, token, t))
        # Whatever θ is, the better part is never left out.
        lost = np.setdiff1d(at[self.missing[at] > 0.5], [w.position for w in wanted])
        for t in lost.tolist():
            n = int(np.argmax(np.where(at == t, rho, -1.0)))
            wanted.append(Wanted(float(rho[n]), int(table[n, 3]), int(table[n, 4]), t))
        return wanted

    def _closest(self, t: int, parent: int, token: int) -> tuple[int, int]:
        """The evaluated context at t that agrees longest with `parent · token`, and how long.

        Of several, the heaviest.
        """
        vertices, tail = self.vertices, self.tail(parent, token)
        best, longest = self.at[t][0], -1
        for v in self.at[t]:
            agreed = agreement(tail, vertices[v].tail)
            if agreed > longest or (
                agreed == longest and vertices[v].weight > vertices[best].weight
            ):
                best, longest = v, agreed
        return best, longest


def _threes(flat: list[float]) -> Iterator[tuple[float, float, float]]:
    """Three items at a time."""
    items = iter(flat)
    return zip(items, items, items, strict=True)
