"""The key-value cells of a llama.cpp context, shared by all trees of a model.

A cell holds the keys and values of one token, and the set of *sequences* that see it. A sequence
is here a path: from the start of a prompt to one of the deepest contexts that are held, its *tip*.

    cell       prompt    a     b     c     d
    seen by    0 1 2     0 1   2     0     1        tips: c, d and b

A new context gets a sequence of its own: its parent's path is copied to it, which copies nothing
but membership, and the new token is evaluated into a cell that only the sequences of its
descendants see. llama.cpp has few sequences (256) and a fixed number of cells, so what is held is
a cache: the tip that was used least recently makes room, and a context that is needed again is
evaluated again, from its last ancestor that is still held.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.errors import ModelError


class Held:
    """The cells of one context's own tokens: one of a node, all of the prompt's of a root.

    Attributes:
        parent: what comes before it; None for a root.
        size: its cells; `end`: the length of its whole path.
        children: those held that continue it.
        sequence: one of those that see it.
        era: of the cells; all that were held in an earlier one are gone.
    """

    __slots__ = ("children", "end", "era", "parent", "sequence", "size")

    def __init__(self, parent: Held | None, size: int, sequence: int, era: object) -> None:
        self.parent = parent
        self.size = size
        self.end: int = size if parent is None else parent.end + size
        self.children: set[Held] = set()
        self.sequence = sequence
        self.era: object = era


class BatchRow(NamedTuple):
    """A context to evaluate: its own tokens, after a held context or an earlier row.

    `parent` is None for a root; `wanted` asks for the logits after its last token.
    """

    parent: Held | int | None
    tokens: Sequence[int]
    wanted: bool


class Cells:
    """The cells and sequences of one context; the caller holds a lock.

    Args:
        llama: the module.
        pointer: the context, made with `kv_unified` and as many cells as `count`.
        count: of cells; at least the window.
        sequences: how many the context has.
        width: of the logits.
    """

    def __init__(self, llama: Any, pointer: Any, count: int, sequences: int, width: int) -> None:
        self._llama = llama
        self._pointer = pointer
        self._memory = llama.llama_get_memory(pointer)
        self._width = width
        self.count = count
        self.sequences = sequences
        self.clear()

    def clear(self) -> None:
        """Let go of everything."""
        self._llama.llama_memory_clear(self._memory, False)
        self.era = object()
        self.used = 0
        self._free = list(range(self.sequences))
        self._tips: OrderedDict[int, Held] = OrderedDict()  # least recently used first

    def holds(self, held: Held | None) -> bool:
        """Whether this is still there."""
        return held is not None and held.era is self.era

    def fits(self, rows: Sequence[BatchRow]) -> bool:
        """Whether these rows can be evaluated in one call, after letting go of all else."""
        if len(_leaves(rows)) > self.sequences // 2:
            return False
        cells, seen = sum(len(row.tokens) for row in rows), set()
        for row in rows:
            above = row.parent
            while isinstance(above, Held) and above not in seen:
                seen.add(above)
                cells += above.size
                above = above.parent
        return cells <= self.count

    def evaluate(self, rows: Sequence[BatchRow]) -> tuple[list[Held], NDArray[np.float32]]:
        """Evaluate rows that fit; returns where they are held, and the logits of the wanted.

        Each row comes after its parent. After any failure, an interrupt included, nothing is held.
        """
        try:
            held, seen_by = self._place(rows)
            while self.used > self.count:
                self._let_go(next(iter(self._tips)))
            logits = self._decode(rows, held, seen_by)
        except BaseException:
            self.clear()
            raise
        return held, logits

    def drop(self, held: Held) -> None:
        """Free the cells of a context that has no children, if it is still there."""
        if not self.holds(held):
            return
        above, sequence = held.parent, held.sequence
        self._forget(held)
        if above is None or above.children:
            self._free_sequence(sequence)
            self._repair(above, sequence)
        else:
            self._llama.llama_memory_seq_rm(self._memory, sequence, above.end, -1)
            self._tips[sequence] = above

    def _place(self, rows: Sequence[BatchRow]) -> tuple[list[Held], list[list[int]]]:
        """Give every leaf a sequence that sees its path so far; hold the rows.

        Returns what holds them, and the sequences that see each.
        """
        leaves = _leaves(rows)
        sources = {row.parent.sequence for row in rows if isinstance(row.parent, Held)}
        new = [self._take_sequence(sources) for _ in leaves]
        seen_by: list[list[int]] = [[] for _ in rows]
        for leaf, sequence in zip(leaves, new, strict=True):
            at: Held | int | None = leaf
            while isinstance(at, int):
                seen_by[at].append(sequence)
                at = rows[at].parent
        held: list[Held] = []
        for row, sequences in zip(rows, seen_by, strict=True):
            above = held[row.parent] if isinstance(row.parent, int) else row.parent
            if isinstance(row.parent, Held):
                for sequence in sequences:
                    self._llama.llama_memory_seq_cp(
                        self._memory, row.parent.sequence, sequence, 0, row.parent.end
                    )
            made = Held(above, len(row.tokens), sequences[0], self.era)
            held.append(made)
            self.used += made.size
            if above is not None:
                above.children.add(made)
        for sequence, leaf in zip(new, leaves, strict=True):
            self._tips[sequence] = held[leaf]
        for sequence in sources:
            tip = self._tips[sequence]
            if tip.children:  # seen whole by others now
                del self._tips[sequence]
                self._free_sequence(sequence)
                self._repair(tip, sequence)
            else:
                self._tips.move_to_end(sequence)
        for sequence in new:
            self._tips.move_to_end(sequence)
        return held, seen_by

    def _take_sequence(self, sources: set[int]) -> int:
        """A sequence that sees nothing; the least recently used makes room, but for `sources`."""
        if not self._free:
            self._let_go(next(sequence for sequence in self._tips if sequence not in sources))
        return self._free.pop()

    def _let_go(self, sequence: int) -> None:
        """Free a sequence, and the cells that only it sees."""
        held: Held | None = self._tips.pop(sequence)
        self._free_sequence(sequence)
        while held is not None and not held.children:
            self._forget(held)
            held = held.parent
        self._repair(held, sequence)

    def _free_sequence(self, sequence: int) -> None:
        self._llama.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        self._tips.pop(sequence, None)
        self._free.append(sequence)

    def _forget(self, held: Held) -> None:
        held.era = None
        self.used -= held.size
        if held.parent is not None:
            held.parent.children.discard(held)

    def _repair(self, held: Held | None, sequence: int) -> None:
        """Name another sequence for those up from `held` that named this one."""
        while held is not None and held.sequence == sequence:
            held.sequence = next(iter(held.children)).sequence
            held = held.parent

    def _decode(
        self, rows: Sequence[BatchRow], held: Sequence[Held], seen_by: Sequence[Sequence[int]]
    ) -> NDArray[np.float32]:
        """One call of the model: logits `[wanted, width]`, in memory of their own."""
        sizes = np.array([len(row.tokens) for row in rows])
        last = np.cumsum(sizes) - 1  # of each row, the place of its last token
        total = int(sizes.sum())
        starts = np.array([h.end - h.size for h in held])
        first = last - sizes + 1
        tokens = np.fromiter((t for row in rows for t in row.tokens), np.int32, total)
        positions = (np.arange(total) + np.repeat(starts - first, sizes)).astype(np.int32)
        # The sequences of a row are a piece of one array.
        sequences = np.array([one for some in seen_by for one in some], dtype=np.int32)
        pieces = np.array([len(some) for some in seen_by])
        counts = np.repeat(pieces, sizes).astype(np.int32)
        offsets = np.repeat(np.cumsum(pieces) - pieces, sizes)
        pointers = (sequences.ctypes.data + offsets * sequences.itemsize).astype(np.uintp)
        wanted = np.zeros(total, dtype=np.int8)
        wanted[last[[row.wanted for row in rows]]] = 1
        status = self._llama.llama_decode(
            self._pointer, self._batch(tokens, positions, counts, pointers, wanted)
        )
        if status:
            raise ModelError(
                f"llama.cpp could not evaluate {total} tokens (llama_decode returned {status}). "
                "The model may not fit into memory: load it with a smaller window or fewer cells."
            )
        found = int(wanted.sum())
        if not found:
            return np.empty((0, self._width), dtype=np.float32)
        logits = self._llama.llama_get_logits(self._pointer)
        return np.ctypeslib.as_array(logits, shape=(found, self._width)).copy()

    def _batch(self, *arrays: NDArray[Any]) -> Any:
        """A `llama_batch` of these arrays, which must outlive it."""
        kinds = (ctypes.c_int32, ctypes.c_int32, ctypes.c_int32, None, ctypes.c_int8)
        token, pos, counts, pointers, wanted = (
            array.ctypes.data_as(
                ctypes.POINTER(ctypes.POINTER(ctypes.c_int32) if kind is None else kind)
            )
            for array, kind in zip(arrays, kinds, strict=True)
        )
        return self._llama.llama_batch(
            n_tokens=len(arrays[0]), token=token, embd=None, pos=pos, n_seq_id=counts,
            seq_id=pointers, logits=wanted,
        )  # fmt: skip


def _leaves(rows: Sequence[BatchRow]) -> list[int]:
    """The rows that are nobody's parent, rising."""
    inner = {row.parent for row in rows}
    return [i for i in range(len(rows)) if i not in inner]
