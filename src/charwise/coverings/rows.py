"""Evaluated contexts with their next-token probabilities in sorted order.

The covering algorithms all ask the same of a context δ: p_Δ(· | δ) as a vector over the sorted
vocabulary, in which every prefix is a slice, and p_Δ(EOS | δ), summed over the end tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.errors import EngineError
from charwise.token_lm import TokenLM, TokenTree, held_bytes
from charwise.tokens.index import END_OF_TOKEN, SortedVocabulary


class Row(NamedTuple):
    """p_Δ(· | δ): `[n]` float64 in sorted order, and the mass of the end tokens.

    >>> Row(np.array([0.5, 0.25]), end=0.25).end
    0.25
    """

    in_order: NDArray[np.float64]
    end: float


class EvaluatedRows:
    """A `TokenTree` together with the rows of the contexts asked about so far.

    With `retain` the tree keeps the log-probabilities of every node for being asked again; `edges`
    are those that the tree was made with.

    >>> from charwise.engines.ngram import NgramLM
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"b", b"a", None], end_ids=[2], bos_ids=[2])
    >>> lm = NgramLM(vocabulary, 1, {(): [0.5, 0.25, 0.25]})
    >>> evaluated = EvaluatedRows(lm.tree([2]), SortedVocabulary(vocabulary))
    >>> evaluated.row(0)
    Row(in_order=array([0.25, 0.5 ]), end=0.25)
    >>> evaluated.extend([(0, 1), (0, 0), (0, 1)])  # [a], [b], and [a] again
    [1, 2, 1]
    >>> [(token, round(logp, 3)) for token, logp in evaluated.continuations(0, b"ab")]
    [(1, -1.386)]
    >>> evaluated.keep([2])
    """

    def __init__(
        self,
        tree: TokenTree,
        index: SortedVocabulary,
        *,
        edges: Sequence[tuple[int, int]] = (),
        retain: bool = False,
    ) -> None:
        self.tree = tree
        self.index = index
        self.retain = retain
        self._rows: dict[int, Row] = {}
        self._children = {edge: node for node, edge in enumerate(edges, start=1)}

    def aside(self) -> EvaluatedRows:
        """The same tree with its known rows; contexts added here stay unknown there.

        For contexts that are dropped again.

        >>> from charwise.engines.ngram import NgramLM
        >>> from charwise.tokens.vocabulary import Vocabulary
        >>> vocabulary = Vocabulary.from_bytes([b"a", None], end_ids=[1], bos_ids=[1])
        >>> lm = NgramLM(vocabulary, 1, {(): [0.5, 0.5]})
        >>> evaluated = EvaluatedRows(lm.tree([1]), SortedVocabulary(vocabulary), retain=True)
        >>> evaluated.aside().extend([(0, 0)]), evaluated.extend([(0, 0)])
        ([1], [2])
        """
        other = EvaluatedRows(self.tree, self.index, retain=True)
        other._children.update(self._children)
        return other

    @classmethod
    def of(cls, engine: TokenLM, prompt_ids: Sequence[int]) -> EvaluatedRows:
        """The rows of a new tree after a prompt.

        >>> import charwise
        >>> lm = charwise.load()
        >>> EvaluatedRows.of(lm.engine, lm.vocabulary.bos_ids).tree.size
        1
        """
        return cls(engine.tree(prompt_ids), SortedVocabulary.of(engine.vocabulary))

    def knows(self, parent: int, token: int) -> bool:
        """Whether the context `parent · token` is evaluated."""
        return (parent, token) in self._children

    def extend(self, edges: Sequence[tuple[int, int]]) -> list[int]:
        """Nodes of the contexts `parent · token`; only those not known yet are evaluated."""
        return [node for [node] in self.follow([(parent, [token]) for parent, token in edges])]

    def follow(self, branches: Sequence[tuple[int, Sequence[int]]]) -> list[list[int]]:
        """Return nodes along token strings, each after a node; unknown ones take one call.

        Raises:
            EngineError: if the tree does not number its nodes as `TokenTree.extend` says.

        >>> from charwise.engines.ngram import NgramLM
        >>> from charwise.tokens.vocabulary import Vocabulary
        >>> vocabulary = Vocabulary.from_bytes([b"b", b"a", None], end_ids=[2], bos_ids=[2])
        >>> lm = NgramLM(vocabulary, 1, {(): [0.5, 0.25, 0.25]})
        >>> evaluated = EvaluatedRows(lm.tree([2]), SortedVocabulary(vocabulary))
        >>> evaluated.follow([(0, [1, 0]), (0, [1, 1])])  # [a], [a b]; [a], [a a]
        [[1, 2], [1, 3]]
        """
        # Within one call a tree is told parents that the call itself makes, by the numbers that it
        # will give them. They are remembered once it has given them.
        first, new = self.tree.size, dict[tuple[int, int], int]()
        found = []
        for parent, tokens in branches:
            nodes, at = [], parent
            for token in tokens:
                known = self._children.get((at, token))
                at = new.setdefault((at, token), first + len(new)) if known is None else known
                nodes.append(at)
            found.append(nodes)
        if new:
            made = self.tree.extend(list(new))
            if made != list(new.values()):
                raise EngineError(
                    f"the engine numbered new contexts {made[:3]}…, not from {first} on, as "
                    "TokenTree.extend promises: their parents may be wrong. Report it to whoever "
                    "wrote the engine."
                )
            self._children.update(new)
        return found

    def keep(self, nodes: Sequence[int]) -> None:
        """Drop every context that is neither one of these nor an ancestor of one."""
        self.tree.keep(nodes)
        live = set(nodes)
        self._rows = {node: row for node, row in self._rows.items() if node in live}
        self._children = {edge: node for edge, node in self._children.items() if node in live}

    def path_of(self, nodes: Sequence[int]) -> set[int]:
        """These nodes, and all known ones that they go on from.

        >>> import charwise
        >>> lm = charwise.load()
        >>> evaluated = EvaluatedRows.of(lm.engine, lm.vocabulary.bos_ids)
        >>> [[one, two], [three]] = evaluated.follow([(0, [5, 6]), (0, [7])])
        >>> evaluated.path_of([two]) == {0, one, two}
        True
        """
        parents = {node: parent for (parent, _), node in self._children.items()}
        found = set[int]()
        for node in nodes:
            while node not in found:
                found.add(node)
                node = parents.get(node, node)
        return found

    @property
    def nbytes(self) -> int:
        """Bytes held: the tree's, if its engine tells (else of its log-probabilities), and rows.

        >>> import charwise
        >>> lm = charwise.load()
        >>> tree = lm.engine.tree(lm.vocabulary.bos_ids)
        >>> evaluated = EvaluatedRows(tree, lm.index, retain=True)
        >>> before, row = evaluated.nbytes, evaluated.row(0)
        >>> evaluated.nbytes - before == row.in_order.nbytes
        True
        >>> evaluated.shed()
        >>> evaluated.nbytes == before
        True
        """
        tree = held_bytes(self.tree, self.index.vocabulary.width)
        return tree + 8 * len(self.index.sorted) * len(self._rows)

    @property
    def row_count(self) -> int:
        """How many rows are held."""
        return len(self._rows)

    def shed(self) -> None:
        """Let go of rows that can be made again from log-probabilities that the tree keeps."""
        if self.retain:
            self._rows.clear()

    def row(self, node: int) -> Row:
        """Probabilities at a node, computed when first asked for."""
        if node not in self._rows:
            logs = self.tree.logprobs([node])[0]
            ends = self.index.vocabulary.end_ids
            order = self.index.ids_on(logs.device)
            in_order = logs[order].double().exp_().cpu().numpy()
            end = float(logs[list(ends)].double().exp().sum()) if ends else 0.0
            self._rows[node] = Row(in_order, end)
            if not self.retain:
                self.tree.forget([node])
        return self._rows[node]

    def next_bytes(
        self, node: int, lo: int, hi: int, depth: int
    ) -> tuple[NDArray[np.float64], float]:
        """How a bundle divides over the next byte: `[257]` shares, at 256 the end of the text.

        Tokens that end at `depth` are left out: what follows them is another context's business.

        Returns:
            The shares, which sum to 1 (all 0 if nothing follows), and the log of their mass.
            Apart, neither overflows nor underflows, however light the bundle is.

        >>> from charwise.engines.ngram import NgramLM
        >>> from charwise.tokens.vocabulary import Vocabulary
        >>> vocabulary = Vocabulary.from_bytes([b"b", b"a", None], end_ids=[2], bos_ids=[2])
        >>> lm = NgramLM(vocabulary, 1, {(): [0.5, 0.25, 0.25]})
        >>> evaluated = EvaluatedRows(lm.tree([2]), SortedVocabulary(vocabulary))
        >>> shares, log_mass = evaluated.next_bytes(0, 0, 2, 0)
        >>> shares[[ord("a"), ord("b"), 256]].round(9).tolist(), round(log_mass, 9)
        ([0.25, 0.5, 0.25], 0.0)
        """
        row = self.row(node)
        part = self.index.next_byte_masses(row.in_order, lo, hi, depth)
        part[END_OF_TOKEN] = row.end if depth == 0 else 0.0
        mass = float(part.sum())
        return (part / mass, math.log(mass)) if mass > 0 else (part, -math.inf)

    def continuations(
        self, node: int, rest: bytes, through: bool = False
    ) -> list[tuple[int, float]]:
        """Tokens that are proper prefixes of `rest` (`through`: or `rest` itself), with log p.

        Those of probability zero are left out. Natural log.
        """
        tokens = self.index.prefixes(rest)
        if through and rest:
            lo, hi = self.index.twins(rest)
            tokens += self.index.ids[lo:hi].tolist()
        in_order, rank = self.row(node).in_order, self.index.rank
        masses = [(token, float(in_order[rank[token]])) for token in tokens]
        return [(token, math.log(mass)) for token, mass in masses if mass > 0]
