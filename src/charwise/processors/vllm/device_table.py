"""The forced texts of vLLM's V2 model runner, on its device, without ever waiting for it.

The V2 runner keeps token ids on the device: the host does not know what was generated when it
issues the next step, so the decision itself is made there. A token's place in the sorted
vocabulary says whether it starts with what is left (a range), so for each offset into a forced
text a handful of integers replaces a mask as wide as the vocabulary:

    entry of an offset = [lo, hi, p₁, p₂, …]      allowed: lo ≤ rank < hi, and the ids pᵢ

Where a row stands in its text is the number of bytes generated for it so far: the committed ids
of its slot, and the drafts before it, by a table of byte lengths. A draft that left the text is
not recognised, and need not be: it is rejected, since its own row allows it no probability, and
whatever the rows after it say is thrown away with it.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from vllm.utils.torch_utils import async_tensor_h2d

from charwise.processors.vllm.prompts import most_forced
from charwise.tokens.index import SortedVocabulary

logger = logging.getLogger(__name__)

#: Offsets of a text in one chunk.
_CHUNK = 16

#: Chunks of the smallest table; the first one is nobody's.
_LEAST = 8

#: What stands at an offset; its last integer may be repeated.
_Entry = tuple[int, ...]

#: A range that holds every id, also those that are not in sorted order (rank −1), and one id.
_ANYTHING = (-1, 2**31 - 1, 0)


class ForcedSlots:
    """Forced texts by request slot, and the masks of a batch of logits rows.

    Args:
        index: of the model's vocabulary.
        states: vLLM's `LogitsProcRequestState`; only read.
        drafts: most draft tokens in one step.

    Memory: 4 bytes × forced bytes, in chunks of 16 × (2 + most tokens that are a proper prefix of
    what is left), for the texts that are being reproduced, each of `most_forced` bytes at most.
    """

    def __init__(self, index: SortedVocabulary, states: Any, drafts: int) -> None:
        self._index = index
        self._states = states
        self._drafts = drafts
        self._most = most_forced(index.vocabulary)
        device = states.device
        rank = np.full(states.vocab_size, -1, np.int32)
        rank[: len(index.rank)] = index.rank[: states.vocab_size]
        lengths = np.zeros(states.vocab_size, np.int32)
        lengths[index.ids] = np.diff(index.starts)
        self._rank = torch.from_numpy(rank).to(device)  # [width]
        self._bytes = torch.from_numpy(lengths).to(device)  # [width]: of each token
        # On the host: bytes forced in a slot, 0 once they are surely reproduced.
        self._length = np.zeros(states.max_num_reqs, np.int32)
        self._written = np.zeros(states.max_num_reqs, np.int32)  # as the device has it
        self._chunks = _Chunks(states.max_num_reqs, self._most, _ANYTHING, device)
        self._end = torch.zeros(states.max_num_reqs, dtype=torch.int64, device=device)
        self._staged: dict[int, bytes] = {}

    def set(self, slot: int, forced: bytes) -> bool:
        """Note the forced text of a slot's new request; True if there is any."""
        if len(forced) > self._most:  # refused on admission: the table would grow for good
            logger.error("%d bytes are not forced: at most %d may be.", len(forced), self._most)
            forced = b""
        self._length[slot] = len(forced)
        if forced or self._written[slot]:
            self._staged[slot] = forced
        return bool(forced)

    def flush(self) -> None:
        """Send the noted changes to the device."""
        if not self._staged:
            return
        self._chunks.write({slot: self._entries(text) for slot, text in self._staged.items()})
        slots = np.array(list(self._staged), np.int64)
        ends = np.array([len(text) for text in self._staged.values()], np.int64)
        device = self._states.device
        at = async_tensor_h2d(slots, device=device)
        self._end.index_copy_(0, at, async_tensor_h2d(ends, device=device))
        self._written[slots] = ends
        self._staged.clear()

    def mask_(self, logits: torch.Tensor, ctx: Any) -> None:
        """Set to −inf, in place, the disallowed tokens of each row of `[rows, width]`.

        Args:
            logits: of a step.
            ctx: vLLM's `LogitsContext`.
        """
        slots = ctx.idx_mapping_np
        if not self._length[slots].any():
            return
        self._retire(slots, ctx)
        busy = np.flatnonzero(self._length[slots])
        if not len(busy):
            return
        longest = int(self._written[slots].max())  # also of texts that were forgotten
        if len(logits) == len(slots):  # no drafts: one row for each request
            rows = async_tensor_h2d(busy, device=logits.device, dtype=torch.int64)
            part = logits.index_select(0, rows)
            part.masked_fill_(self._forbidden(ctx, rows, longest), -torch.inf)
            logits.index_copy_(0, rows, part)
        else:
            rows = torch.arange(len(logits), device=logits.device)
            logits.masked_fill_(self._forbidden(ctx, rows, longest), -torch.inf)

    def _retire(self, slots: np.ndarray, ctx: Any) -> None:
        """Forget the texts that are surely reproduced, as far as the host knows.

        A token has a byte at least, and a step that the host counts with all its drafts has
        given a token at least.
        """
        generated = ctx.seq_lens_upper_bound_np[: len(slots)] - self._states.prompt_len.np[slots]
        done = generated // (1 + self._drafts) >= self._length[slots]
        done &= self._length[slots] > 0
        self._length[slots[done]] = 0
        for slot in slots[done].tolist():
            self._chunks.release(slot)  # its row stays beyond its end, whatever is written there

    def _forbidden(self, ctx: Any, rows: torch.Tensor, longest: int) -> torch.Tensor:
        """`[rows, width]` bool: the ids that may not come next, for these rows of the step."""
        slots = ctx.expanded_idx_mapping[rows].long()
        offset = self._committed(slots, longest) + self._drafted(ctx, rows)
        left = offset < self._end[slots]
        page = self._chunks.pages[slots, torch.where(left, offset // _CHUNK, 0)]
        entry = self._chunks.table[torch.where(left, page * _CHUNK + offset % _CHUNK, 0)]
        allowed: torch.Tensor = (self._rank >= entry[:, :1]) & (self._rank < entry[:, 1:2])
        allowed.scatter_(1, entry[:, 2:].long(), True)
        return allowed.logical_not_()

    def _committed(self, slots: torch.Tensor, longest: int) -> torch.Tensor:
        """`[rows]`: bytes generated so far, by the first `longest` tokens."""
        states = self._states
        ids = states.all_token_ids.gpu
        start = states.prompt_len.gpu[slots].long()[:, None]
        at = start + torch.arange(longest, device=slots.device)  # [rows, longest]
        known: torch.Tensor = at < states.total_len.gpu[slots][:, None]
        tokens = ids[slots[:, None], at.clamp_(max=ids.shape[1] - 1)].long()
        return (self._length_of(tokens) * known).sum(1)

    def _drafted(self, ctx: Any, rows: torch.Tensor) -> torch.Tensor:
        """`[rows]`: bytes of the drafts before each row.

        A request's rows are adjacent. The first is fed its last committed token, the others a
        draft each: those between the request's first row and this one.
        """
        until = self._length_of(ctx.input_ids.long()).cumsum(0)
        return until[rows] - until[rows - ctx.expanded_local_pos[rows].long()]

    def _length_of(self, ids: torch.Tensor) -> torch.Tensor:
        return self._bytes[ids.clamp(0, len(self._bytes) - 1)].long()

    def _entries(self, forced: bytes) -> list[_Entry]:
        """For each offset: lo, hi, and ids that are allowed besides."""
        index = self._index
        tokens = index.vocabulary.tokens
        entries: list[_Entry] = []
        for offset in range(len(forced)):
            left = forced[offset:]
            lo, hi = index.range(left)
            shorter = [
                id for id in index.prefixes(left) if index.spellable(left[len(tokens[id] or b"") :])
            ]
            if lo == hi and not shorter:  # no token string ends here: only a bad draft gets here
                entries.append(_ANYTHING)
            else:  # what is repeated must be allowed too
                entries.append((lo, hi, *shorter) if shorter else (lo, hi, int(index.ids[lo])))
        return entries


class _Chunks:
    """A table of integers in chunks, and the chunks that each slot holds.

        entry at offset o of a slot's text = table[pages[slot, o // _CHUNK] · _CHUNK + o mod _CHUNK]

    A text holds as many chunks as it needs for as long as it is forced, and the table is halved
    when little of it is held. Writes go through the device's stream, so that they come after every
    step that still reads what they replace.

    Args:
        slots: how many there are.
        longest: entries of the longest text.
        default: the entry in row 0, for what lies beyond a text.
        device: where the table lies.

    Attributes:
        table: `[chunks · _CHUNK, width]` int32.
        pages: `[slots, most chunks of a text]` int64: a slot's chunks, in order.
    """

    def __init__(self, slots: int, longest: int, default: _Entry, device: torch.device) -> None:
        self._default = default
        self._device = device
        self._held: dict[int, list[int]] = {}
        self.pages = torch.zeros((slots, _chunks(longest)), dtype=torch.int64, device=device)
        self._empty()

    def release(self, slot: int) -> None:
        """Take back a slot's chunks; their contents stay until another slot gets them."""
        for chunk in self._held.pop(slot, ()):
            heapq.heappush(self._free, chunk)

    def write(self, texts: Mapping[int, Sequence[_Entry]]) -> None:
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
        _copy(self.table.view(-1, _CHUNK, self.table.shape[1]), chunks, rows)
        _copy(self.pages, list(new), pages)

    def _rows(self, entries: Sequence[_Entry]) -> np.ndarray:
        """`[chunks, _CHUNK, width]` int32."""
        width = self.table.shape[1]
        filled = [*entries, *[self._default] * (-len(entries) % _CHUNK)]
        rows = [entry + entry[-1:] * (width - len(entry)) for entry in filled]
        return np.array(rows, np.int32).reshape(-1, _CHUNK, width)

    def _empty(self) -> None:
        """The smallest table, all of it free."""
        default = torch.tensor(self._default, dtype=torch.int32)
        self.table = default.repeat(_LEAST * _CHUNK, 1).to(self._device)
        self._free = list(range(1, _LEAST))  # a heap: low chunks first, so that the end empties

    def _take(self) -> int:
        if not self._free:
            count = len(self.table) // _CHUNK
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
        count = len(self.table) // _CHUNK
        if not self._held:
            if self.table.numel() > _LEAST * _CHUNK * len(self._default):
                self._empty()
            return
        last = max(map(max, self._held.values()))
        while count > _LEAST and last < count // 4:
            count //= 2
        if count * _CHUNK < len(self.table):
            self.table = self.table[: count * _CHUNK].clone()
            self._free = [chunk for chunk in self._free if chunk < count]
            heapq.heapify(self._free)


def _chunks(entries: int) -> int:
    return -(-entries // _CHUNK)


def _copy(target: torch.Tensor, at: list[int], rows: np.ndarray) -> None:
    """Write rows of a tensor, without waiting for its device."""
    where = async_tensor_h2d(np.array(at, np.int64), device=target.device)
    target.index_copy_(0, where, async_tensor_h2d(rows, device=target.device))
