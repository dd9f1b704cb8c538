"""Evaluated contexts over a known text, and the sums that run through them.

    →p(σ[:t]) = Σ_δ w(δ) · m_δ(σ[|κ(δ)|:t]),     w(δ·token) = w(δ) · p_Δ(token | δ)

A context is a vertex at the text position where it ends. Each token that spells the next bytes of
the text is an edge to a later position: to the context that it makes, if that is evaluated; else
it is a *candidate*. A candidate of relative weight ρ = w / →p(σ[:t]) is worth an evaluation if the
error of doing without it is above θ. Doing without means *lending* its weight to a context at the
same position that is evaluated, one that ends with as many equal tokens as possible: the model
goes on much the same after both, the more so the longer they agree. So a candidate that agrees
with an evaluated context on its last a tokens is wanted while

    ρ · γ^a ≥ θ

γ = 1 never lends: whatever is not evaluated is left out, and every sum is a lower bound.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.known import KnownText

#: Rescale when a running sum falls below this, so that long texts do not underflow.
_SMALL = 1e-120

_LARGE = 1e300

#: Tokens of a context's end that are compared.
TAIL = 12

#: The last tokens of a context, latest first.
Tail = tuple[int, ...]

#: (token, position where it ends, p_Δ(token | context)).
Edge = tuple[int, int, float]


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

    >>> Vertex(node=0, position=3, depth=1, tail=(7,)).weight
    0.0
    """

    __slots__ = ("depth", "edges", "end", "node", "position", "starting", "tail", "weight")

    def __init__(self, node: int, position: int, depth: int, tail: Tail) -> None:
        self.node = node
        self.position = position
        self.depth = depth  # tokens after the root
        self.tail = tail
        self.starting: list[float] = []  # mass of the tokens starting with text[position:][:d + 1]
        self.edges: list[Edge] = []
        self.end = 0.0  # mass of the end tokens
        self.weight = 0.0  # in units of the pass's scale at `position`


class _Base(NamedTuple):
    """What the frozen part of a lattice sends on to the rest."""

    sums: list[float]  # [deepest + 1] prefix sums from the frozen position on
    weights: dict[int, float]  # of vertices beyond it
    pending: list[tuple[int, int, int, float]]  # candidates: parent, token, end, weight
    log_scale: float


