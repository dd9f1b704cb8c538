"""The evaluated contexts of a known text, in columns, and the recombination of the others.

A *context* is a token string that spells the text up to a position. An edge leads from an
evaluated context, by a token that spells the next bytes, to the context that the token makes.
A context that is not evaluated is a *candidate*. It is *recombined* with an evaluated one: of those
that end at the same position, with the one that ends in the most equal tokens. Decoders of speech
and of translations recombine hypotheses in this way.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.engine import TokenTree
from charwise.tokens.known_text import Ints, KnownText

Floats = NDArray[np.float64]

#: Contexts are compared on so many last tokens: a model hardly tells them apart after that.
MEMORY = 12

#: In the column `recombined_with`: not looked for yet. There, and in `child`, −1 means none.
UNKNOWN = -2


class Branch(NamedTuple):
    """Tokens to evaluate one after the other, after a context."""

    context: int
    tokens: list[int]


class Contexts:
    """The evaluated contexts of one text after one prompt: number 0, the root of the tree.

    Arguments are those of `scoring.rounds.Refinement`.

    Attributes:
        node, position, depth, log_p: `[contexts]` node of the tree, where in the text the context
            ends, its tokens, and its own log-probability.
        end_mass: `[contexts]` probability of the end of the text, where all of it is spelled.
        source, token, end, mass: `[edges]` the context that an edge leaves, its token, where it
            ends, and its probability. The edges of a context stand side by side.
        child, recombined_with: `[edges]` the context that it leads to, or the one that the
            candidate is recombined with.
        held, at, starting: `[masses]` a context, a position, and the mass of the tokens that start
            with the text between the two.
        evaluated: contexts evaluated so far, the dropped ones included.
    """

    def __init__(
        self,
        tree: TokenTree,
        known: KnownText,
        *,
        through: bool = False,
        next_bytes: bool = False,
        shared: bool = False,
    ) -> None:
        self.tree, self.known, self.shared = tree, known, shared
        self.last = len(known.text) - (not through)  # edges end here, or before
        self.node = self.position = self.depth = self.first_edge = np.zeros(0, dtype=np.int64)
        self.log_p, self.end_mass = np.zeros(0), np.zeros(0)
        self.tail = np.full((0, MEMORY), -1)  # last tokens, latest first; none before the root
        self.source = self.token = self.end = self.child = self.recombined_with = self.node
        self.mass, self.starting = np.zeros(0), np.zeros(0)
        self.held = self.at = self.node
        self.next_bytes: list[Floats] | None = [] if next_bytes else None
        self.evaluated = 0
        self._children: dict[tuple[int, int], int] = {}  # (context, token) → context
        self._append([0], [0], [0])

    def __len__(self) -> int:
        return len(self.node)

    def add(self, branches: Sequence[Branch], paths: Sequence[Sequence[int]]) -> None:
        """Add the contexts along some branches, which the tree has evaluated at these nodes."""
        parents, tokens, nodes = list[int](), list[int](), list[int]()
        for (context, along), new in zip(branches, paths, strict=True):
            for token, node in zip(along, new, strict=True):
                edge = context, token
                if edge not in self._children:
                    self._children[edge] = len(self) + len(nodes)
                    parents.append(context)
                    tokens.append(token)
                    nodes.append(node)
                context = self._children[edge]
        if not nodes:
            return
        size, length = len(self), self.known.index.length
        positions, depths = self.position.tolist(), self.depth.tolist()
        for parent, token in zip(parents, tokens, strict=True):
            positions.append(positions[parent] + length(token))
            depths.append(depths[parent] + 1)
        self._append(nodes, positions[size:], depths[size:])
        self._link(size, parents, tokens)

    def _append(self, nodes: list[int], positions: list[int], depths: list[int]) -> None:
        """Read the rows of new contexts from the tree, and add their columns."""
        size, edges, at = len(self), len(self.source), np.array(positions, dtype=np.int64)
        logs = self.tree.logprobs(nodes)
        row, token, end = self.known.edges(at)
        inside = end <= self.last
        row, token, end = row[inside], token[inside], end[inside]
        starting = self.known.starting(logs, at)  # [contexts, most bytes ahead]
        which, ahead = np.nonzero(np.arange(starting.shape[1]) < self.known.depths_at(at)[:, None])
        end_mass = np.zeros(len(nodes))
        ends = np.flatnonzero(at == len(self.known.text))
        ids = np.array(self.known.index.vocabulary.end_ids, dtype=np.int64)
        ended = np.exp(_entries(logs, np.repeat(ends, len(ids)), np.tile(ids, len(ends))))
        end_mass[ends] = ended.reshape(len(ends), len(ids)).sum(axis=1)
        if self.next_bytes is not None:
            self.next_bytes += self.known.next_bytes(logs, at)
        new: dict[str, Any] = {
            "node": nodes,
            "position": at,
            "depth": depths,
            "end_mass": end_mass,
            "log_p": np.zeros(len(nodes)),
            "first_edge": edges + np.searchsorted(row, np.arange(len(nodes))),
            "source": size + row,
            "token": token,
            "end": end,
            "mass": np.exp(_entries(logs, row, token)),
            "child": np.full(len(row), -1),
            "recombined_with": np.full(len(row), UNKNOWN),
            "held": size + which,
            "at": at[which] + ahead + 1,
            "starting": starting[which, ahead],
        }
        for name, column in new.items():
            setattr(self, name, np.append(getattr(self, name), column))
        self.tail = np.concatenate((self.tail, np.full((len(nodes), MEMORY), -1)))
        self.evaluated += len(nodes)
        if not self.shared:
            self.tree.forget(nodes)

    def _link(self, size: int, parents: list[int], tokens: list[int]) -> None:
        """Lead the edges of parents to their new children; parents come before children."""
        bounds, log_p = [*self.first_edge.tolist(), len(self.source)], self.log_p.tolist()
        for context, (parent, token) in enumerate(zip(parents, tokens, strict=True), size):
            begin, end = bounds[parent], bounds[parent + 1]
            edge = begin + int((self.token[begin:end] == token).argmax())
            mass = float(self.mass[edge])
            self.child[edge] = context
            log_p[context] = log_p[parent] + (math.log(mass) if mass > 0 else -math.inf)
            self.tail[context, 0] = token
            self.tail[context, 1:] = self.tail[parent, :-1]
        self.log_p = np.array(log_p)
        # What ends where a new context does may have a better one to recombine with now.
        stale = np.isin(self.end, self.position[size:]) & (self.child < 0)
        self.recombined_with[stale] = UNKNOWN

    def follow(self, context: int, tokens: Sequence[int]) -> Iterator[int]:
        """Yield the contexts along evaluated tokens."""
        for token in tokens:
            context = self._children[context, token]
            yield context

    @property
    def target(self) -> Ints:
        """`[edges]` the context that each edge leads to, recombined where that is a candidate."""
        return np.where(self.child >= 0, self.child, self.recombined_with)

    @property
    def reach(self) -> Ints:
        """`[contexts]` the last position that the next token of a context may reach."""
        return self.position + self.known.depths_at(self.position)

    def recombine(self, stop: int) -> None:
        """Recombine the candidates that end up to a position, as far as they are not yet.

        Of several contexts that end in equally many equal tokens, the likeliest is taken.
        """
        edges = np.flatnonzero((self.recombined_with == UNKNOWN) & (self.end <= stop))
        order = np.lexsort((-self.log_p, self.position))
        at = self.position[order]
        first = np.searchsorted(at, self.end[edges])
        count = np.searchsorted(at, self.end[edges], side="right") - first
        # A pair for each candidate and each context that ends where it does.
        pair = np.repeat(np.arange(len(edges)), count)
        rank = np.arange(len(pair)) + np.repeat(first - np.cumsum(count) + count, count)
        agreed = np.zeros(len(pair), dtype=np.int64)
        alike = np.arange(len(pair))
        for back in range(MEMORY):
            mine, other = edges[pair[alike]], order[rank[alike]]
            last = self.tail[self.source[mine], back - 1] if back else self.token[mine]
            alike = alike[last == self.tail[other, back]]
            agreed[alike] += 1
        partner = np.full(len(edges), -1)
        if len(pair):
            best = np.lexsort((-rank, agreed, pair))  # the best pair of each candidate is its last
            last_of = np.append(np.flatnonzero(np.diff(pair[best])), len(pair) - 1)
            partner[pair[best][last_of]] = order[rank[best][last_of]]
        self.recombined_with[edges] = partner

    def keep(self, contexts: Ints, done: int) -> None:
        """Keep some contexts, and of their edges and masses those that end after a position."""
        number = np.full(len(self) + 1, -1)  # the last entry is that of −1
        number[contexts] = np.arange(len(contexts))
        if self.next_bytes is not None:
            self.next_bytes = [self.next_bytes[context] for context in contexts.tolist()]
        edges = np.flatnonzero((number[self.source] >= 0) & (self.end > done))
        masses = np.flatnonzero((number[self.held] >= 0) & (self.at > done))
        for names, part in (
            (("node", "position", "depth", "log_p", "end_mass", "tail"), contexts),
            (("source", "token", "end", "mass", "child", "recombined_with"), edges),
            (("held", "at", "starting"), masses),
        ):
            for name in names:
                setattr(self, name, getattr(self, name)[part])
        self.source, self.child = number[self.source], number[self.child]
        self.recombined_with = np.where(
            self.recombined_with >= 0, number[self.recombined_with], self.recombined_with
        )
        self.held = number[self.held]
        self.first_edge = np.searchsorted(self.source, np.arange(len(contexts)))
        self._children = {
            (int(number[parent]), token): int(number[child])
            for (parent, token), child in self._children.items()
            if number[parent] >= 0 and number[child] >= 0
        }


def _entries(logprobs: Any, rows: Ints, columns: Ints) -> Floats:
    """`logprobs[rows, columns]`, float64, from any device."""
    return np.asarray(logprobs[rows, columns].double().cpu().numpy())
