"""p_Δ, the distribution over token strings, as the rest of charwise sees it.

    →p_Δ(δ) = Π_i p_Δ(δ_i | prompt, δ_<i)

An engine is a `TokenLM`. It hands out `TokenTree`s: sets of evaluated contexts that share their
prefixes, named by small integers. Rows have the order of the sorted vocabulary; nothing above here
knows about caches. `charwise.engines.base.BaseTree` has all of a tree but its evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

    from charwise.tokens.index import SortedVocabulary
    from charwise.tokens.vocabulary import Vocabulary

#: Token strings, each after a node of a tree.
Branches = Sequence[tuple[int, Sequence[int]]]


class Row(NamedTuple):
    """p_Δ(· | δ): `[n]` float64 in sorted order, and the mass of the end tokens."""

    in_order: NDArray[np.float64]
    end: float


@runtime_checkable
class TokenTree(Protocol):
    """Evaluated contexts after one prompt; each is a node, and the prompt itself is the root, 0.

    Ids of nodes are consecutive and never reused. Several threads may use one tree.

    Attributes:
        contexts: contexts evaluated so far; the prompt counts as one.
        calls: model calls so far.
        index: of the vocabulary, whose order rows have.
        guard: a context manager around each model call, such as one that ends the work.

    >>> import numpy as np
    >>> from charwise.engines.ngram import NgramLM
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"a", b"b", None], end_ids=[2], bos_ids=[2])
    >>> lm = NgramLM(vocabulary, 2, {(2,): [0.5, 0.5, 0], (0,): [0, 0.9, 0.1], (1,): [0, 0, 1]})
    >>> tree = lm.tree([2])
    >>> [[a, ab], [b]] = tree.extend([(0, [0, 1]), (0, [1])])       # in one call
    >>> tree.extend([(a, [1])])                                    # known
    [[2]]
    >>> tree.tokens(ab), tree.depth(ab), tree.size
    ((0, 1), 2, 4)
    >>> tree.logprobs([0, a]).exp()
    tensor([[0.5000, 0.5000, 0.0000],
            [0.0000, 0.9000, 0.1000]], dtype=torch.float64)
    """

    contexts: int
    calls: int
    index: SortedVocabulary
    guard: Callable[[], AbstractContextManager[object]]

    @property
    def size(self) -> int:
        """The number of nodes handed out so far, which is the id of the next one."""

    @property
    def live(self) -> list[int]:
        """The nodes that were not dropped, in rising order."""

    @property
    def nbytes(self) -> int:
        """Bytes of the log-probabilities, and of the engine's cache."""

    def extend(self, branches: Branches, *, own: bool = False) -> list[list[int]]:
        """Return the nodes along token strings, each after a node; new ones take one call.

        Args:
            branches: what to evaluate.
            own: evaluate all anew, as nodes that no other call returns: the caller can drop them.

        Raises:
            LimitError: a context would be longer than the window. Nothing is evaluated.
            ModelError: an unknown or dropped node, a token outside the vocabulary, a model that
                fails. The tree is as it was before.
        """

    def logprobs(self, nodes: Sequence[int]) -> torch.Tensor:
        """Return log p_Δ(· | context) of every node: `[n, width]`, nats, on the engine's device.

        A probability mass function over the vocabulary's *counted* ids; the others are -inf, and
        were left out before the softmax. float32, or float64 where the engine is exact.

        Raises:
            ModelError: for nodes forgotten, dropped or unknown.
        """

    def row(self, node: int) -> Row:
        """Return p_Δ(· | context) of a node in sorted order; rows asked for lately are cached."""

    def forget(self, nodes: Sequence[int]) -> None:
        """Free the log-probabilities of these nodes; they can still be extended."""

    def depth(self, node: int) -> int:
        """The number of tokens after the prompt."""

    def tokens(self, node: int) -> tuple[int, ...]:
        """The token string after the prompt."""

    def keep(self, nodes: Sequence[int]) -> None:
        """Drop every node that is neither one of these nor an ancestor of one.

        The others keep their ids and their log-probabilities; a dropped one raises `ModelError`
        from then on.
        """

    def drop(self, nodes: Sequence[int]) -> None:
        """Drop these nodes, each as soon as no other goes on from it."""


@runtime_checkable
class EstimatedTree(TokenTree, Protocol):
    """A tree whose rows are estimates, as those of a combination of models are."""

    def errors(self, nodes: Sequence[int], tokens: Sequence[int]) -> NDArray[np.float64]:
        """Return by how much log p(token | node) may be off, `[n]` nats, of n pairs."""

    def next_error(self, node: int) -> float:
        """Return by how much the row of a node may be off, as a total variation."""


@runtime_checkable
class TokenLM(Protocol):
    """A tokenized language model: a vocabulary, and trees of evaluated contexts.

    Attributes:
        window: the longest context in tokens, prompt included; None where there is no bound.
        device: of the log-probabilities.
    """

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary Δ, with κ; its width is that of `TokenTree.logprobs`."""

    @property
    def window(self) -> int | None: ...

    @property
    def device(self) -> torch.device: ...

    def tree(self, prompt_ids: Sequence[int], branches: Branches = ()) -> TokenTree:
        """A tree whose root is this prompt, evaluated in one pass.

        Args:
            prompt_ids: start-of-text, special tokens and all else to condition on; at least one.
            branches: from the root, evaluated in the same pass if the engine can.

        Raises:
            LimitError: for a prompt longer than the window.
            ModelError: for an empty prompt, or ids outside the vocabulary.
        """

    def info(self) -> dict[str, str]:
        """The engine, device and dtype, and how and why contexts share prefixes: for reports."""


@runtime_checkable
class TogetherLM(Protocol):
    """A `TokenLM` that can evaluate contexts of several of its trees in one model call."""

    def extend_together(
        self, wishes: Sequence[tuple[TokenTree, Branches]]
    ) -> list[list[list[int]]] | None:
        """Extend each tree by its branches, all in one call, and return new nodes of each.

        None, and nothing is evaluated, where this model or this many contexts cannot be called
        so: each tree's own `extend` can.

        Raises:
            LimitError, ModelError: as `TokenTree.extend`; all trees are as they were.
        """
