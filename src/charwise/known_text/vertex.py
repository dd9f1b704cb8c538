"""Evaluated contexts as vertices over a known text, and which of them stands for another one."""

from __future__ import annotations

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


def closest(
    here: Sequence[Vertex], tail: Tail, weight: float = 0.0, heaviest: Vertex | None = None
) -> tuple[Vertex, int]:
    """The evaluated context that agrees longest with these tokens, and on how many.

    Of several, the heaviest; where none agrees, the heaviest of all. None that arrived there
    lighter than this weight: it would grow out of all proportion, a loan on a loan.

    Args:
        here: the evaluated contexts at a position, at least one.
        tail: the tokens, latest first.
        weight: that would be lent, in their units.
        heaviest: of these contexts, where it is known.

    >>> here = [Vertex(0, 3, tail, depth=2) for tail in ((7, (1, None)), (7, (2, None)))]
    >>> one, agreed = closest(here, (7, (2, (1, None))))
    >>> one is here[1], agreed
    (True, 2)
    """
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
