"""Rows of integers on a device for texts that come and go: a table in chunks, taken and given back.

    entry at offset o of a slot's text = table[pages[slot, o // CHUNK] · CHUNK + o mod CHUNK]

A text holds as many chunks as it needs for as long as it is forced, and the table is halved when
little of it is held. Writes go through the device's stream, so that they come after every step
that still reads what they replace.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from vllm.utils.torch_utils import async_tensor_h2d

#: Offsets of a text in one chunk.
CHUNK = 16

#: Chunks of the smallest table; the first one is nobody's.
LEAST = 8

#: What stands at an offset; its last integer may be repeated.
Entry = tuple[int, ...]


class Chunks:
    """The table, and the chunks that each slot holds.

    Args:
        slots: how many there are.
        longest: entries of the longest text.
        default: the entry in row 0, for what lies beyond a text.
        device: where the table lies.

    Attributes:
        table: `[chunks · CHUNK, width]` int32.
        pages: `[slots, most chunks of a text]` int64: a slot's chunks, in order.
    """

    def __init__(self, slots: int, longest: int, default: Entry, device: torch.device) -> None:
        self._default = default
        self._device = device
        self._held: dict[int, list[int]] = {}
        self.pages = torch.zeros((slots, _chunks(longest)), dtype=torch.int64, device=device)
        self._empty()

    def release(self, slot: int) -> None:
        """Take back a slot's chunks; what stands in them stays until another slot gets them."""
        for chunk in self._held.pop(slot, ()):
            heapq.heappush(self._free, chunk)

    def write(self, texts: Mapping[int, Sequence[Entry]]) -> None:
        """Give each slot chunks for its entries, in place of those that it holds, and fill them."""
        for slot in texts:
            self.release(slot)
        self._shrink()
        new = {slot: entries for slot, entries in texts.items() if entries}
        if not new:
            return
        self._widen(max(len(entry) for entries in new.values() for entry in entries))
        pages = np.zeros((len(new), self.pages.shape[1]), np.int64)
        for row, (slot, entries) in enumerate(new.items()):
            held = [self._take() for _ in range(_chunks(len(entries)))]
            self._held[slot] = held
            pages[row, : len(held)] = held
        chunks = [chunk for slot in new for chunk in self._held[slot]]
        rows = np.concatenate([self._rows(entries) for entries in new.values()])
        _copy(self.table.view(-1, CHUNK, self.table.shape[1]), chunks, rows)
        _copy(self.pages, list(new), pages)

    def _rows(self, entries: Sequence[Entry]) -> np.ndarray:
        """`[chunks, CHUNK, width]` int32."""
        width = self.table.shape[1]
        filled = [*entries, *[self._default] * (-len(entries) % CHUNK)]
        rows = [entry + entry[-1:] * (width - len(entry)) for entry in filled]
        return np.array(rows, np.int32).reshape(-1, CHUNK, width)

    def _empty(self) -> None:
        """The smallest table, all of it free."""
        default = torch.tensor(self._default, dtype=torch.int32)
        self.table = default.repeat(LEAST * CHUNK, 1).to(self._device)
        self._free = list(range(1, LEAST))  # a heap: low chunks first, so that the end empties

    def _take(self) -> int:
        if not self._free:
            count = len(self.table) // CHUNK
            self.table = torch.cat((self.table, self.table))
            self._free = list(range(count, 2 * count))
        return heapq.heappop(self._free)

    def _widen(self, width: int) -> None:
        """Make room in the table for longer entries."""
        more = width - self.table.shape[1]
        if more > 0:
            self.table = torch.cat((self.table, self.table[:, -1:].expand(-1, more)), 1)

    def _shrink(self) -> None:
        """Halve the table as long as no more than the first quarter of it is held."""
        count = len(self.table) // CHUNK
        if not self._held:
            if self.table.numel() > LEAST * CHUNK * len(self._default):
                self._empty()
            return
        last = max(map(max, self._held.values()))
        while count > LEAST and last < count // 4:
            count //= 2
        if count * CHUNK < len(self.table):
            self.table = self.table[: count * CHUNK].clone()
            self._free = [chunk for chunk in self._free if chunk < count]
            heapq.heapify(self._free)


def _chunks(entries: int) -> int:
    return -(-entries // CHUNK)


def _copy(target: torch.Tensor, at: list[int], rows: np.ndarray) -> None:
    """Write rows of a tensor, without waiting for its device."""
    where = async_tensor_h2d(np.array(at, np.int64), device=target.device)
    target.index_copy_(0, where, async_tensor_h2d(rows, device=target.device))