class Lattice:
    """All evaluated contexts of one text, from a root.

    Attributes:
        theta, gamma: when a candidate is worth an evaluation, see above.
        through: whether contexts that spell the whole text matter too.
        frozen: position before which all sums are final.
        log_prefix: `[len(text) + 1]` log →p(text[:t]), nats, as of the last pass.
        missing: `[len(text) + 1]` share of the mass at t that was left out there.
        lent: `[len(text) + 1]` share of the mass at t that was lent to another context there.

    >>> from charwise.index import SortedVocabulary
    >>> from charwise.vocabulary import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab"]))
    >>> lattice = Lattice(KnownText.of(b"ab", index), theta=1e-3, gamma=0.5, through=False)
    >>> lattice.worth(0.01, agreed=3), lattice.worth(0.01, agreed=4)
    (True, False)
    """

    def __init__(self, known: KnownText, theta: float, gamma: float, through: bool) -> None:
        self.known = known
        self.theta = theta
        self.gamma = gamma
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
        return number

    def tail(self, parent: int, token: int) -> Tail:
        """The last tokens of the context `parent · token`, latest first."""
        return (token, *self.vertices[parent].tail[: TAIL - 1])

    def worth(self, rho: float, agreed: int) -> bool:
        """Whether a candidate of this weight and agreement earns an evaluation."""
        return rho * self.gamma**agreed >= self.theta and rho > 0

    def log_weight(self, vertex: Vertex) -> float:
        """log w of a context, nats, as of the last pass; −inf if it has none."""
        if vertex.weight <= 0:
            return -math.inf
        return self.log_scale[vertex.position] + math.log(vertex.weight)

    def passage(self, stop: int) -> list[Wanted]:
        """One pass over the text from `frozen` to `stop`: sums anew, and what is wanted next.

        >>> from charwise.index import SortedVocabulary
        >>> from charwise.vocabulary import Vocabulary
        >>> index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab"]))
        >>> lattice = Lattice(KnownText.of(b"ab", index), theta=1e-3, gamma=0.5, through=False)
        >>> vertex = Vertex(node=0, position=0, depth=0, tail=())
        >>> vertex.starting, vertex.edges = [0.75, 0.25], [(0, 1, 0.5)]
        >>> lattice.add(vertex, -1, -1), lattice.tail(0, 0)
        (0, (0,))
        >>> [wanted.token for wanted in lattice.passage(stop=2)]  # [a], not evaluated yet
        [0]
        >>> np.exp(lattice.log_prefix[:2]).tolist(), lattice.log_weight(vertex)
        ([1.0, 0.75], 0.0)
        >>> lattice.freeze(), lattice.frozen
        ([], 2)
        """
        size, deepest = len(self.log_prefix), self.known.lo.shape[1]
        vertices, at, children = self.vertices, self.at, self.children
        start = self.frozen
        sums = [0.0] * (size + deepest + 1)
        sums[start : start + deepest + 1] = self._base.sums
        pending: dict[int, list[tuple[int, int, float]]] = {}
        for t in range(start, size):
            for v in at[t]:
                vertices[v].weight = 0.0
        for v, weight in self._base.weights.items():
            vertices[v].weight = weight
        for v, token, end, weight in self._base.pending:
            child = children.get((v, token))
            if child is None:
                pending.setdefault(end, []).append((v, token, weight))
            else:
                vertices[child].weight += weight
        wanted: list[Wanted] = []
        self.missing[start:] = self.lent[start:] = 0.0
        self.log_prefix[start:] = -np.inf
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
                self._settle(t, sums[t], pending[t], wanted)
            for v in at[t]:
                vertex = vertices[v]
                weight = vertex.weight
                s = t
                for mass in vertex.starting:
                    s += 1
                    sums[s] += weight * mass
                for token, end, mass in vertex.edges:
                    child = children.get((v, token))
                    if child is None:
                        pending.setdefault(end, []).append((v, token, weight * mass))
                    else:
                        vertices[child].weight += weight * mass
        self._last = (stop, sums, pending, log_scale)
        return wanted

    def freeze(self) -> list[int]:
        """End all work on what the last pass covered; later passes start where it stopped.

        Nothing that comes later changes the sums before it. Returns the vertices that later
        passes still refer to: the nodes of all others, their ancestors apart, can be dropped.
        """
        stop, sums, pending, log_scale = self._last
        later = [v for t in range(stop, len(self.at)) for v in self.at[t]]
        left = [
            (v, token, end, weight)
            for end, entries in pending.items()
            if end >= stop
            for v, token, weight in entries
        ]
        weights = {v: self.vertices[v].weight for v in later if self.vertices[v].weight > 0}
        deepest = self.known.lo.shape[1]
        self._base = _Base(sums[stop : stop + deepest + 1], weights, left, log_scale)
        self.frozen = stop
        return [*later, *{v for v, *_ in left}]

    def _rescale(
        self,
        t: int,
        factor: float,
        sums: list[float],
        pending: dict[int, list[tuple[int, int, float]]],
    ) -> None:
        """Multiply everything that contexts before t have sent to t and beyond."""
        for s in range(t, min(len(self.at), t + self.known.lo.shape[1] + 1)):
            sums[s] *= factor
            if s in pending:
                pending[s] = [(v, token, weight * factor) for v, token, weight in pending[s]]
            for v in self.at[s]:
                self.vertices[v].weight *= factor

    def _settle(
        self,
        t: int,
        total: float,
        pending: list[tuple[int, int, float]],
        wanted: list[Wanted],
    ) -> None:
        """Lend, want or leave out the candidates that end at t."""
        lend = bool(self.at[t]) and self.gamma < 1.0
        missing = lent = 0.0
        before = len(wanted)
        for parent, token, weight in pending:
            rho = weight / total
            agreed = 0
            if lend:
                to, agreed = self._closest(t, parent, token, rho)
                self.vertices[to].weight += weight
                lent += rho
            else:
                missing += rho
            if self.worth(rho, agreed):
                wanted.append(Wanted(rho, parent, token, t))
        if missing > 0.5 and len(wanted) == before:
            # Whatever θ is, the better part is never left out.
            weight, parent, token = max((w, v, token) for v, token, w in pending)
            wanted.append(Wanted(weight / total, parent, token, t))
        self.missing[t] = missing
        self.lent[t] = lent

    def _closest(self, t: int, parent: int, token: int, rho: float) -> tuple[int, int]:
        """The evaluated context at t that agrees longest with `parent · token`, and how long.

        Of several, the heaviest. A light candidate is not worth the comparison.
        """
        here = self.at[t]
        light = rho < self.theta * 1e-2
        tail = () if light else self.tail(parent, token)
        best, longest = here[0], -1
        for v in here:
            agreed = agreement(tail, self.vertices[v].tail)
            if agreed > longest or (
                agreed == longest and self.vertices[v].weight > self.vertices[best].weight
            ):
                best, longest = v, agreed
        return best, longest


def agreement(one: Tail, other: Tail) -> int:
    """On how many last tokens two contexts agree.

    >>> agreement((3, 2, 1), (3, 2, 9))
    2
    """
    agreed = 0
    for x, y in zip(one, other, strict=False):
        if x != y:
            break
        agreed += 1
    return agreed
