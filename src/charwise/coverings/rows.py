"""Evaluated contexts with their next-token probabilities in sorted order.

The covering algorithms all ask the same of a context δ: p_Δ(· | δ) as a vector over the sorted
vocabulary, in which every prefix is a slice, and p_Δ(EOS | δ), summed over the end tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from charwise.token_lm import Row, TokenLM, TokenTree
from charwise.tokens.index import END_OF_TOKEN, SortedVocabulary


class EvaluatedRows:
    """A `TokenTree` together with the rows of the contexts asked about so far.

    With `retain` the tree keeps the log-probabilities of every node for being asked again.

    >>> from charwise.engines.ngram import NgramLM
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"b", b"a", None], end_ids=[2], bos_ids=[2])
    >>> lm = NgramLM(vocabulary, 1, {(): [0.5, 0.25, 0.25]})
    >>> evaluated = EvaluatedRows(lm.tree([2]), SortedVocabulary(vocabulary))
    >>> evaluated.row(0)
    Row(in_order=array([0.25, 0.5 ]), end=0.25)
    >>> evaluated.extend([(0, 1), (0, 0), (0, 1)])  # [a], [b], and [a] again
    [1, 2, 1]
    >>> evaluated.keep([2])
    """

    def __init__(
        self,
        tree: TokenTree,
        index: SortedVocabulary,
        *,
        retain: bool = False,
    ) -> None:
        self.tree = tree
        self.index = index
        self.retain = retain

    def aside(self) -> EvaluatedRows:
        """The same tree with its known rows; contexts added here stay unknown there.

        For contexts that are dropped again.

        >>> from charwise.engines.ngram import NgramLM
        >>> from charwise.tokens.vocabulary import Vocabulary
        >>> vocabulary = Vocabulary.from_bytes([b"a", None], end_ids=[1], bos_ids=[1])
        >>> lm = NgramLM(vocabulary, 1, {(): [0.5, 0.5]})
        """
        return self

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
        return self.tree.child(parent, token) is not None

    def extend(self, edges: Sequence[tuple[int, int]]) -> list[int]:
        """Nodes of the contexts `parent · token`; only those not known yet are evaluated."""
        return [node for [node] in self.follow([(parent, [token]) for parent, token in edges])]

    def follow(self, branches: Sequence[tuple[int, Sequence[int]]]) -> list[list[int]]:
        """See `TokenTree.extend`."""
        return self.tree.extend(branches)

    def keep(self, nodes: Sequence[int]) -> None:
        """Drop every context that is neither one of these nor an ancestor of one."""
        self.tree.keep(nodes)

    @property
    def nbytes(self) -> int:
        """Bytes that the tree holds."""
        return self.tree.nbytes

    def row(self, node: int) -> Row:
        """Probabilities at a node."""
        return self.tree.row(node)

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
