"""An engine of ours cut down to its k best tokens: what a server would tell of the same model.

To see what bounds are worth before there is a server, and to test them against the truth.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from charwise.errors import EngineError, check_count
from charwise.partial_lm import Best
from charwise.token_lm import TokenLM
from charwise.tokens.vocabulary import Vocabulary


class TopK:
    """A `PartialLM` that knows all, and tells the `k` best.

    Args:
        engine: the model.
        k: how many next tokens it tells, end tokens among them.
        prices: whether it tells the log-probability of a context's own last token.

    Attributes:
        rounding: of float32 log-probabilities, or of float64.
        contexts: how many it was asked about.
        calls: in how many calls.

    >>> from charwise.engines.ngram import NgramLM
    >>> vocabulary = Vocabulary.from_bytes([b"a", b"ab", None], end_ids=[2], bos_ids=[2])
    >>> engine = TopK(NgramLM(vocabulary, 1, {(): [0.5, 0.3, 0.2]}), 2)
    >>> [best] = engine.best([(2, 1)], [True])
    >>> best.ids, np.exp(best.logprobs).round(9), round(np.exp(best.last), 9)
    (array([0, 1]), array([0.5, 0.3]), np.float64(0.3))
    """

    def __init__(self, engine: TokenLM, k: int, *, prices: bool = True) -> None:
        check_count("k", k, 1)
        self.vocabulary: Vocabulary = engine.vocabulary
        self.window = engine.window
        self.k = min(k, int(engine.vocabulary.counted.sum()))
        self.rounding = 1e-15
        self.contexts = self.calls = 0
        self._engine = engine
        self._prices = prices

    def best(self, contexts: Sequence[tuple[int, ...]], priced: Sequence[bool]) -> list[Best]:
        """See `PartialLM.best`."""
        if len(priced) != len(contexts):
            raise EngineError(f"{len(priced)} wishes for prices, {len(contexts)} contexts.")
        if not contexts:
            return []
        self.calls += 1
        self.contexts += len(contexts)
        rows = self._rows(contexts)
        return [self._best(rows, *each) for each in zip(contexts, priced, strict=True)]

    def info(self) -> dict[str, str]:
        """What the whole engine says, and how much of it is told."""
        return {**self._engine.info(), "told": f"the {self.k} best next tokens"}

    def _rows(self, contexts: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], torch.Tensor]:
        """Log-probabilities `[width]` after each context, and before its last token."""
        needed = {*contexts, *(context[:-1] for context in contexts if len(context) > 1)}
        rows: dict[tuple[int, ...], torch.Tensor] = {}
        for first in {context[0] for context in needed}:
            rows |= self._rows_after([context for context in needed if context[0] == first])
        return rows

    def _rows_after(self, needed: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], torch.Tensor]:
        """The same, of contexts that all begin with the same token, on one tree."""
        common = min(map(len, needed))
        while len({context[:common] for context in needed}) > 1:
            common -= 1
        nodes = {needed[0][:common]: 0}
        edges: list[tuple[int, int]] = []
        for context in needed:
            for end in range(common + 1, len(context) + 1):
                if context[:end] not in nodes:
                    nodes[context[:end]] = len(nodes)
                    edges.append((nodes[context[: end - 1]], context[end - 1]))
        tree = self._engine.tree(needed[0][:common])
        tree.extend(edges)
        rows = tree.logprobs([nodes[context] for context in needed]).cpu()
        if rows.dtype != torch.float64:
            self.rounding = 2e-6
        return dict(zip(needed, rows.double(), strict=True))

    def _best(
        self, rows: dict[tuple[int, ...], torch.Tensor], context: tuple[int, ...], priced: bool
    ) -> Best:
        logs, ids = rows[context].topk(self.k)
        everything = self.k == int(self.vocabulary.counted.sum())
        most = -np.inf if everything else float(logs[-1])
        told = logs > -np.inf
        last = None
        if priced and self._prices and len(context) > 1:
            last = float(rows[context[:-1]][context[-1]])
        return Best(ids[told].numpy(), logs[told].numpy(), most, last)
