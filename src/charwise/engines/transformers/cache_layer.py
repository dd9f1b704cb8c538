"""A layer's keys and values, one slot per context, appended in place."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import DynamicLayer


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
