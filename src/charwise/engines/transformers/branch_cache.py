"""A cache per branch: for models whose layers cannot be told who sees whom.

State-space and recurrent layers carry a state from token to token, and some attention
implementations take no mask. Here every context is evaluated as a sequence of its own, on top of
its parent's cache: contexts of equal depth in one batch, parents before children, so that nothing
is evaluated twice. Keys and values are stored once per context, and gathered along each path for
the call; recurrent states are stored per context, which for large ones is what this path costs.

A `SlotLayer` has a layer's keys and values, one slot per context, appended in place.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from charwise.engines.transformers.forward import Forward
from charwise.errors import EngineError


class SlotLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values, `[1, heads, slots, width]`, in buffers with room to grow.

    `DynamicLayer` copies the whole cache at every step; this appends in place. Buffers grow by a
    quarter, so that little memory is held unused.

    Attributes:
        chosen: where it is set, the slots that a call attends to, those that it appends among them:
            `update` returns no others.
    """

    chosen: torch.Tensor | None = None
    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._buffers: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append slots; returns the keys and values of all, or of the chosen."""
        held = self.get_seq_length()
        needed = held + key_states.shape[-2]
        if self._buffers is None or needed > self._buffers[0].shape[-2]:
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
            self._buffers = (
                _grown(self.keys, held, key_states, needed),
                _grown(self.values, held, value_states, needed),
            )
        keys, values = self._buffers
        keys[:, :, held:needed] = key_states
        values[:, :, held:needed] = value_states
        self.keys, self.values = keys[:, :, :needed], values[:, :, :needed]
        if self.chosen is None:
            return self.keys, self.values
        index = self.chosen.to(keys.device)
        return self.keys.index_select(2, index), self.values.index_select(2, index)

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers, their room to grow included."""
        return sum(buffer.nbytes for buffer in self._buffers or ())

    def reserve(self, count: int) -> None:
        """Append slots to be filled later."""
        shape = (*self.keys.shape[:2], count)
        self.update(
            self.keys.new_empty((*shape, self.keys.shape[3])),
            self.values.new_empty((*shape, self.values.shape[3])),
        )

    def truncate(self, slots: int) -> None:
        """Forget the slots from `slots` on."""
        if self.is_initialized and self.get_seq_length() > slots:
            self.keys, self.values = self.keys[:, :, :slots], self.values[:, :, :slots]

    def select(self, slots: torch.Tensor) -> None:
        """Keep these slots, in this order, in buffers of their size."""
        if self.is_initialized:
            index = slots.to(self.keys.device)
            self.keys = self.keys.index_select(2, index)
            self.values = self.values.index_select(2, index)
            self._buffers = (self.keys, self.values)


