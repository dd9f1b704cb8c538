"""Exact little models for tests and teaching: a table of p(token | last n-1 tokens).

Probabilities are float64, zeros are allowed, and nothing is learnt or approximated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from charwise.engines.tree_nodes import Contexts, check_prompt, not_there
from charwise.errors import EngineError
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
            raise EngineError(f"order is {order}: an n-gram model needs n ≥ 1.")
        self.vocabulary = vocabulary
        self.order = order
        self.window = window
        self.device = torch.device("cpu")
        self._rows = rows
        self._logs: dict[tuple[int, ...], NDArray[np.float64]] = {}

    @classmethod
    def random(
        cls,
        vocabulary: Vocabulary,
        order: int,
        rng: np.random.Generator | int,
        *,
        zeros: float = 0.0,
        concentration: float = 1.0,
        window: int | None = None,
    ) -> NgramLM:
        """A model whose every row is drawn at random, once, from one seed.

        Args:
            rng: a generator, from which one integer is taken, or that integer.
            zeros: chance of each token, end of text included, to get probability exactly 0 in a
                context. The first token of text is never 0, and end of text never is after it,
                so that the end can be reached from everywhere.
            concentration: of the Dirichlet distribution of rows; small values make peaked models.

        >>> vocabulary = Vocabulary.from_bytes([b"a", b"b", b"ab", None], end_ids=[3], bos_ids=[3])
        >>> lm, same = (NgramLM.random(vocabulary, 3, 7, zeros=0.3) for _ in range(2))
        >>> bool((lm.row((0, 1)) == same.row((0, 1))).all()), round(float(lm.row((0, 1)).sum()), 12)
        (True, 1.0)
        """
        seed = rng if isinstance(rng, int) else int(rng.integers(2**63))
        return cls(
            vocabulary, order, _RandomRows(vocabulary, seed, zeros, concentration), window=window
        )

    def row(self, context: Sequence[int]) -> NDArray[np.float64]:
        """p(· | context) as `[width]` float64; only the last n-1 tokens of the context matter."""
        return np.exp(self._log_row(tuple(context)))

    def logprob(self, tokens: Sequence[int], prompt_ids: Sequence[int]) -> float:
        """log →p_Δ(tokens | prompt), in nats: the product of its table entries."""
        ids = (*prompt_ids, *tokens)
        return float(sum(self._log_row(ids[:i])[ids[i]] for i in range(len(prompt_ids), len(ids))))

    def tree(self, prompt_ids: Sequence[int], edges: Sequence[tuple[int, int]] = ()) -> NgramTree:
        """A tree whose root is this prompt, and its first nodes; see `TokenLM.tree`."""
        check_prompt(prompt_ids, self.vocabulary, self.window)
        tree = NgramTree(self, tuple(int(id) for id in prompt_ids))
        tree.extend(edges)
        return tree

    def info(self) -> dict[str, str]:
        """What kind of model this is, for reports."""
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
                raise EngineError(f"the table has no row for the context {context}: add one.")
            given = self._rows[context] if isinstance(self._rows, Mapping) else self._rows(context)
            row = np.asarray(given, dtype=np.float64)
            counted = self.vocabulary.counted
            if row.shape != counted.shape or not (row >= 0).all() or row[~counted].any():
                raise EngineError(
                    f"the row of {context} is {row}: it must have {counted.size} probabilities, "
                    "none negative, and zero for ids that the vocabulary does not count."
                )
            if abs(row.sum() - 1) > 1e-9:
                raise EngineError(f"the row of {context} sums to {row.sum()}, not to 1.")
            with np.errstate(divide="ignore"):
                self._logs[context] = np.log(row / row.sum())
        return self._logs[context]


class NgramTree:
    """The `TokenTree` of an `NgramLM`; it keeps no log-probabilities, since the table has them."""

    root = 0

    def __init__(self, lm: NgramLM, prompt_ids: tuple[int, ...]) -> None:
        self._lm = lm
        self._prompt_ids = prompt_ids
        self._contexts = Contexts()
        self._wanted = {0}
        self._lock = threading.Lock()
        self.contexts = 1
        self.calls = 1

    @property
    def size(self) -> int:
        """Nodes handed out so far."""
        return len(self._contexts)

    def extend(
        self, edges: Sequence[tuple[int, int]], logprobs: Sequence[bool] | None = None
    ) -> list[int]:
        """See `TokenTree.extend`."""
        if not edges:
            return []
        with self._lock:
            self._contexts.check_edges(
                edges, self._lm.vocabulary.width, len(self._prompt_ids), self._lm.window
            )
            new = self._contexts.add(edges)
            wanted = [True] * len(new) if logprobs is None else logprobs
            self._wanted.update(node for node, want in zip(new, wanted, strict=True) if want)
            self.contexts += len(new)
            self.calls += 1
        return new

    def logprobs(self, nodes: Sequence[int]) -> torch.Tensor:
        """See `TokenTree.logprobs`: `[n, width]` float64."""
        self._contexts.check(nodes)
        for node in nodes:
            if node not in self._wanted:
                raise not_there(node)
        rows = np.empty((len(nodes), self._lm.vocabulary.width))
        for i, node in enumerate(nodes):
            rows[i] = self._lm._log_row(self._prompt_ids + self._contexts.tokens(node))
        return torch.from_numpy(rows)

    def forget(self, nodes: Sequence[int]) -> None:
        """See `TokenTree.forget`."""
        with self._lock:
            self._contexts.check(nodes)
            self._wanted.difference_update(nodes)

    def depth(self, node: int) -> int:
        """Tokens after the prompt."""
        self._contexts.check((node,))
        return self._contexts.depth[node]

    def tokens(self, node: int) -> tuple[int, ...]:
        """The token string after the prompt."""
        self._contexts.check((node,))
        return self._contexts.tokens(node)

    def keep(self, nodes: Sequence[int]) -> None:
        """See `TokenTree.keep`."""
        with self._lock:
            self._wanted -= self._contexts.drop_all_but(nodes)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state, _lock=threading.Lock())


class _RandomRows:
    """A row per context, from a generator seeded with the context: picklable, order-independent."""

    def __init__(
        self, vocabulary: Vocabulary, seed: int, zeros: float, concentration: float
    ) -> None:
        self._seed, self._zeros, self._concentration = seed, zeros, concentration
        self._counted = vocabulary.counted
        self._ends = list(vocabulary.end_ids)
        # Some token must stay possible everywhere, and lead to the end, or mass would be trapped.
        self._safe = next(id for id, token in enumerate(vocabulary.tokens) if token is not None)

    def __call__(self, context: tuple[int, ...]) -> NDArray[np.float64]:
        rng = np.random.default_rng([self._seed, len(context), *context])
        allowed = self._counted & (rng.random(self._counted.size) >= self._zeros)
        allowed[self._safe] = True
        if context[-1:] in ((), (self._safe,)):
            allowed[self._ends] = True
        # The uniform part keeps what is allowed above zero: small gammas underflow.
        row = allowed * rng.gamma(self._concentration, size=allowed.size)
        row += allowed * (0.01 * row.sum() / allowed.sum() or 1.0)
        probabilities: NDArray[np.float64] = row / row.sum()
        return probabilities
