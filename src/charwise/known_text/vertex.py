"""Evaluated contexts as vertices over a known text, and which of them stands for another one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.known_text.effort import Tail, agreement

#: (token, position where it ends, p_Δ(token | context)).
Edge = tuple[int, int, float]


class Vertex:
    """An evaluated context: its node in the token tree, and how the text may go on from it.

    Attributes:
        node: in the token tree.
        position: where in the text it ends.
        tail: its last tokens after the root, latest first.
        depth: how many tokens it has after the root.
        log_p: log p_Δ of these, nats, and nothing that was lent.
        starting: masses of the tokens that start with `text[position:][:d + 1]`, for d = 0, 1, …
        longer: the same without the tokens that end there: those that go on.
        edges: the tokens that spell the next bytes, if the context that they make is not evaluated.
        followed: the evaluated contexts that such tokens make, with their mass.
        children: all evaluated contexts that are one token longer, by that token.
        end: mass of the end tokens.
        next_bytes: what `next_bytes.rows_of` says of it, if that was asked for.
        weight: →p_Δ, and what was lent to it, as of the last pass, in units of its scale there.
        arrived: the same without what was lent to it there.

    >>> Vertex(node=0, position=3, tail=(7,), depth=1).weight
    0.0
    """

    __slots__ = (
        "arrived", "children", "depth", "edges", "end", "followed", "log_p", "longer", "next_bytes",
        "node", "position", "starting", "tail", "weight",
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
        # Tuples, and lists only where something goes in: a collection of garbage visits all lists
        # of all contexts, and no tuples of numbers.
        self.starting = tuple(starting)
        self.edges = list(edges)
        longer = list(starting)
        for _, stop, mass in edges:
            if (d := stop - position - 1) < len(longer):
                longer[d] = max(0.0, longer[d] - mass)
        self.longer = tuple(longer)
        self.followed: Sequence[tuple[Vertex, float]] = ()
        self.children: dict[int, Vertex] = {}
        self.end = end
        self.next_bytes: NDArray[np.float64] | None = None
        self.weight = self.arrived = self.log_p = 0.0

    def follow(self, token: int, child: Vertex) -> None:
        """Let a token lead to a context that was evaluated; one of no mass adds nothing to it."""
        self.children[token] = child
        child.log_p = -math.inf
        for n, (other, _, mass) in enumerate(self.edges):
            if other == token:
                del self.edges[n]
                self.followed = [*self.followed, (child, mass)]
                child.log_p = self.log_p + math.log(mass)
                return

    def mass(self, token: int) -> float:
        """p_Δ(token | context) of a token that spells the next bytes of the text."""
        if token in self.children:
            there = self.children[token]
            return next((mass for child, mass in self.followed if child is there), 0.0)
        return next((mass for other, _, mass in self.edges if other == token), 0.0)


class Branch(NamedTuple):
    """Contexts to evaluate: those that tokens make one after the other, after a vertex.

    >>> root = Vertex(node=0, position=0, tail=(), depth=0)
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


class Unevaluated:
    """Contexts of branches that are not evaluated, each counted once: branches may share some.

    Branches of several texts over one tree, too, but for what one of the texts has evaluated alone.

    >>> root, new = Vertex(node=0, position=0, tail=(), depth=0), Unevaluated()
    >>> new.take(Branch(root, [1, 2, 3]), most=3), new.take(Branch(root, [1, 2, 4, 5]), most=4)
    (3, 3)
    >>> len(new)  # 1; 1, 2; 1, 2, 3; 1, 2, 4
    4
    """

    def __init__(self) -> None:
        # Who makes them, a node or one of these, and with which token: a number below 0.
        self._numbers: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def take(self, branch: Branch, most: float = math.inf) -> int:
        """Count the contexts of a branch, up to so many of all; returns how many tokens that was.

        What is evaluated, or was counted before, takes no room.
        """
        vertex: Vertex | None = branch.parent
        at = branch.parent.node
        for taken, token in enumerate(branch.tokens):
            vertex = vertex.children.get(token) if vertex else None
            if vertex is not None:
                at = vertex.node
                continue
            if (at, token) not in self._numbers and len(self._numbers) >= most:
                return taken
            at = self._numbers.setdefault((at, token), -1 - len(self._numbers))
        return len(branch.tokens)


def contexts_of(branches: Sequence[Branch]) -> int:
    """How many contexts of some branches are not evaluated, each counted once.

    >>> root = Vertex(node=0, position=0, tail=(), depth=0)
    >>> contexts_of([Branch(root, [1, 2, 3]), Branch(root, [1, 2, 4])])
    4
    """
    new = Unevaluated()
    for branch in branches:
        new.take(branch)
    return len(new)


def ends_with(here: Sequence[Vertex], token: int) -> bool:
    """Whether one of these contexts ends with a token.

    >>> ends_with([Vertex(0, 3, (7, 1), depth=2)], 7)
    True
    """
    return any(vertex.tail and vertex.tail[0] == token for vertex in here)


def by_last_token(here: Sequence[Vertex]) -> dict[int, list[Vertex]]:
    """The evaluated contexts at a position by their last token, the heaviest first.

    >>> one, other = (Vertex(0, 3, tail, depth=1) for tail in ((7,), (8,)))
    >>> by_last_token([one, other]) == {7: [one], 8: [other]}
    True
    """
    found: dict[int, list[Vertex]] = {}
    for vertex in sorted(here, key=lambda vertex: vertex.arrived, reverse=True):
        if vertex.tail:
            found.setdefault(vertex.tail[0], []).append(vertex)
    return found


def closest(
    like: Sequence[Vertex], tail: Tail, weight: float, heaviest: Vertex
) -> tuple[Vertex, int]:
    """The evaluated context that agrees longest with these tokens, and on how many.

    Of several, the heaviest; where none agrees, the heaviest of all. None that arrived there
    lighter than this weight: it would grow out of all proportion, a loan on a loan.

    Args:
        like: the evaluated contexts at a position with the same last token, heaviest first.
        tail: the tokens, latest first.
        weight: that would be lent, in their units.
        heaviest: of all contexts there.

    >>> here = [Vertex(0, 3, tail, depth=2) for tail in ((7, 1), (7, 2))]
    >>> one, agreed = closest(here, (7, 2, 1), 0.0, here[0])
    >>> one is here[1], agreed
    (True, 2)
    """
    best, longest = heaviest, 0
    for vertex in like:
        if vertex.arrived < weight:
            break
        agreed = agreement(tail, vertex.tail)
        if agreed > longest:
            best, longest = vertex, agreed
            if agreed == len(tail):
                break
    return best, longest