def _grown(held: torch.Tensor, count: int, new: torch.Tensor, needed: int) -> torch.Tensor:
    """A buffer with room for `needed` slots and some more, holding the first `count`."""
    shape = (*new.shape[:2], needed + max(64, needed // 4), new.shape[3])
    buffer = new.new_empty(shape)
    if count:
        buffer[:, :, :count] = held
    return buffer


#: Names under which recurrent layers keep their states: dicts of tensors, batch first.
_STATES = ("conv_states", "recurrent_states")

#: One context's recurrent states, by layer, name and index: `[1, …]`.
State = dict[tuple[int, str, int], torch.Tensor]


class BranchCache:
    """The contexts of one tree, each as a sequence of its own; the methods are `FlatCache`'s."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self._layers: list[Any] = []  # the model's own layers, as they are after the prompt
        self._slots: dict[int, SlotLayer] = {}  # layer → keys and values of all contexts
        self._states: list[State] = []  # of each row
        self._paths: list[NDArray[np.int64]] = []  # of each row: the slots of its path

    @property
    def rows(self) -> int:
        """The root and the nodes."""
        return len(self._paths)

    @property
    def nbytes(self) -> int:
        """Bytes of all that is held."""
        states = sum(x.nbytes for state in self._states for x in state.values())
        paths = sum(path.nbytes for path in self._paths)
        return sum(layer.nbytes for layer in self._slots.values()) + states + paths

    def row_bytes(self, more: int) -> int:
        """Of the cache of one of `more` rows, gathered for a call."""
        slots = sum(
            x[:, :, :1].numel() * x.element_size()
            for layer in self._slots.values()
            for x in (layer.keys, layer.values)
        )
        longest = max(map(len, self._paths))
        states = self._states[0].values()
        return slots * longest + sum(x.numel() * x.element_size() for x in states)

    @torch.inference_mode()
    def start(
        self, prompt_ids: list[int], parents: list[int], tokens: list[int]
    ) -> tuple[torch.Tensor, int]:
        """Evaluate the prompt and the first rows: logits `[1 + n, width]`, and how many calls."""
        logits = self._begin(prompt_ids)
        if not tokens:
            return logits, 1
        wanted = np.arange(len(tokens))
        return torch.cat([logits, self.append(np.array(parents), tokens, wanted)]), 2

    def _begin(self, prompt_ids: list[int]) -> torch.Tensor:
        cache = DynamicCache(config=self._forward.config)
        # Sliding layers forget what other branches need; full ones are masked by the model itself.
        cache.layers = [
            DynamicLayer() if type(layer) is DynamicSlidingWindowLayer else layer
            for layer in cache.layers
        ]
        logits = self._forward([prompt_ids], cache, keep=1)[0]
        self._layers = cache.layers
        self._paths = [np.arange(len(prompt_ids))]
        self._states = [self._state(cache.layers, 0)]
        for i, layer in enumerate(cache.layers):
            if not isinstance(layer, DynamicLayer):
                continue
            if isinstance(layer, DynamicSlidingWindowLayer) or hasattr(layer, "indexer_keys"):
                raise EngineError(
                    f"charwise cannot branch the cache layers of {self._forward.config.model_type} "
                    f"({type(layer).__name__})."
                )
            if layer.is_initialized:
                self._slots[i] = SlotLayer()
                self._slots[i].update(layer.keys, layer.values)
                layer.keys = layer.values = None
        return logits

    @torch.inference_mode()
    def append(
        self, parents: NDArray[np.int64], tokens: list[int], wanted: NDArray[np.int64]
    ) -> torch.Tensor:
        """Evaluate a row below each parent; returns the logits of the wanted: `[n, width]`."""
        first = self.rows
        slot = len(self._paths[0]) + first - 1
        for i, parent in enumerate(parents.tolist()):
            self._paths.append(np.append(self._paths[parent], slot + i))
        self._states += [{} for _ in tokens]
        lengths = np.array([len(path) for path in self._paths[first:]])
        # Slots are taken in the order of rows; levels fill them in the order of depth.
        for layer in self._slots.values():
            layer.reserve(len(tokens))
        levels = [np.flatnonzero(lengths == length) for length in np.unique(lengths)]
        logits = []
        for level in levels:
            found = self._level(level + first, parents[level], [tokens[i] for i in level])
            logits.append(found[torch.from_numpy(np.isin(level, wanted)).to(found.device)])
        order = np.concatenate([level[np.isin(level, wanted)] for level in levels]).argsort()
        return torch.cat(logits)[torch.from_numpy(order).to(logits[0].device)]

    def _level(
        self, rows: NDArray[np.int64], parents: NDArray[np.int64], tokens: list[int]
    ) -> torch.Tensor:
        """Evaluate rows of equal depth as one batch: logits `[n, width]`."""
        paths = np.stack([self._paths[parent] for parent in parents])  # [n, length]
        cache = DynamicCache()
        cache.layers = [
            self._gathered(i, layer, paths, parents) for i, layer in enumerate(self._layers)
        ]
        positions = np.array([paths.shape[1]])
        logits = self._forward([[t] for t in tokens], cache, positions=positions, keep=1)[:, 0]
        own = torch.from_numpy(np.array([self._paths[row][-1] for row in rows]))
        for i, layer in self._slots.items():
            grown = cache.layers[i]
            for held, new in ((layer.keys, grown.keys), (layer.values, grown.values)):
                held[0].index_copy_(1, own.to(held.device), new[:, :, -1].transpose(0, 1))
        for at, row in enumerate(rows.tolist()):
            self._states[row] = self._state(cache.layers, at)
        return logits

    def _gathered(
        self, i: int, layer: Any, paths: NDArray[np.int64], parents: NDArray[np.int64]
    ) -> Any:
        """Layer i of a batch whose row b continues `parents[b]`."""
        layer = copy.copy(layer)
        if i in self._slots:
            layer.keys, layer.values = (
                held[0][:, torch.from_numpy(paths).to(held.device)].transpose(0, 1).contiguous()
                for held in (self._slots[i].keys, self._slots[i].values)
            )  # [heads, n, length, width] → [n, heads, length, width]
        for name in _STATES:
            if hasattr(layer, name):
                states = dict(getattr(layer, name))
                for k in states:
                    if (i, name, k) in self._states[0]:
                        states[k] = torch.cat([self._states[p][i, name, k] for p in parents])
                setattr(layer, name, states)
        return layer

    def _state(self, layers: list[Any], at: int) -> State:
        """The recurrent states of one row of a batch, in memory of their own."""
        return {
            (i, name, k): states[at : at + 1].clone()
            for i, layer in enumerate(layers)
            for name in _STATES
            for k, states in getattr(layer, name, {}).items()
            if states is not None
        }

    def truncate(self, rows: int) -> None:
        """Take back the rows from `rows` on."""
        del self._paths[rows:], self._states[rows:]
        for layer in self._slots.values():
            layer.truncate(len(self._paths[0]) + rows - 1)

    def select(self, rows: NDArray[np.int64]) -> None:
        """Keep these rows (rising, closed under ancestors), renumbered 0, 1, …"""
        prompt = len(self._paths[0]) - 1
        slots = np.concatenate([np.arange(prompt), prompt + rows])
        for layer in self._slots.values():
            layer.select(torch.from_numpy(slots))
        self._paths = [np.searchsorted(slots, self._paths[row]) for row in rows]
        self._states = [self._states[row] for row in rows]
