"""Any causal language model of transformers as a `TokenLM`.

Contexts share one cache by tree attention (`tree_attention.py`) where the model takes a mask, and
have a cache per branch (`branch_cache.py`) where it does not; `choice.py` finds out which.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from charwise.engines.transformers.choice import Choice, Trial, choose, try_together
from charwise.engines.transformers.forward import Forward, check_causal, not_numbers
from charwise.engines.transformers.together import Together
from charwise.engines.tree_nodes import TreeNodes
from charwise.errors import EngineError
from charwise.token_lm import Wish
from charwise.tokens.vocabulary import Vocabulary

#: Where configurations state the longest context.
_WINDOWS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


class TransformersLM:
    """A causal language model of transformers.

    Args:
        model: an instance of any `…ForCausalLM`, on any device, in any dtype. It is put into
            eval mode, and otherwise left as it is.
        vocabulary: as wide as the model's output layer.
        window: longest context in tokens; by default what the configuration says.
        batch_bytes: bound on the logits, and on the attention mask, of one model call. Larger
            calls to `extend` are split; the prompt is always one call.
        path: "tree" for tree attention, "branches" for a cache per branch, "auto" for the first
            of them that works.

    Raises:
        EngineError: for a model that is not a causal language model with a cache.

    >>> import torch
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1)
    >>> config = LlamaConfig(vocab_size=4, num_attention_heads=2, **sizes)
    >>> vocabulary = Vocabulary.from_bytes([b"a", b"b", None], end_ids=[2], bos_ids=[2], width=4)
    >>> lm = TransformersLM(LlamaForCausalLM(config), vocabulary)
    >>> tree = lm.tree([2])
    >>> tree.extend([(0, 0), (0, 1), (1, 1)])
    [1, 2, 3]
    >>> tree.logprobs([3]).shape, tree.logprobs([3])[0, 3].item()       # id 3 is not a token
    (torch.Size([1, 4]), -inf)
    >>> lm.info()["path"]
    'tree attention'
    """

    def __init__(
        self,
        model: Any,
        vocabulary: Vocabulary,
        *,
        window: int | None = None,
        batch_bytes: int = 256 * 2**20,
        path: Literal["auto", "tree", "branches"] = "auto",
    ) -> None:
        #: What `__reduce__` returns, if set: by who can open this engine again, by its arguments.
        self.origin: tuple[Any, ...] | None = None
        check_causal(model)
        self.vocabulary = vocabulary
        self.model = model.eval()
        self.batch_bytes = batch_bytes
        self._forward = Forward(model, vocabulary.width)
        self.window = window if window is not None else _window(self._forward.config)
        self._path = path
        self._lock = threading.Lock()
        self._chosen: Choice | None = None
        self._together: Together | Literal[False] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        if self.origin is not None:
            return self.origin
        # With its weights. Which path works is found out anew where the copy is used.
        settings: dict[str, Any] = {
            "window": self.window,
            "batch_bytes": self.batch_bytes,
            "path": self._path,
        }
        return (partial(TransformersLM, **settings), (self.model, self.vocabulary))

    @property
    def device(self) -> torch.device:
        """The device of the log-probabilities: the model's."""
        return self._forward.device

    def tree(
        self, prompt_ids: Sequence[int], edges: Sequence[tuple[int, int]] = ()
    ) -> TransformersTree:
        """A tree whose root is this prompt, and its first nodes; see `TokenLM.tree`."""
        return TransformersTree(self, prompt_ids, edges)

    def info(self) -> dict[str, str]:
        """The engine, device and dtype, and how and why contexts share prefixes."""
        chosen = self.choice()
        return {
            "engine": f"transformers {transformers.__version__}",
            "model": type(self.model).__name__,
            "device": str(self.device),
            "dtype": str(self._forward.dtype).removeprefix("torch."),
            "attention": self._forward.attention,
            "path": chosen.name,
            "why": chosen.why,
        }

    def choice(self) -> Choice:
        """The way in which contexts share prefixes, settled once, before the first tree."""
        with self._lock:
            if self._chosen is None:
                self._chosen = choose(self._trial(), self._path)
            return self._chosen

    def _trial(self) -> Trial:
        text = [id for id, token in enumerate(self.vocabulary.tokens) if token is not None]
        counted = np.flatnonzero(self.vocabulary.counted)
        return Trial(self._forward, text, counted, self.window)

    def extend_together(self, wishes: Sequence[Wish]) -> list[list[int]] | None:
        """Extend several of its trees in one call, if the model can be so called.

        See `TogetherLM.extend_together`.
        """
        choice = self.choice()
        with self._lock:
            if self._together is None:
                self._together = try_together(self._trial(), choice) or False
        together = self._together
        trees = [tree for tree, _ in wishes]
        own = all(isinstance(tree, TransformersTree) and tree._lm is self for tree in trees)
        if not together or not own:
            return None
        return _extended(together, wishes, self.batch_bytes)  # type: ignore[arg-type]


