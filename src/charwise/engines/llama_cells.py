"""The key-value cells of a llama.cpp context, as a cache of contexts that all trees share."""

from __future__ import annotations

import ctypes
import weakref
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.engine import TokenTree
from charwise.errors import ModelError
from charwise.tokens.gguf import library


class Cells:
    """The cells and sequences of a llama.cpp context; the caller holds a lock.

    A cell holds the keys and values of one token, a *sequence* the cells of one context. Sequences
    share the cells of what they have in common:

        cell       prompt    a     b     c     d
        seen by    0 1 2     0 1   2     0     1

    A new context becomes a member of the cells of the longest prefix that any sequence holds; the
    tokens after it are evaluated. Sequences (256) and cells are few: the one that was used least
    recently makes room. Those of trees that are gone are freed, since attention reads every cell.

    The context at `pointer` was made with `kv_unified` and `count` cells, at least the window.
    `cells`, `[sequences, window]`, is room for the cells of each sequence, of which each is
    `copies` of llama.cpp's.
    """

    def __init__(
        self, pointer: Any, cells: NDArray[np.int32], count: int, copies: int, width: int
    ) -> None:
        self._pointer, self._memory = pointer, library().llama_get_memory(pointer)
        self._cells, self._tokens = cells, np.full_like(cells, -1)
        self.sequences, self.count, self._width = len(cells), count, width
        self._copies = np.arange(copies) * self.sequences
        self.clear()

    def clear(self) -> None:
        """Hold nothing."""
        library().llama_memory_clear(self._memory, False)
        self._tokens[:] = -1
        self._size = np.zeros(self.sequences, np.int64)  # of each sequence, its tokens
        self._last_use = np.zeros(self.sequences, np.int64)
        self._clock = 0
        self._seen_by = np.zeros(self.count, np.int32)  # of each cell, how many sequences
        self._tree = dict[int, weakref.ref[TokenTree]]()  # of each sequence that holds a context

    @property
    def used(self) -> int:
        """Cells that a sequence sees."""
        return int(np.count_nonzero(self._seen_by))

    def evaluate(self, contexts: Sequence[tuple[int, ...]], tree: TokenTree) -> NDArray[np.float32]:
        """Return the logits `[n, width]` after the first n contexts: those that fit into one call.

        Contexts are sorted, with at most half as many leaves as there are sequences; while the tree
        lives, they may stay. After any failure, an interrupt included, nothing is held.
        """
        try:
            for sequence in [one for one, owner in self._tree.items() if owner() is None]:
                self._free(sequence)
            batch = _Batch(self, contexts)
            sequences = self._place(batch)
            self._tree |= dict.fromkeys(sequences, weakref.ref(tree))
            return self._decode(batch, sequences)
        except BaseException:
            self.clear()
            raise

    def longest(self, prefix: tuple[int, ...]) -> tuple[int, int]:
        """The sequence that holds most of a prefix, and how many tokens of it."""
        size = len(prefix)
        wanted = np.array((*prefix, -2), np.int32)  # ends as no sequence does
        # Mostly the longest that has its last token has all of it.
        [likely] = np.nonzero(self._tokens[:, size - 1] == wanted[size - 1])
        for rows in (likely[self._size[likely].argsort()[-1:]], np.arange(self.sequences)):
            sizes = (self._tokens[rows, : size + 1] == wanted).argmin(axis=1)
            if size in sizes:
                break
        return int(rows[sizes.argmax()]), int(sizes.max())

    def held(self, sequence: int, size: int) -> NDArray[np.int32]:
        """The cells of a sequence's first tokens."""
        return self._cells[sequence, :size]

    def _place(self, batch: _Batch) -> list[int]:
        """Give each leaf a sequence that sees its whole path; returns them."""
        self._clock += 2
        sources = [leaf.source for leaf in batch.leaves if leaf.copied]
        self._last_use[sources] = self._clock - 1
        new = []
        for leaf in batch.leaves:
            sequence = int(self._last_use.argmin())
            self._free(sequence)
            self._last_use[sequence] = self._clock
            for copy in self._copies:
                library().llama_memory_seq_cp(
                    self._memory, leaf.source, int(sequence + copy), 0, leaf.copied
                )
            cells = self.held(leaf.source, leaf.copied)
            self._cells[sequence, : leaf.copied] = cells
            self._seen_by[cells] += 1
            new.append(sequence)
        for leaf in batch.leaves:
            if 0 < leaf.copied == self._size[leaf.source]:  # seen whole by another now
                self._free(leaf.source)
        while len(free := np.flatnonzero(self._seen_by == 0)) < len(batch.tokens):
            self._free(int(np.where(self._size > 0, self._last_use, self._clock).argmin()))
        for leaf, sequence in zip(batch.leaves, new, strict=True):
            size = len(leaf.path)
            self._cells[sequence, leaf.copied : size] = free[leaf.rows]
            self._seen_by[free[leaf.rows]] += 1
            self._tokens[sequence, :size] = leaf.path
            self._size[sequence] = size
        return new

    def _free(self, sequence: int) -> None:
        """Hold nothing in a sequence, and free the cells that only it sees."""
        for copy in self._copies:
            library().llama_memory_seq_rm(self._memory, int(sequence + copy), -1, -1)
        self._seen_by[self._cells[sequence, : self._size[sequence]]] -= 1
        self._tokens[sequence] = -1
        self._size[sequence] = self._last_use[sequence] = 0
        self._tree.pop(sequence, None)

    def _decode(self, batch: _Batch, sequences: list[int]) -> NDArray[np.float32]:
        """One call of the model: logits `[n, width]`, in memory of their own."""
        count = len(batch.tokens)
        rows = np.concatenate([leaf.rows for leaf in batch.leaves])
        seen_by = np.repeat(sequences, [len(leaf.rows) for leaf in batch.leaves])
        # The sequences of a row are a piece of one array.
        ordered = seen_by[rows.argsort(kind="stable"), None] + self._copies
        seen_by = ordered.ravel().astype(np.int32)
        sizes = (np.bincount(rows) * len(self._copies)).astype(np.int32)
        pieces = (seen_by.ctypes.data + (np.cumsum(sizes) - sizes) * 4).astype(np.uintp)
        wanted = np.zeros(count, np.int8)
        wanted[batch.last_rows] = 1
        arrays = (np.array(batch.tokens, np.int32), np.array(batch.positions, np.int32))
        whole, byte = ctypes.POINTER(ctypes.c_int32), ctypes.POINTER(ctypes.c_int8)
        tokens, positions, counts = (x.ctypes.data_as(whole) for x in (*arrays, sizes))
        llama = library()
        status = llama.llama_decode(
            self._pointer,
            llama.llama_batch(
                n_tokens=count, token=tokens, embd=None, pos=positions, n_seq_id=counts,
                seq_id=pieces.ctypes.data_as(ctypes.POINTER(whole)),
                logits=wanted.ctypes.data_as(byte),
            ),
        )  # fmt: skip
        if status:
            raise ModelError(
                f"llama.cpp could not evaluate {count} tokens (llama_decode returned {status}). "
                "The model may not fit into memory: load it with a smaller window or fewer cells."
            )
        _, at = np.unique(batch.last_rows, return_inverse=True)
        logits = llama.llama_get_logits(self._pointer)
        return np.ctypeslib.as_array(logits, shape=(at.max() + 1, self._width))[at]


