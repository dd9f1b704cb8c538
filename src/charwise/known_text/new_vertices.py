"""Vertices for the contexts that were evaluated, with the masses that the text asks of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from charwise.coverings.rows import EvaluatedRows
from charwise.known_text.effort import Tail, tail_after
from charwise.known_text.lattice import Lattice
from charwise.known_text.next_bytes import rows_of
from charwise.known_text.ranges import Ints, KnownText
from charwise.known_text.vertex import Branch, Edge, Vertex


class _Context(NamedTuple):
    """An evaluated context: the beginning of a `Vertex`."""

    node: int
    position: int
    tail: Tail
    depth: int


class NewVertices:
    """Makes vertices of the nodes of a token tree.

    Args:
        evaluated: the tree.
        known: the text.
        lets_go: whether it forgets the probabilities of what it has made a vertex of.
        through: also the mass of the end tokens.
        distributions: also what `next_bytes.distributions` needs.
        covers: the probabilities of what may cover the end of the text are never forgotten.

    >>> from charwise.engines.ngram import NgramLM
    >>> from charwise.tokens.index import SortedVocabulary
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"a", b"ab", None], end_ids=[2], bos_ids=[2])
    >>> lm = NgramLM(vocabulary, 1, {(): [0.5, 0.25, 0.25]})
    >>> index = SortedVocabulary(vocabulary)
    >>> evaluated, known = EvaluatedRows(lm.tree([2]), index), KnownText.of(b"aab", index)
    >>> make = NewVertices(evaluated, known, lets_go=True, through=True, distributions=False)
    >>> root = make.root(0)
    >>> root.starting, root.edges, root.end  # no token begins with "aa"
    ((0.75,), [(0, 1, 0.5)], 0.25)
    """

    def __init__(
        self,
        evaluated: EvaluatedRows,
        known: KnownText,
        *,
        lets_go: bool,
        through: bool,
        distributions: bool,
        covers: bool = False,
    ) -> None:
        self._evaluated = evaluated
        self._known = known
        self._lets_go = lets_go
        # A context that ends before this has no token that reaches beyond the text.
        self._forgotten_before = len(known.text) + (1 if not covers else -known.deepest)
        self._through = through
        self._distributions = distributions

    def root(self, node: int) -> Vertex:
        """The vertex before the text, of the node after which it stands."""
        [vertex] = self._made([_Context(node, 0, (), 0)])
        return vertex

    def add(
        self, lattice: Lattice, branches: Sequence[Branch], found: Sequence[Sequence[int]]
    ) -> None:
        """Add to a lattice what is new along branches; branches may share contexts.

        Args:
            lattice: of the same text.
            branches: the contexts that were evaluated.
            found: their nodes, along each branch.
        """
        length = self._known.index.length
        new: dict[int, _Context] = {}
        for (parent, tokens), nodes in zip(branches, found, strict=True):
            position, tail, depth = parent.position, parent.tail, parent.depth
            for token, node in zip(tokens, nodes, strict=True):
                position, tail, depth = position + length(token), tail_after(token, tail), depth + 1
                new.setdefault(node, _Context(node, position, tail, depth))
        for node in _vertices_along(branches, found):
            new.pop(node, None)
        made = dict(zip(new, self._made(list(new.values())), strict=True)) if new else {}
        for (parent, tokens), nodes in zip(branches, found, strict=True):
            for token, node in zip(tokens, nodes, strict=True):
                if token not in parent.children:
                    lattice.add(made[node], parent, token)
                parent = parent.children[token]

    def _made(self, contexts: Sequence[_Context]) -> list[Vertex]:
        known, nodes = self._known, [context.node for context in contexts]
        at: Ints = np.array([context.position for context in contexts], dtype=np.int64)
        logprobs = self._evaluated.tree.logprobs(nodes)
        starting = known.starting(logprobs, at).tolist()
        valid = known.depths_at(at).tolist()
        edges = _edges(known, logprobs, at)
        ending = [0.0] * len(nodes)
        if self._through:
            ends = list(known.index.vocabulary.end_ids)
            ending = logprobs[:, ends].double().exp().sum(dim=1).tolist()
        rows = rows_of(known, logprobs, at) if self._distributions else []
        if self._lets_go:
            before = self._forgotten_before
            self._evaluated.tree.forget([one.node for one in contexts if one.position < before])
        vertices = [
            Vertex(*context, starting[n][: valid[n]], edges[n], ending[n])
            for n, context in enumerate(contexts)
        ]
        for vertex, row in zip(vertices, rows, strict=False):
            vertex.next_bytes = row
        return vertices


def _vertices_along(branches: Sequence[Branch], found: Sequence[Sequence[int]]) -> Iterator[int]:
    """The nodes along branches that are vertices already."""
    for (parent, tokens), nodes in zip(branches, found, strict=True):
        vertex = parent
        for token, node in zip(tokens, nodes, strict=True):
            if token not in vertex.children:
                break
            vertex = vertex.children[token]
            yield node


def _edges(known: KnownText, logprobs: torch.Tensor, positions: Ints) -> list[list[Edge]]:
    """For each context, the tokens that spell the next bytes of the text, with their mass."""
    rows, tokens, ends = known.edges(positions)
    device = logprobs.device
    masses = logprobs[torch.from_numpy(rows).to(device), torch.from_numpy(tokens).to(device)]
    out: list[list[Edge]] = [[] for _ in positions]
    flat = zip(
        rows.tolist(), tokens.tolist(), ends.tolist(), masses.double().exp().tolist(), strict=True
    )
    for row, token, end, mass in flat:
        if mass > 0.0:
            out[row].append((token, end, mass))
    return out
