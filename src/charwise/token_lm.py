"""p_Δ, the distribution over token strings, as the rest of charwise sees it.

    →p_Δ(δ) = Π_i p_Δ(δ_i | prompt, δ_<i)

An engine is a `TokenLM`. It hands out `TokenTree`s: sets of evaluated contexts that share their
prefixes, named by small integers. Nothing here knows about bytes; nothing above here knows about
caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

    from charwise.tokens.vocabulary import Vocabulary


@runtime_checkable
class TokenTree(Protocol):
    """Evaluated contexts after one prompt; each is a node, and the prompt itself is the root.

    Ids of nodes are consecutive and never reused. Only `extend`, `forget` and `keep` change a
    tree; several threads may use one.

    >>> import numpy as np
    >>> from charwise.engines.ngram import NgramLM
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"a", b"b", None], end_ids=[2], bos_ids=[2])
    >>> lm = NgramLM(vocabulary, 2, {(2,): [0.5, 0.5, 0], (0,): [0, 0.9, 0.1], (1,): [0, 0, 1]})
    >>> tree = lm.tree([2])
    >>> a, ab = tree.extend([(tree.root, 0), (1, 1)])       # "a", and "ab" after it, in one call
    >>> tree.tokens(ab), tree.depth(ab), tree.size
    ((0, 1), 2, 3)
    >>> tree.logprobs([tree.root, a]).exp()
    tensor([[0.5000, 0.5000, 0.0000],
            [0.0000, 0.9000, 0.1000]], dtype=torch.float64)
    """

    @property
    def root(self) -> int:
        """The node of the prompt: always 0."""
        ...

    @property
    def size(self) -> int:
        """The number of nodes handed out so far, which is the id of the next one."""
        ...

    @property
    def contexts(self) -> int:
        """The number of contexts evaluated so far; the prompt counts as one."""
        ...

    @property
    def calls(self) -> int:
        """The number of model calls so far."""
        ...

    def extend(self, edges: Sequence[tuple[int, int]]) -> list[int]:
        """Evaluate the contexts `parent · token` in one batch, and return their nodes, in order.

        A parent may be a node that an earlier edge of the same call makes (the first edge makes
        `size`, the next `size + 1`, …), so that a whole path is teacher-forced at once.

        Args:
            edges: (parent node, token id) pairs.

        Raises:
            ContextLengthError: a context would be longer than the window. Nothing is evaluated.
            EngineError: an unknown or dropped parent, a token outside the vocabulary, a model
                that fails. The tree is as it was before.
        """
        ...

    def logprobs(self, nodes: Sequence[int]) -> torch.Tensor:
        """Return log p_Δ(· | context) of every node: `[n, width]`, nats, on the engine's device.

        A probability mass function over the vocabulary's *counted* ids; the others are -inf, and
        were left out before the softmax. float32, or float64 where the engine is exact.

        Raises:
            EngineError: for nodes forgotten, dropped or unknown.
        """
        ...

    def forget(self, nodes: Sequence[int]) -> None:
        """Free the log-probabilities of these nodes; they can still be extended."""
        ...

    def depth(self, node: int) -> int:
        """The number of tokens after the prompt."""
        ...

    def tokens(self, node: int) -> tuple[int, ...]:
        """The token string after the prompt."""
        ...

    def keep(self, nodes: Sequence[int]) -> None:
        """Drop every node that is neither one of these nor an ancestor of one.

        Kept nodes keep their ids and their log-probabilities; a dropped one raises `EngineError`
        from then on.
        """
        ...


@runtime_checkable
class TokenLM(Protocol):
    """A tokenized language model: a vocabulary, and trees of evaluated contexts."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary Δ, with κ; its width is that of `TokenTree.logprobs`."""
        ...

    @property
    def window(self) -> int | None:
        """The longest context in tokens, prompt included; None where there is no bound."""
        ...

    @property
    def device(self) -> torch.device:
        """The device of the log-probabilities."""
        ...

    def tree(self, prompt_ids: Sequence[int], edges: Sequence[tuple[int, int]] = ()) -> TokenTree:
        """A tree whose root is this prompt, evaluated in one pass.

        Args:
            prompt_ids: start-of-text, special tokens and all else to condition on; at least one.
            edges: as for `TokenTree.extend`, evaluated in the same pass if the engine can: the
                nodes 1, 2, … of the tree.

        Raises:
            ContextLengthError: for a prompt longer than the window.
            EngineError: for an empty prompt, or ids outside the vocabulary.
        """
        ...

    def info(self) -> dict[str, str]:
        """The engine, device and dtype, and how and why contexts share prefixes: for reports."""
        ...


def held_bytes(tree: TokenTree, width: int) -> int:
    """Return the bytes that a tree holds: its `nbytes`, or else those of its log-probabilities.

    >>> import charwise
    >>> lm = charwise.load()
    >>> tree = lm.engine.tree(lm.vocabulary.bos_ids)
    >>> before, [node] = held_bytes(tree, lm.vocabulary.width), tree.extend([(0, 5)])
    >>> held_bytes(tree, lm.vocabulary.width) - before >= 2 * lm.vocabulary.width
    True
    """
    return int(getattr(tree, "nbytes", 4 * width * tree.size))


#: Contexts that a tree is asked for: see `TokenTree.extend`.
Wish = tuple[TokenTree, Sequence[tuple[int, int]]]


@runtime_checkable
class TogetherLM(Protocol):
    """A `TokenLM` that can evaluate contexts of several of its trees in one model call."""

    def extend_together(self, wishes: Sequence[Wish]) -> list[list[int]] | None:
        """Extend each tree by its edges, all in one call, and return the nodes of each.

        Log-probabilities of all may be asked for. None, and nothing is evaluated, where this
        model or this many contexts cannot be called so: each tree's own `extend` can.

        Args:
            wishes: distinct trees of this engine, and their edges. A parent was there before.

        Raises:
            ContextLengthError, EngineError: as `TokenTree.extend`; all trees are as they were.
        """
        ...
