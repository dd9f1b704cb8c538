"""Any causal language model of transformers as a `TokenLM`.

A context owns one *slot* of a flat key-value cache, that of its last token, after the slots of the
prompt. By one mask for a call it attends to the slots of the prompt, of its ancestors and its own.
Positions are path lengths, and so are the distances that a sliding window limits. Models whose
layers take no mask have a cache for each branch (`branches.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers.cache_utils import Cache, DynamicLayer

from charwise.engine import Branches, TokenLM, TokenTree
from charwise.engines.base import BaseTree
from charwise.engines.branches import BranchTree
from charwise.engines.forward import Forward, GPTNeoForward, SlotLayer
from charwise.errors import ModelError
from charwise.tokens.vocabulary import Vocabulary

#: Where configurations state the longest context.
_WINDOWS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")

#: Entries of a mask over a whole prompt, at most: a longer one has its branches in a second call.
_SMALL_MASK = 2**22

#: Largest difference of a tree's log-probabilities to plain passes, relative to their spread,
#: that passes for rounding. A wrong mask is off by far more, unless attention hardly matters.
_TOLERANCE = {torch.float64: 1e-5, torch.float32: 5e-3, torch.float16: 0.05, torch.bfloat16: 0.1}


class TransformersLM:
    """A causal language model of transformers.

    Args:
        model: an instance of any `…ForCausalLM`, on any device, in any dtype. It is put into
            eval mode, and otherwise left as it is.
        vocabulary: as wide as the model's output layer.
        window: longest context in tokens; by default what the configuration says.

    Attributes:
        origin: what `__reduce__` returns, if set: by who can open this engine again, by its name.

    Raises:
        ModelError: for a model that is not a causal language model with a cache.

    >>> import torch
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1)
    >>> config = LlamaConfig(vocab_size=4, num_attention_heads=2, **sizes)
    >>> vocabulary = Vocabulary.from_bytes([b"a", b"b", None], end_ids=[2], bos_ids=[2], width=4)
    >>> lm = TransformersLM(LlamaForCausalLM(config), vocabulary)
    >>> tree = lm.tree([2])
    >>> tree.extend([(0, [0, 1]), (0, [1])])
    [[1, 2], [3]]
    >>> tree.logprobs([3]).shape, tree.logprobs([3])[0, 3].item()       # id 3 is not a token
    (torch.Size([1, 4]), -inf)
    >>> lm.info()["path"]
    'tree attention'
    """

    def __init__(self, model: Any, vocabulary: Vocabulary, *, window: int | None = None) -> None:
        self.origin: tuple[Any, ...] | None = None
        gpt_neo = getattr(getattr(model, "config", None), "model_type", "") == "gpt_neo"
        self.forward = (GPTNeoForward if gpt_neo else Forward)(model, vocabulary.width)
        self.model = model.eval()
        self.vocabulary = vocabulary
        config = self.forward.config
        stated = (getattr(config, name, None) for name in _WINDOWS) if window is None else [window]
        self.window = next((size for size in stated if isinstance(size, int) and size > 0), None)
        self._lock = threading.Lock()
        self._kind: tuple[type[_FlatTree | BranchTree], str] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # With its weights. Which path works is found out anew where the copy is used.
        whole = partial(TransformersLM, window=self.window), (self.model, self.vocabulary)
        return self.origin or whole

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    def tree(self, prompt_ids: Sequence[int], branches: Branches = ()) -> TokenTree:
        return self._settle()[0](self, self.forward, prompt_ids, branches)

    def info(self) -> dict[str, str]:
        kind, why = self._settle()
        return {
            "engine": f"transformers {transformers.__version__}",
            "model": type(self.model).__name__,
            "device": str(self.device),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "attention": self.forward.attention,
            "path": "tree attention" if kind is _FlatTree else "cache per branch",
            "why": why,
        }

    def extend_together(
        self, wishes: Sequence[tuple[TokenTree, Branches]]
    ) -> list[list[list[int]]] | None:
        """Extend several of its trees in one call; see `TogetherLM.extend_together`."""
        trees = [
            tree
            for tree, _ in wishes
            if isinstance(tree, _FlatTree) and tree.forward is self.forward
        ]
        if len(trees) < len(wishes):
            return None
        count = sum(len(tokens) for _, branches in wishes for _, tokens in branches)
        with ExitStack() as stack:
            for tree in sorted(trees, key=id):  # in one order, or two callers wait for each other
                stack.enter_context(tree._lock)
            slots = count + sum(tree.slots for tree in trees)
            if count * 4 * (slots + self.vocabulary.width) > self.forward.batch_bytes:
                return None
            grown = [
                stack.enter_context(tree._growing(branches, own=True))
                for tree, (_, branches) in zip(trees, wishes, strict=True)
            ]
            if pairs := [(tree, new) for tree, (_, new) in zip(trees, grown, strict=True) if new]:
                _evaluate_trees(pairs)
            for tree, new in pairs:
                tree.contexts += len(new)
        return [nodes for nodes, _ in grown]

    def _settle(self) -> tuple[type[_FlatTree | BranchTree], str]:
        """The class of trees, and the reason for it; settled once, before the first tree."""
        with self._lock:
            if self._kind is None:
                self._kind = self._choose()
            return self._kind

    def _choose(self) -> tuple[type[_FlatTree | BranchTree], str]:
        """The first kind of trees that may work, and agrees with plain passes."""
        tolerance = _TOLERANCE.get(self.model.dtype, 0.1)
        why = self.forward.unmaskable or self._fault(_FlatTree, tolerance)
        if not why:
            return _FlatTree, "a small tree agrees with plain passes"
        if fault := self._fault(BranchTree, 4 * tolerance):
            raise ModelError(
                f"the contexts of {type(self.model).__name__} cannot share prefixes by its cache: "
                f"{fault}. Use a model whose cache is of transformers' own kinds."
            )
        return BranchTree, f"no tree attention: {why}"

    def _fault(self, kind: type[_FlatTree | BranchTree], tolerance: float) -> str:
        """Why trees of this kind do not work for the model; empty if they do."""
        try:
            error = self._discrepancy(kind)
        except (torch.OutOfMemoryError, ModelError):
            raise
        except Exception as failure:
            return f"the model refused ({failure!r})"
        return "" if error <= tolerance else f"{error:.1e} of the spread from plain passes"

    @torch.inference_mode()
    def _discrepancy(self, kind: type[_FlatTree | BranchTree]) -> float:
        """RMS difference of a small tree's log-probabilities to plain passes, by their spread.

        Sliding windows that are longer than the longest path, 9 tokens, are not put to the test.
        """
        text = [id for id, token in enumerate(self.vocabulary.tokens) if token is not None]
        ids = [text[i * len(text) // 8] for i in range(8)]
        small = self.window is not None and self.window < 9
        # A chain of 5, and branches of 2 off its start and off the root.
        tree = kind(self, self.forward, ids[:1] if small else ids[:3])
        chain = [(0, [ids[i] for i in (3, 6, 1, 4, 7)])]
        branches = [*chain, (0, [ids[3], *ids[2:4]]), (0, [ids[5], ids[0]])]
        nodes = [path[-1] for path in tree.extend([(0, ids[3:4])] if small else branches)]
        contexts = [[*tree._prompt_ids, *tree.tokens(node)] for node in nodes]
        plain = torch.cat([self.forward([context], keep=1)[0] for context in contexts])
        counted = torch.tensor(self.vocabulary.counted, device=plain.device)
        true = plain[:, counted].double().log_softmax(-1)
        if true.isnan().any():
            raise tree._not_numbers()
        difference = tree.logprobs(nodes)[:, counted].double() - true
        difference = difference.masked_fill(difference.isnan(), 0.0)  # −inf in both: ruled out
        if not (difference.abs() > 1e-6).any():
            return 0.0
        finite = true.isfinite()
        centred = true - true.where(finite, torch.nan).nanmean(-1, keepdim=True)
        spread = centred[finite].square().mean().sqrt()
        return float(difference.square().mean().sqrt() / spread)


class _FlatTree(BaseTree):
    """The contexts of one prompt in one flat cache; see `TokenTree`."""

    def __init__(
        self, lm: TokenLM, forward: Forward, prompt_ids: Sequence[int], branches: Branches = ()
    ) -> None:
        super().__init__(lm, prompt_ids, branches)
        self.forward = forward
        self.cache = Cache(layer_class_to_replicate=SlotLayer)
        self._slot: dict[int, int] = {}  # of each node
        self.positions = np.zeros(0, np.int64)  # [slots]: path lengths
        self._evaluate(self.live)
        self.contexts = self.size

    @property
    def slots(self) -> int:
        """Tokens of the prompt before its last, and nodes."""
        return len(self.positions)

    @property
    def nbytes(self) -> int:
        layers: list[SlotLayer] = self.cache.layers
        return super().nbytes + sum(layer.nbytes for layer in layers)

    def _evaluate(self, nodes: list[int]) -> None:
        """In as many calls as keep to `batch_bytes`."""
        done = 0
        if nodes[0] == 0:
            # One path needs no mask but the model's own, which a long prompt makes use of.
            done = next((n for n in nodes[1:] if self._parent[n] != n - 1), len(nodes))
            if done < len(nodes) and (len(self._prompt_ids) + len(nodes)) ** 2 <= _SMALL_MASK:
                done = len(nodes)
            _evaluate_trees([(self, nodes[:done])])
        while done < len(nodes):
            # Of the mask of one row, or of its attention scores where they are in memory; logits.
            eager = self.forward.attention == "eager"
            heads = getattr(self.forward.config, "num_attention_heads", 1) if eager else 1
            row_bytes = 4 * (heads * (self.slots + len(nodes)) + self._width)
            most = max(1, self.forward.batch_bytes // row_bytes)
            _evaluate_trees([(self, nodes[done : done + most])])
            done += most

    def place(self, nodes: list[int]) -> tuple[list[int], NDArray[np.bool_]]:
        """Give new nodes slots: the ids to evaluate, and the slots that each sees, `[n, slots]`."""
        first, before = self.slots, len(self._prompt_ids) - 1
        prompt = self._prompt_ids[:-1] if nodes[0] == 0 else []  # goes with the root
        ids = [*prompt, *(self._token[node] if node else self._prompt_ids[-1] for node in nodes)]
        seen = np.zeros((len(ids), first + len(ids)), np.bool_)
        seen[:, :before] = True
        seen[: len(prompt)] = np.tri(len(prompt), seen.shape[1], dtype=np.bool_)
        row = dict[int, int]()
        for i, node in enumerate(nodes, start=len(prompt)):
            above = self._parent[node]
            if above in row:
                seen[i] = seen[row[above]]
            else:
                while above >= 0:
                    seen[i, self._slot[above]] = True
                    above = self._parent[above]
            row[node], self._slot[node] = i, first + i
            seen[i, first + i] = True
        self.positions = np.append(self.positions, np.count_nonzero(seen, axis=1) - 1)
        return ids, seen

    def _take_back(self, size: int) -> None:
        self._slot = {node: slot for node, slot in self._slot.items() if node < size}
        self._truncate(len(self._prompt_ids) - 1 + len(self._slot))

    def _truncate(self, slots: int) -> None:
        self.positions = self.positions[:slots]
        for layer in self.cache.layers:
            layer.truncate(slots)

    @torch.inference_mode()
    def _free(self, nodes: set[int]) -> None:
        before = len(self._prompt_ids) - 1
        rest = [node for node in self._slot if node not in nodes]  # in the order of slots
        slots = np.array([*range(before), *(self._slot[node] for node in rest)])
        self._slot = {node: before + row for row, node in enumerate(rest)}
        if slots[-1] == len(slots) - 1:  # the first few: nothing moves
            self._truncate(len(slots))
            return
        self.positions = self.positions[slots]
        for layer in self.cache.layers:
            layer.select(torch.from_numpy(slots))


class _JointLayer(DynamicLayer):  # type: ignore[misc]
    """The same layer of several trees' caches, as one layer of a cache: their slots in a row."""

    def __init__(self, layers: Sequence[SlotLayer], ends: Sequence[int]) -> None:
        super().__init__()
        self.is_initialized = True
        self._layers, self._ends = layers, ends  # of each tree's part of the row of ids

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append to each tree its part; returns the keys and values of all."""
        parts, start = [], 0
        for layer, end in zip(self._layers, self._ends, strict=True):
            parts.append(layer.update(key_states[:, :, start:end], value_states[:, :, start:end]))
            start = end
        return torch.cat([k for k, _ in parts], dim=2), torch.cat([v for _, v in parts], dim=2)

    def get_seq_length(self, *args: Any) -> int:
        """Nothing is read off it: positions and masks are given."""
        return 0


@torch.inference_mode()
def _evaluate_trees(trees: Sequence[tuple[_FlatTree, list[int]]]) -> None:
    """Evaluate new nodes of trees of one model in one call, and keep their logits."""
    forward, cache = trees[0][0].forward, trees[0][0].cache
    ids, ends, masks = list[int](), list[int](), list[torch.Tensor]()
    at, positions = list[NDArray[np.int64]](), list[NDArray[np.int64]]()
    try:
        for tree, nodes in trees:
            first = tree.slots
            more, seen = tree.place(nodes)
            chain = len(trees) == 1 and (tree.positions[first:] == range(first, tree.slots)).all()
            # Most contexts of a tree are leaves that nobody goes on from: where less than half
            # of the slots are seen by any row, the call attends to those alone.
            used = np.flatnonzero(seen.any(axis=0))
            if 2 * len(used) < tree.slots:
                for layer in tree.cache.layers:
                    layer.chosen = torch.from_numpy(used)
            else:
                used = np.arange(tree.slots)
            ids += more
            ends.append(len(ids))
            masks.append(torch.from_numpy(seen[:, used]))
            at.append(tree.positions[used])
            positions.append(tree.positions[first:])
        if len(trees) > 1:
            layers = zip(*(tree.cache.layers for tree, _ in trees), strict=True)
            cache = Cache(layers=[_JointLayer(some, ends) for some in layers])
        keep = 0 if len(trees) > 1 else len(trees[0][1])
        places = np.concatenate(positions)
        if chain:
            # The whole tree is one path: no mask, as in the model's own decoding.
            logits = forward([ids], cache, positions=places, keep=keep)[0]
        else:
            path = torch.block_diag(*masks).numpy()  # type: ignore[no-untyped-call]
            away = places[:, None] - np.concatenate(at)
            visible = {
                name: path if window is None else path & (away < window)
                for name, window in forward.windows.items()
            }
            logits = forward.with_mask(ids, cache, places, visible, keep)
    finally:
        for tree, _ in trees:
            for layer in tree.cache.layers:
                layer.chosen = None
    parts = torch.split(logits, [len(nodes) for _, nodes in trees])
    for (tree, nodes), part in zip(trees, parts, strict=True):
        tree._put(nodes, part)
        tree.calls += 1
