"""Tree attention: many contexts, one key-value cache, and a mask that says who sees whom.

Every context of a tree owns one *slot* of a flat cache: the keys and values of its last token.
A node attends to the slots of the prompt, of its ancestors and of itself:

    slot    0 … P-2     P-1    P, P+1, …
            prompt      root   nodes, in the order in which they were evaluated

Rows number the root and the nodes; row r lives in slot P-1+r. Positions are path lengths, and so
are the distances that a sliding window limits: slots say nothing about order here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.cache_utils import Cache

from charwise.engines.transformers.branch_cache import SlotLayer
from charwise.engines.transformers.forward import Forward

#: Entries of a mask over a whole prompt, at most: a longer one has its branches in a second call.
_SMALL_MASK = 2**22

#: Layer types that a mask can describe; see `transformers.masking_utils`.
_MASKED = {"full_attention", "sliding_attention"}


@dataclass(frozen=True)
class Masks:
    """The masks that a model's layers want: name → window in tokens, None for all of the path.

    `named`: the model takes them as a dict; else it takes a single one, for all of its layers.
    """

    windows: dict[str, int | None]
    named: bool


def masks_of(config: Any) -> Masks | str:
    """Return the masks of a model's layers in transformers; or, as a string, why none can say it.

    The rule is that of `transformers.masking_utils.create_masks_for_generate`.
    """
    window = getattr(config, "sliding_window", None)
    layers = getattr(config, "per_layer_config", ())
    if len({getattr(layer, "sliding_window", None) for layer in layers}) > 1:
        return "its layers have sliding windows of different sizes"
    types = set(getattr(config, "layer_types", None) or ())
    if types - _MASKED:
        return f"it has layers that take no mask: {', '.join(sorted(types - _MASKED))}"
    if "sliding_attention" in types:
        # Single masks are silently wrong for these: every layer would use the same one.
        return Masks({"full_attention": None, "sliding_attention": window}, named=True)
    if not types and getattr(config, "attention_chunk_size", None) is not None:
        return "its attention is chunked"
    return Masks({"": None if types else window}, named=False)


class _Ancestors:
    """Who is whose ancestor: bit c of row r is set if c is an ancestor of r, or r itself.

    >>> ancestors = _Ancestors()
    >>> ancestors.append(np.array([0, 1, 0]))           # a chain of two, and a second child
    >>> ancestors.rows(1, 4).astype(int)
    array([[1, 1, 0, 0],
           [1, 1, 1, 0],
           [1, 0, 0, 1]])
    """

    def __init__(self) -> None:
        self._bits = np.zeros((64, 8), dtype=np.uint8)  # [rows, columns / 8]
        self._bits[0, 0] = 1
        self.count = 1

    def append(self, parents: NDArray[np.int64]) -> None:
        """Add a row below each of these rows; a parent may be a row of this call."""
        first, self.count = self.count, self.count + len(parents)
        if self.count > len(self._bits):
            self._resize(max(self.count, 2 * len(self._bits)))
        new = np.arange(first, self.count)
        own = np.left_shift(1, new & 7).astype(np.uint8)
        if parents.max() < first:
            self._bits[new] = self._bits[parents]
            self._bits[new, new >> 3] |= own
            return
        bits = self._bits
        for row, parent, bit in zip(new.tolist(), parents.tolist(), own.tolist(), strict=True):
            bits[row] = bits[parent]
            bits[row, row >> 3] |= bit

    def rows(self, first: int, last: int) -> NDArray[np.bool_]:
        """Rows first … last-1 as `[last - first, count]`."""
        bits = self._bits[first:last, : (self.count + 7) >> 3]
        unpacked = np.unpackbits(bits, axis=1, count=self.count, bitorder="little")
        return unpacked.view(np.bool_)

    def select(self, rows: NDArray[np.int64]) -> None:
        """Keep these rows (rising, each with all of its ancestors), renumbered 0, 1, …"""
        bits = np.unpackbits(self._bits[rows], axis=1, count=self.count, bitorder="little")[:, rows]
        self.count = len(rows)
        self._bits = np.packbits(bits, axis=1, bitorder="little")
        self._resize(max(64, self.count))

    @property
    def nbytes(self) -> int:
        """Bytes of all that is held."""
        return int(self._bits.nbytes)

    def truncate(self, count: int) -> None:
        """Take back the rows from `count` on; later rows overwrite them."""
        self.count = count

    def _resize(self, capacity: int) -> None:
        bits = np.zeros((capacity, (capacity + 7) >> 3), dtype=np.uint8)
        old = self._bits[: self.count]
        bits[: len(old), : old.shape[1]] = old
        self._bits = bits


class MaskedForward:
    """Calls a model with masks of who sees whom, given as booleans `[q, slots]` by mask name."""

    def __init__(self, forward: Forward, masks: Masks) -> None:
        self.plain = forward
        self.masks = masks

    def __call__(
        self,
        tokens: list[int],
        cache: Cache,
        positions: NDArray[np.int64],
        visible: dict[str, NDArray[np.bool_]],
        keep: int | torch.Tensor,
    ) -> torch.Tensor:
        """Logits `[1, kept, width]`."""
        additive = {name: self._additive(seen) for name, seen in visible.items()}
        return self.plain(
            [tokens],
            cache,
            positions=positions,
            attention_mask=additive if self.masks.named else additive[""],
            keep=keep,
        )

    def _additive(self, seen: NDArray[np.bool_]) -> torch.Tensor:
        """0 where seen, else the least float: `[1, 1, q, slots]`.

        Never boolean: eager attention would *add* True and False to its scores.
        """
        dtype, device = self.plain.dtype, self.plain.device
        hidden = torch.from_numpy(~seen).to(device)
        mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
        return mask.masked_fill_(hidden, torch.finfo(dtype).min)[None, None]


class FlatCache:
    """The contexts of one tree, evaluated by tree attention.

    All methods speak in rows. The caller holds a lock, and calls `truncate` after a failure.
    """

    def __init__(self, forward: Forward, masked: MaskedForward) -> None:
        self._forward = forward
        self._masked = masked
        self._cache = Cache(layer_class_to_replicate=SlotLayer)
        self._ancestors = _Ancestors()
        self._positions = np.zeros(0, dtype=np.int64)  # [slots]: path lengths
        self._prompt = 0  # slots before the root's

    @property
    def rows(self) -> int:
        """The root and the nodes."""
        return self._ancestors.count

    @property
    def layers(self) -> list[SlotLayer]:
        """The keys and values of each layer."""
        return list(self._cache.layers)

    @property
    def nbytes(self) -> int:
        """Bytes of all that is held."""
        return sum(layer.nbytes for layer in self.layers) + self._ancestors.nbytes

    def start(
        self, prompt_ids: list[int], parents: list[int], tokens: list[int]
    ) -> tuple[torch.Tensor, int]:
        """Evaluate the prompt and the first rows: logits `[1 + n, width]`, and how many calls."""
        self._prompt = len(prompt_ids) - 1
        chain = next((n for n, parent in enumerate(parents) if parent != n), len(parents))
        if chain < len(parents) and (len(prompt_ids) + len(parents)) ** 2 <= _SMALL_MASK:
            return self._start_masked(prompt_ids, np.array(parents), tokens), 1
        # One path needs no mask but the model's own.
        ids = [*prompt_ids, *tokens[:chain]]
        self._positions = np.arange(len(ids))
        if chain:
            self._ancestors.append(np.arange(chain))
        logits = self._forward([ids], self._cache, keep=1 + chain)[0]
        if chain == len(parents):
            return logits, 1
        wanted = np.arange(len(parents) - chain)
        rest = self.append(np.array(parents[chain:]), tokens[chain:], wanted)
        return torch.cat([logits, rest]), 2

    def _start_masked(
        self, prompt_ids: list[int], parents: NDArray[np.int64], tokens: list[int]
    ) -> torch.Tensor:
        """`start` in one call, by a mask over the prompt too."""
        first, size = len(prompt_ids), len(prompt_ids) + len(parents)
        self._ancestors.append(parents)
        path = np.tri(size, dtype=np.bool_)
        path[first:, self._prompt :] = self._ancestors.rows(1, self.rows)
        self._positions = np.count_nonzero(path, axis=1) - 1
        visible = self._windowed(path, self._positions, self._positions)
        ids, keep = [*prompt_ids, *tokens], 1 + len(parents)
        return self._masked(ids, self._cache, self._positions, visible, keep)[0]

    def row_bytes(self, more: int) -> int:
        """Of the mask of one of `more` rows, or of its attention scores where held (eager)."""
        config, eager = self._forward.config, self._forward.attention == "eager"
        heads = getattr(config, "num_attention_heads", 1) if eager else 1
        return 4 * heads * (self._prompt + self.rows + more)

    def append(
        self, parents: NDArray[np.int64], tokens: list[int], wanted: NDArray[np.int64]
    ) -> torch.Tensor:
        """Evaluate a row below each parent; returns the logits of the wanted: `[n, width]`."""
        first = self.rows
        seen, positions = self._placed(parents)
        # A row whose position is its slot has every slot before it as an ancestor: the whole tree
        # is one path. A single step along it needs no mask, as in the model's own decoding.
        chain = len(parents) == 1 and positions[0] == self._prompt + first
        every = len(wanted) == len(parents)
        keep = 0 if every else torch.from_numpy(wanted) if len(wanted) else 1
        if chain:
            logits = self._forward([tokens], self._cache, positions=positions, keep=keep)
        else:
            logits = self._branched(seen, positions, tokens, keep)
        return logits[0, : len(wanted)]

    def _branched(
        self,
        seen: NDArray[np.bool_],
        positions: NDArray[np.int64],
        tokens: list[int],
        keep: int | torch.Tensor,
    ) -> torch.Tensor:
        """A call of rows that see these rows: `[n, rows]`.

        Most contexts of a tree are leaves that nobody goes on from. Where less than half of the
        slots are seen by any row, the call attends to those alone.
        """
        rows = np.flatnonzero(seen.any(axis=0))
        slots = np.concatenate([np.arange(self._prompt), self._prompt + rows])
        if 2 * len(slots) >= len(self._positions):
            visible = self._visible(seen, positions)
            return self._masked(tokens, self._cache, positions, visible, keep)
        path = np.ones((len(seen), len(slots)), dtype=np.bool_)
        path[:, self._prompt :] = seen[:, rows]
        visible = self._windowed(path, positions, self._positions[slots])
        self._choose(torch.from_numpy(slots).to(self._forward.device))
        try:
            return self._masked(tokens, self._cache, positions, visible, keep)
        finally:
            self._choose(None)

    def _choose(self, slots: torch.Tensor | None) -> None:
        for layer in self._cache.layers:
            layer.chosen = slots

    def place(
        self, parents: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], dict[str, NDArray[np.bool_]]]:
        """Add a row below each parent, to be evaluated: positions, and the slots that each sees."""
        seen, positions = self._placed(parents)
        return positions, self._visible(seen, positions)

    def _placed(self, parents: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Add a row below each parent: the rows that each sees, `[n, rows]`, and positions."""
        first = self.rows
        self._ancestors.append(parents)
        seen = self._ancestors.rows(first, self.rows)
        positions = self._prompt + np.count_nonzero(seen, axis=1) - 1
        self._positions = np.concatenate([self._positions, positions])
        return seen, positions

    def _visible(
        self, seen: NDArray[np.bool_], positions: NDArray[np.int64]
    ) -> dict[str, NDArray[np.bool_]]:
        """For each mask of the model, the slots that rows see: `[n, slots]`."""
        path = np.ones((len(seen), len(self._positions)), dtype=np.bool_)
        path[:, self._prompt :] = seen
        return self._windowed(path, positions, self._positions)

    def _windowed(
        self, path: NDArray[np.bool_], positions: NDArray[np.int64], at: NDArray[np.int64]
    ) -> dict[str, NDArray[np.bool_]]:
        """The part of each path, `[n, slots]`, that windows leave of slots at these positions."""
        return {
            name: path if window is None else path & (positions[:, None] - at < window)
            for name, window in self._masked.masks.windows.items()
        }

    def truncate(self, rows: int) -> None:
        """Take back the rows from `rows` on."""
        self._ancestors.truncate(rows)
        self._positions = self._positions[: self._prompt + rows]
        for layer in self._cache.layers:
            layer.truncate(self._prompt + rows)

    def select(self, rows: NDArray[np.int64]) -> None:
        """Keep these rows (rising, closed under ancestors), renumbered 0, 1, …"""
        if len(rows) == rows[-1] + 1:  # the first few: nothing moves
            self.truncate(len(rows))
            return
        slots = np.concatenate([np.arange(self._prompt), self._prompt + rows])
        self._ancestors.select(rows)
        self._positions = self._positions[slots]
        for layer in self._cache.layers:
            layer.select(torch.from_numpy(slots))
