"""An engine around an engine, and a tree around a tree: each passes calls to the inner one.

A subclass changes what it is there for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from charwise.token_lm import TokenLM, TokenTree, held_bytes
from charwise.tokens.vocabulary import Vocabulary

if TYPE_CHECKING:
    import torch


class WrappedLM:
    """A `TokenLM` that hands everything on.

    Args:
        engine: the inner one.

    >>> from charwise.engines.load import open_engine
    >>> WrappedLM(open_engine()).window
    2048
    """

    def __init__(self, engine: TokenLM) -> None:
        self.engine = engine

    @property
    def vocabulary(self) -> Vocabulary:
        """Δ and κ."""
        return self.engine.vocabulary

    @property
    def window(self) -> int | None:
        """Longest context in tokens."""
        return self.engine.window

    @property
    def device(self) -> torch.device:
        """The device of the log-probabilities."""
        return self.engine.device

    def info(self) -> dict[str, str]:
        """Return the names of the model and of its device."""
        return self.engine.info()

    def tree(self, prompt_ids: Sequence[int], edges: Sequence[tuple[int, int]] = ()) -> TokenTree:
        """Return a tree whose root is this prompt; see `TokenLM.tree`."""
        return WrappedTree(self.engine.tree(prompt_ids, edges), self.vocabulary.width)


class WrappedTree:
    """A `TokenTree` that hands everything on.

    Args:
        tree: the inner one.
        width: of its rows of log-probabilities.
    """

    root = 0

    def __init__(self, tree: TokenTree, width: int) -> None:
        self.inner = tree
        self._width = width

    @property
    def size(self) -> int:
        """Nodes handed out so far."""
        return self.inner.size

    @property
    def contexts(self) -> int:
        """Contexts evaluated so far."""
        return self.inner.contexts

    @property
    def calls(self) -> int:
        """The number of model calls so far."""
        return self.inner.calls

    @property
    def nbytes(self) -> int:
        """Bytes held: told by the engine, or those of all log-probabilities."""
        return held_bytes(self.inner, self._width)

    def extend(
        self, edges: Sequence[tuple[int, int]], logprobs: Sequence[bool] | None = None
    ) -> list[int]:
        """See `TokenTree.extend`."""
        return self.inner.extend(edges, logprobs)

    def logprobs(self, nodes: Sequence[int]) -> torch.Tensor:
        """See `TokenTree.logprobs`."""
        return self.inner.logprobs(nodes)

    def forget(self, nodes: Sequence[int]) -> None:
        """See `TokenTree.forget`."""
        self.inner.forget(nodes)

    def depth(self, node: int) -> int:
        """Return the number of tokens after the prompt."""
        return self.inner.depth(node)

    def tokens(self, node: int) -> tuple[int, ...]:
        """Return the token string after the prompt."""
        return self.inner.tokens(node)

    def keep(self, nodes: Sequence[int]) -> None:
        """See `TokenTree.keep`."""
        self.inner.keep(nodes)
