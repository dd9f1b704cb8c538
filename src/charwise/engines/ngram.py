"""Exact little models for tests and teaching: a table of p(token | last n-1 tokens).

Probabilities are float64, zeros are allowed, and nothing is learnt or approximated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from charwise.engine import Branches
from charwise.engines.base import BaseTree
from charwise.errors import ModelError
from charwise.tokens.vocabulary import Vocabulary

#: The probabilities `[width]` of the next token, given the last (up to) n-1 tokens.
Rows = Callable[[tuple[int, ...]], ArrayLike]


class NgramLM:
    """A `TokenLM` given by its table.

    Args:
        vocabulary: its `counted` ids share the probability.
        order: n; a row depends on the last n-1 tokens, prompt included.
        rows: the table, as a mapping or a function of a tuple of at most `order - 1` ids (fewer
            near the start of the prompt). Rows must be non-negative, zero where the vocabulary
            does not count, and sum to 1.
        window: pretend to have one, to test what does.

    >>> vocabulary = Vocabulary.from_bytes([b"a", b"ab", None], end_ids=[2], bos_ids=[2])
    >>> lm = NgramLM(vocabulary, 1, {(): [0.5, 0.25, 0.25]})
    >>> lm.tree([2]).logprobs([0]).exp()
    tensor([[0.5000, 0.2500, 0.2500]], dtype=torch.float64)
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        order: int,
        rows: Mapping[tuple[int, ...], ArrayLike] | Rows,
        *,
        window: int | None = None,
    ) -> None:
        if order < 1:
            raise ModelError(f"order is {order}: an n-gram model needs n ≥ 1.")
        self.vocabulary = vocabulary
        self.order = order
        self.window = window
        self.device = torch.device("cpu")
        self._rows = rows
        self._logs: dict[tuple[int, ...], NDArray[np.float64]] = {}

    def row(self, context: Sequence[int]) -> NDArray[np.float64]:
        """Return p(· | context) as `[width]` float64, by the last n-1 tokens of the context."""
        return np.exp(self._log_row(tuple(context)))

    def logprob(self, tokens: Sequence[int], prompt_ids: Sequence[int]) -> float:
        """Return log →p_Δ(tokens | prompt), in nats: the product of its table entries."""
        ids = (*prompt_ids, *tokens)
        return float(sum(self._log_row(ids[:i])[ids[i]] for i in range(len(prompt_ids), len(ids))))

    def tree(self, prompt_ids: Sequence[int], branches: Branches = ()) -> _NgramTree:
        tree = _NgramTree(self, prompt_ids)
        tree.extend(branches)
        return tree

    def info(self) -> dict[str, str]:
        return {
            "engine": "ngram",
            "model": f"{self.order}-gram over {self.vocabulary.width} ids",
            "device": "cpu",
            "dtype": "float64",
            "path": "table",
            "why": "a row depends on its context alone",
        }

    def _log_row(self, context: tuple[int, ...]) -> NDArray[np.float64]:
        context = context[max(0, len(context) - self.order + 1) :]
        if context not in self._logs:
            if isinstance(self._rows, Mapping) and context not in self._rows:
                raise ModelError(f"the table has no row for the context {context}: add one.")
            values = self._rows[context] if isinstance(self._rows, Mapping) else self._rows(context)
            row = np.asarray(values, dtype=np.float64)
            counted = self.vocabulary.counted
            if row.shape != counted.shape or not (row >= 0).all() or row[~counted].any():
                raise ModelError(
                    f"the row of {context} is {row}: it must have {counted.size} probabilities, "
                    "none negative, and zero for ids that the vocabulary does not count."
                )
            if abs(row.sum() - 1) > 1e-9:
                raise ModelError(f"the row of {context} sums to {row.sum()}, not to 1.")
            with np.errstate(divide="ignore"):
                self._logs[context] = np.log(row / row.sum())
        return self._logs[context]


class _NgramTree(BaseTree):
    """The `TokenTree` of an `NgramLM`; it keeps no log-probabilities, since the table has them."""

    def __init__(self, lm: NgramLM, prompt_ids: Sequence[int]) -> None:
        super().__init__(lm, prompt_ids)
        self._lm = lm
        self._known = {0}
        self.contexts = self.calls = 1

    def _evaluate(self, nodes: list[int]) -> None:
        self._known.update(nodes)
        self.calls += 1

    def logprobs(self, nodes: Sequence[int]) -> torch.Tensor:
        self._check(nodes)
        for node in nodes:
            if node not in self._known:
                raise self._forgotten(node)
        rows = np.empty((len(nodes), self._lm.vocabulary.width))
        for i, node in enumerate(nodes):
            rows[i] = self._lm._log_row((*self._prompt_ids, *self.tokens(node)))
        return torch.from_numpy(rows)

    def _forget(self, nodes: Collection[int]) -> None:
        self._known.difference_update(nodes)
