"""An engine around an engine, and a tree around a tree: each passes calls to the inner one.

A subclass changes what it is there for. In `CanonicalLM` only canonical token strings count: at
each context the tokens that no canonical token string goes on with have probability zero:

    canonical        p(t | δ) / Σ p(t' | δ) over the t' that may come next: a distribution again
    canonical-mass   p(t | δ) as it is: what is left out is missing from every sum

Everything that works on an engine works on these. With "canonical-mass" rows sum to less than one,
and every prefix probability is that share of →p(σ) which the canonical token strings have: a lower
bound. docs/coverings.md says which of the three is computed by whom, and what it changes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from charwise.errors import SettingError, shown
from charwise.token_lm import Estimand, TokenLM, TokenTree, held_bytes
from charwise.tokens.canonical_next import CanonicalNext, Standing
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

    def extend(self, edges: Sequence[tuple[int, int]]) -> list[int]:
        """See `TokenTree.extend`."""
        return self.inner.extend(edges)

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


ESTIMANDS: tuple[Estimand, ...] = get_args(Estimand)


def with_estimand(engine: TokenLM, estimand: Estimand) -> TokenLM:
    """The engine of an estimand; the same weights.

    Raises:
        SettingError: for an unknown one.
        VocabularyError: a tokenizer of which it is not known what is canonical.

    >>> from charwise.engines.load import open_engine
    >>> engine = open_engine()
    >>> with_estimand(engine, "all") is engine
    True
    >>> with_estimand(engine, "canonical").info()["estimand"]
    'canonical'
    """
    if estimand not in ESTIMANDS:
        raise SettingError(
            f"unknown estimand {shown(estimand)}: use {' or '.join(map(repr, ESTIMANDS))}."
        )
    return engine if estimand == "all" else CanonicalLM(engine, estimand)


class CanonicalLM(WrappedLM):
    """A `TokenLM` in which only canonical token strings have a probability.

    Args:
        engine: the model.
        estimand: "canonical" or "canonical-mass".

    >>> from charwise.engines.load import open_engine
    >>> lm = CanonicalLM(open_engine(), "canonical")
    >>> tree = lm.tree(lm.vocabulary.bos_ids)
    >>> imp, ort = (lm.vocabulary.encode(text)[0] for text in ("imp", "ort"))
    >>> [node] = tree.extend([(0, imp)])
    >>> float(tree.logprobs([node])[0, ort])  # "import" is one token
    -inf
    """

    def __init__(self, engine: TokenLM, estimand: Estimand) -> None:
        super().__init__(engine)
        self.estimand = estimand
        self.canonical = CanonicalNext.of(engine.vocabulary)

    def info(self) -> dict[str, str]:
        """The engine's description, and which token strings count."""
        return {**self.engine.info(), "estimand": self.estimand}

    def tree(
        self, prompt_ids: Sequence[int], edges: Sequence[tuple[int, int]] = ()
    ) -> _CanonicalTree:
        """A tree whose root is this prompt; see `TokenLM.tree`.

        The prompt is conditioned on however it is spelled; what follows it is canonical from
        its last special token on.
        """
        return _CanonicalTree(self, self.engine.tree(prompt_ids, edges), prompt_ids, edges)

    def __reduce__(self) -> tuple[Any, ...]:
        return (with_estimand, (self.engine, self.estimand))


class _CanonicalTree(WrappedTree):
    """A tree of such an engine; see `TokenTree`."""

    def __init__(
        self,
        lm: CanonicalLM,
        tree: TokenTree,
        prompt_ids: Sequence[int],
        edges: Sequence[tuple[int, int]],
    ) -> None:
        super().__init__(tree, lm.vocabulary.width)
        self._lm = lm
        self._edges = [(-1, -1), *edges]  # of each node: its parent, and its last token
        self._standing: dict[int, Standing | None] = {0: lm.canonical.start(prompt_ids)}
        self._lock = threading.RLock()

    def extend(self, edges: Sequence[tuple[int, int]]) -> list[int]:
        """See `TokenTree.extend`."""
        with self._lock:
            nodes = self.inner.extend(edges)
            self._edges += edges
        return nodes

    def logprobs(self, nodes: Sequence[int]) -> torch.Tensor:
        """See `TokenTree.logprobs`; −inf for tokens that are not canonical, and all after them.

        Rows sum to one with "canonical", or to nothing where no token may come next; with
        "canonical-mass", to what the canonical next tokens have.
        """
        import torch

        rows = self.inner.logprobs(nodes)
        if not len(nodes):
            return rows
        may = np.stack([self._may(node) for node in nodes])
        rows = rows.masked_fill(~torch.from_numpy(may).to(rows.device), -torch.inf)
        if self._lm.estimand == "canonical":
            sums = rows.logsumexp(dim=1, keepdim=True)
            rows = rows - sums.masked_fill(sums == -torch.inf, 0.0)
        return rows

    def _may(self, node: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return the tokens that may come next at a node, `[width]`."""
        standing = self._stands(node)
        if standing is None:
            return np.zeros(self._lm.vocabulary.width, dtype=np.bool_)
        return self._lm.canonical.row(standing)

    def _stands(self, node: int) -> Standing | None:
        """Where a node's token string stands; None if it is not canonical."""
        with self._lock:
            path = []
            while node not in self._standing:
                path.append(node)
                node = self._edges[node][0]
            standing = self._standing[node]
            for node in reversed(path):
                if standing is not None:
                    standing = self._lm.canonical.after(standing, self._edges[node][1])
                self._standing[node] = standing
        return standing
