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

import logging
from typing import Any

import numpy as np
import torch
from vllm.utils.torch_utils import async_tensor_h2d

from charwise.processors.vllm.prompts import most_forced
from charwise.tokens.index import SortedVocabulary

logger = logging.getLogger(__name__)

#: The table has room for this many offsets, or a multiple of it.
_OFFSETS = 64

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

    Memory: 4 bytes × slots × bytes of the longest text that is being reproduced, `most_forced` at
    most and rounded up to 64, × (2 + most tokens that are a proper prefix of what is left).
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
        self._anything = torch.tensor(_ANYTHING, dtype=torch.int32).to(device)  # [integers]
        self._table = self._anything.repeat(states.max_num_reqs, _OFFSETS, 1)  # of slots, offsets
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
        entries = [self._entries(text) for text in self._staged.values()]
        self._make_room(max((len(entry) for each in entries for entry in each), default=0))
        slots = np.array(list(self._staged), np.int64)
        ends = np.array([len(text) for text in self._staged.values()], np.int64)
        width = self._table.shape[2]
        rows = np.zeros((len(slots), int(ends.max()), width), np.int32)
        for row, each in zip(rows, entries, strict=True):
            for at, entry in enumerate(each):
                row[at] = entry + entry[-1:] * (width - len(entry))
        device = self._states.device
        where = async_tensor_h2d(slots, device=device)
        # Through the device's stream: after every step that still reads what this replaces.
        self._table[:, : rows.shape[1]].index_copy_(0, where, async_tensor_h2d(rows, device=device))
        self._end.index_copy_(0, where, async_tensor_h2d(ends, device=device))
        self._written[slots] = ends
        self._staged.clear()

    def _make_room(self, width: int) -> None:
        """Fit the table to the texts being reproduced: longer or wider by need, shorter by much."""
        offsets = _OFFSETS * max(1, -(-int(self._length.max()) // _OFFSETS))
        more = width - self._table.shape[2]
        if more > 0:
            last = self._table[..., -1:]
            self._table = torch.cat((self._table, last.expand(-1, -1, more)), 2)
            self._anything = torch.cat((self._anything, self._anything[-1:].expand(more)))
        held = self._table.shape[1]
        if held < offsets:
            rest = self._anything.repeat(len(self._table), offsets - held, 1)
            self._table = torch.cat((self._table, rest), 1)
        elif held > 2 * offsets:
            self._table = self._table[:, :offsets].clone()

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

    def _forbidden(self, ctx: Any, rows: torch.Tensor, longest: int) -> torch.Tensor:
        """`[rows, width]` bool: the ids that may not come next, for these rows of the step."""
        slots = ctx.expanded_idx_mapping[rows].long()
        offset = self._committed(slots, longest) + self._drafted(ctx, rows)
        left = offset < self._end[slots]
        entry = self._table[slots, torch.where(left, offset, 0)]
        entry = torch.where(left[:, None], entry, self._anything)
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