class TransformersTree(TreeNodes):
    """The `TokenTree` of a `TransformersLM`."""

    def __init__(
        self, lm: TransformersLM, prompt_ids: Sequence[int], edges: Sequence[tuple[int, int]]
    ) -> None:
        super().__init__(lm, prompt_ids, edges)
        self._lm = lm
        self._cache = lm.choice().make()
        self._row = list(self.live)  # node → row of the cache, for live nodes
        with torch.inference_mode():
            logits, self.calls = self._cache.start(
                self._prompt_ids, [parent for parent, _ in edges], [id for _, id in edges]
            )
            self._put(self.live, logits)
        self.contexts = self.size

    def _evaluate(self, nodes: list[int], wanted: list[bool]) -> int:
        """In as many calls as keep to `batch_bytes`."""
        rows, asked = self._cache.rows, np.array(wanted, np.bool_)
        self._row += range(rows, rows + len(nodes))
        done = 0
        while done < len(nodes):
            call = slice(done, done + self._fit(asked[done:]))
            self._call(nodes[call], asked[call])
            done = call.stop
        return len(nodes)

    def _take_back(self, size: int) -> None:
        self._cache.truncate(bisect_left(self.live, size))  # rows are the live nodes in order
        del self._row[size:]

    def _fit(self, wanted: NDArray[np.bool_]) -> int:
        """How many nodes the next call may have, so that it keeps to `batch_bytes`."""
        limit = self._lm.batch_bytes
        rows = min(len(wanted), limit // self._cache.row_bytes(len(wanted)))
        logits = np.cumsum(wanted[:rows]) * 4 * self._lm.vocabulary.width
        return max(1, int(np.searchsorted(logits, limit, "right")))

    @torch.inference_mode()
    def _call(self, nodes: list[int], wanted: NDArray[np.bool_]) -> None:
        """One call of the cache; keeps the logits of the wanted nodes."""
        parents = np.array([self._row[self._parent[node]] for node in nodes])
        tokens = [self._token[node] for node in nodes]
        picked = np.flatnonzero(wanted)
        logits = self._cache.append(parents, tokens, picked)
        self._put([nodes[i] for i in picked.tolist()], logits)
        self.calls += 1

    def _not_numbers(self) -> EngineError:
        return not_numbers(self._lm._forward)

    @property
    def nbytes(self) -> int:
        """Bytes held: keys and values with their room to grow, and logits."""
        return self._cache.nbytes + super().nbytes

    @torch.inference_mode()
    def _free(self, nodes: set[int]) -> None:
        self._cache.select(np.array([self._row[node] for node in self.live]))
        for row, node in enumerate(self.live):
            self._row[node] = row


@torch.inference_mode()
def _extended(
    together: Together,
    wishes: Sequence[tuple[TransformersTree, Sequence[tuple[int, int]]]],
    batch_bytes: int,
) -> list[list[int]] | None:
    """New nodes of distinct trees, evaluated in one call; None if that would be too large."""
    trees, count = [tree for tree, _ in wishes], sum(len(edges) for _, edges in wishes)
    with ExitStack() as stack:
        for tree in sorted(trees, key=id):  # in one order, or two callers wait for each other
            stack.enter_context(tree._lock)
        row = max(tree._cache.row_bytes(count) + 4 * tree._width for tree in trees)
        if count * row > batch_bytes:
            return None
        new = [stack.enter_context(tree._growing(edges)) for tree, edges in wishes]
        for tree, nodes in zip(trees, new, strict=True):
            tree._row += range(tree._cache.rows, tree._cache.rows + len(nodes))
        logits = together.append(
            [tree._cache for tree in trees],  # type: ignore[misc]
            [
                np.array([tree._row[tree._parent[node]] for node in nodes])
                for tree, nodes in zip(trees, new, strict=True)
            ],
            [[tree._token[node] for node in nodes] for tree, nodes in zip(trees, new, strict=True)],
        )
        for tree, nodes, part in zip(trees, new, logits, strict=True):
            tree._put(nodes, part)
            tree.contexts += len(nodes)
            tree.calls += 1
    return new


def _window(config: Any) -> int | None:
    """The longest context that the configuration states, if it does."""
    for name in _WINDOWS:
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None