class _Leaf(NamedTuple):
    """A context that no other of a batch goes on from.

    Its first `copied` tokens are those of the sequence `source`, the others `rows` of the batch.
    """

    path: tuple[int, ...]
    source: int
    copied: int
    rows: NDArray[np.int64]


class _Batch:
    """The tokens to evaluate for some contexts: those after the prefixes that are held.

    A context's last token is always one of them, or there would be no logits. The batch ends
    before the first leaf for which there are no cells.
    """

    def __init__(self, cells: Cells, contexts: Sequence[tuple[int, ...]]) -> None:
        self.tokens, self.positions = list[int](), list[int]()  # of each row
        self.last_rows, self.leaves = list[int](), list[_Leaf]()  # of the contexts
        rows = np.zeros(max(map(len, contexts)), np.int64)  # of each token of the path
        first: tuple[int, ...] = (-1,)
        before, prefix = tuple[int, ...](), None
        source = copied = 0
        copies = np.zeros(cells.count, np.bool_)  # the cells of all prefixes
        complete = 0, 0  # rows and contexts up to the last leaf
        for path, after in zip(contexts, [*contexts[1:], ()], strict=True):
            if path[: len(first)] != first:
                first = path  # the shortest context of the paths to come
                if first[:-1] != prefix:
                    prefix = first[:-1]
                    source, copied = cells.longest(prefix)
            start = max(copied, _common(before, path))
            rows[start : len(path)] = np.arange(len(path) - start) + len(self.tokens)
            self.tokens += path[start:]
            self.positions += range(start, len(path))
            self.last_rows.append(int(rows[len(path) - 1]))
            before = path
            if after[: len(path)] == path:
                continue
            copies[cells.held(source, copied)] = True
            if self.leaves and len(self.tokens) + np.count_nonzero(copies) > cells.count:
                size, count = complete
                del self.tokens[size:], self.positions[size:], self.last_rows[count:]
                break
            self.leaves.append(_Leaf(path, source, copied, rows[copied : len(path)].copy()))
            complete = len(self.tokens), len(self.last_rows)


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many tokens two contexts have in common at their start."""
    sizes = range(1, min(len(one), len(other)) + 1)
    return bisect_left(sizes, True, key=lambda size: one[:size] != other[:size])
