"""A cache for each branch: for models whose layers cannot be told who sees whom.

State-space and recurrent layers carry a state from token to token, and some attention takes no
mask. Here every context is a sequence on top of its parent's cache, those of equal depth in one
batch. Keys and values are stored once, and gathered along each path for a call; states are stored
for each context.
"""

import copy
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from charwise.engine import Branches, TokenLM
from charwise.engines.base import BaseTree
from charwise.engines.forward import Forward, SlotLayer
from charwise.errors import ModelError

#: Names under which recurrent layers keep their states: dicts of tensors, batch first.
_STATES = ("conv_states", "recurrent_states")

#: One context's recurrent states, by layer, name and index: `[1, …]`.
_State = dict[tuple[int, str, int], torch.Tensor]


class BranchTree(BaseTree):
    """The contexts of one prompt, each as a sequence of its own; see `TokenTree`."""

    def __init__(
        self, lm: TokenLM, forward: Forward, prompt_ids: Sequence[int], branches: Branches = ()
    ) -> None:
        super().__init__(lm, prompt_ids, branches)
        self._forward = forward
        self._layers: list[Any] = []  # the model's own layers, as they are after the prompt
        self._slots: dict[int, SlotLayer] = {}  # layer → keys and values of all contexts
        self._count = len(prompt_ids)  # of slots
        self._path: dict[int, NDArray[np.int64]] = {}  # node → the slots of its path
        self._state: dict[int, _State] = {}
        self._start()
        self._evaluate(self.live[1:])
        self.contexts = self.size

    @property
    def nbytes(self) -> int:
        states = sum(x.nbytes for state in self._state.values() for x in state.values())
        return sum(layer.nbytes for layer in self._slots.values()) + states + super().nbytes

    @torch.inference_mode()
    def _start(self) -> None:
        """Evaluate the prompt."""
        forward = self._forward
        cache = DynamicCache(config=forward.config)
        # Sliding layers forget what other branches need; full ones are masked by the model itself.
        cache.layers = [
            DynamicLayer() if type(layer) is DynamicSlidingWindowLayer else layer
            for layer in cache.layers
        ]
        self._put([0], forward([self._prompt_ids], cache, keep=1)[0])
        self.calls = 1
        self._layers = cache.layers
        self._path[0] = np.arange(self._count)
        self._state[0] = _state(cache.layers, 0)
        for i, layer in enumerate(cache.layers):
            if not isinstance(layer, DynamicLayer):
                continue
            if isinstance(layer, DynamicSlidingWindowLayer) or hasattr(layer, "indexer_keys"):
                raise ModelError(
                    f"charwise cannot branch the cache layers of {forward.config.model_type} "
                    f"({type(layer).__name__})."
                )
            if layer.is_initialized:
                self._slots[i] = SlotLayer()
                self._slots[i].update(layer.keys, layer.values)
                layer.keys = layer.values = None

    def _evaluate(self, nodes: list[int]) -> None:
        for _, level in groupby(
            sorted(nodes, key=self._depth.__getitem__), self._depth.__getitem__
        ):
            same = list(level)
            most = max(1, self._forward.batch_bytes // self._call_bytes(same[0]))
            for first in range(0, len(same), most):
                self._call(same[first : first + most])

    def _call_bytes(self, node: int) -> int:
        """Of a context's keys, values, states and logits in a call."""
        length = len(self._path[self._parent[node]])
        keys = sum(layer.keys[:, :, :1].nbytes * 2 * length for layer in self._slots.values())
        return 4 * self._width + keys + sum(x.nbytes for x in self._state[0].values())

    @torch.inference_mode()
    def _call(self, nodes: list[int]) -> None:
        """Evaluate nodes of equal depth as one batch."""
        parents = [self._parent[node] for node in nodes]
        paths = np.stack([self._path[parent] for parent in parents])  # [n, length]
        cache = DynamicCache()
        cache.layers = [
            self._gathered(i, layer, paths, parents) for i, layer in enumerate(self._layers)
        ]
        positions = np.array([paths.shape[1]])
        ids = [[self._token[node]] for node in nodes]
        logits = self._forward(ids, cache, positions=positions, keep=1)[:, 0]
        self.calls += 1
        for i, layer in self._slots.items():
            keys, values = cache.layers[i].keys, cache.layers[i].values  # [n, heads, length, width]
            layer.update(keys[:, :, -1:].transpose(0, 2), values[:, :, -1:].transpose(0, 2))
        for row, (node, path) in enumerate(zip(nodes, paths, strict=True)):
            self._path[node] = np.append(path, self._count + row)
            self._state[node] = _state(cache.layers, row)
        self._count += len(nodes)
        self._put(nodes, logits)

    def _gathered(
        self, i: int, layer: Any, paths: NDArray[np.int64], parents: Sequence[int]
    ) -> Any:
        """Layer i of a batch whose row b continues `parents[b]`."""
        layer = copy.copy(layer)
        if i in self._slots:
            layer.keys, layer.values = (
                slots[0][:, torch.from_numpy(paths).to(slots.device)].transpose(0, 1).contiguous()
                for slots in (self._slots[i].keys, self._slots[i].values)
            )  # [heads, n, length, width] → [n, heads, length, width]
        for name in _STATES:
            if hasattr(layer, name):
                states = dict(getattr(layer, name))
                for k in states:
                    if (i, name, k) in self._state[0]:
                        states[k] = torch.cat([self._state[p][i, name, k] for p in parents])
                setattr(layer, name, states)
        return layer

    def _take_back(self, size: int) -> None:
        self._free({node for node in self._path if node >= size})

    @torch.inference_mode()
    def _free(self, nodes: set[int]) -> None:
        for node in nodes:
            self._path.pop(node, None)
            self._state.pop(node, None)
        slots = np.unique(np.concatenate(list(self._path.values())))
        for layer in self._slots.values():
            layer.select(torch.from_numpy(slots))
        self._path = {node: np.searchsorted(slots, path) for node, path in self._path.items()}
        self._count = len(slots)


def _state(layers: list[Any], at: int) -> _State:
    """The recurrent states of one row of a batch, in memory of their own."""
    return {
        (i, name, k): states[at : at + 1].clone()
        for i, layer in enumerate(layers)
        for name in _STATES
        for k, states in getattr(layer, name, {}).items()
        if states is not None
    }
