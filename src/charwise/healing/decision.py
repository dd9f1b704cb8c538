"""The decision that every engine's adapter shares: (forced bytes, generated ids) → allowed tokens.

    forced, generated  →  what is left of the forced text      healing.remaining
    left               →  the ids that may come next           healing.allowed_next
    row of logits      →  −inf everywhere else, in place

Nothing is counted and nothing is kept of a request: what is left is read off the token ids at
every call, so repeated calls, rejected drafts, preempted and reordered requests all get the
answer that belongs to the ids they show. Only tensors are kept, by what is left, up to a number
of bytes.

Two ways to mask a row, by how many ids are allowed. Few: take their logits out, fill the row,
put them back. Many (a space starts a third of all tokens): scattered writes would cost more than
the row, so two bitwise passes over its bits, `(logit & keep) | low`: an allowed logit keeps every
bit, any other becomes −inf whatever it was, NaN included.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from charwise.errors import SettingError, VocabularyError, check_count, shown
from charwise.healing import allowed_next, remaining
from charwise.tokens.index import SortedVocabulary

if TYPE_CHECKING:
    import torch

    Tensors = tuple[torch.Tensor, ...]

#: Bytes of a float → the integer of that size in torch, to see its bits.
_BITS = {2: "int16", 4: "int32", 8: "int64"}


class Decisions:
    """The allowed next tokens of any request to models of one vocabulary; threads may share it.

    Args:
        index: of the model's vocabulary.
        max_bytes: of tensors to keep, over all devices, the least recently used dropped first.
            By default all `Decisions` of an index share one cache of 64 MiB; with a number this
            one gets a cache of its own, and 0 keeps nothing.

    >>> from charwise import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"s", b"weep", b"sw", b"a"])
    >>> decisions = Decisions(SortedVocabulary(vocabulary))
    >>> decisions.left(b"sw", [0])
    b'w'
    >>> import torch
    >>> row = torch.tensor([0.1, 0.2, 0.3, 0.4])
    >>> decisions.mask_(row, b"sw", [0]), row
    (True, tensor([  -inf, 0.2000,   -inf,   -inf]))
    """

    def __init__(self, index: SortedVocabulary, *, max_bytes: int | None = None) -> None:
        if not isinstance(index, SortedVocabulary):
            raise SettingError(
                f"index is a {type(index).__name__}: make one with SortedVocabulary(vocabulary)."
            )
        self.index = index
        self.cache = _cache_of(index) if max_bytes is None else _TensorCache(max_bytes)
        self._columns = 1 + int(index.ids.max())
        # Tokens see no further than one token, unless what follows may have no tokens at all.
        vocabulary = index.vocabulary
        self._reach = vocabulary.max_token_bytes + 1 if vocabulary.byte_complete else None

    def check(self, forced: bytes) -> None:
        """Refuse bytes that cannot be forced, before a request with them starts.

        Raises:
            SettingError: `forced` is not bytes.
            VocabularyError: no token string of the vocabulary spells it.

        >>> from charwise import Vocabulary
        >>> Decisions(SortedVocabulary(Vocabulary.from_bytes([b"a"]))).check(b"aa")
        """
        if not isinstance(forced, bytes):
            raise SettingError(
                f"a forced text is bytes, as healing.cut returns, not {shown(forced)}."
            )
        if not self.index.spellable(forced):
            raise VocabularyError(
                f"no token string of this vocabulary spells {shown(forced)}, so it cannot be "
                "forced. Check that the index belongs to the model."
            )

    def check_columns(self, columns: int) -> None:
        """Refuse logits too narrow for the vocabulary; wider ones are fine (padding).

        Raises:
            SettingError: a token of the vocabulary has no column, so the index is another model's.

        >>> from charwise import Vocabulary
        >>> Decisions(SortedVocabulary(Vocabulary.from_bytes([b"a"]))).check_columns(8)
        """
        if columns < self._columns:
            raise SettingError(
                f"the scores have {columns} columns, but the vocabulary has a token with the id "
                f"{self._columns - 1}: the index belongs to another model."
            )

    def left(self, forced: bytes, generated: Sequence[int]) -> bytes | None:
        """Return the bytes still forced after `generated`; `healing.remaining`, or one comparison.

        A token adds at least one byte, so after as many tokens as `forced` has bytes nothing is
        left, whatever they are. None: the tokens left the forced text, as a draft may, or lead
        where no token can follow.

        >>> from charwise import Vocabulary
        >>> decisions = Decisions(SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab", b"c"])))
        >>> decisions.left(b"ab", []), decisions.left(b"ab", [1]), decisions.left(b"ab", [2])
        (b'ab', b'', None)
        """
        if len(generated) >= len(forced):
            return b""
        left = remaining(forced, generated, self.index.vocabulary)
        if left and len(generated) and self._reach is None and not self.index.spellable(left):
            return None
        return left

    def mask_(
        self,
        row: torch.Tensor,
        forced: bytes,
        generated: Sequence[int],
        *,
        out: torch.Tensor | None = None,
    ) -> bool:
        """Set to −inf, in place, the logits of one row that may not come next.

        Args:
            row: `[columns]` of any float type, on any device; columns beyond the vocabulary
                become −inf as well.
            forced: the bytes to reproduce.
            generated: ids of this row's tokens since the cut, all of them.
            out: write the result here, and leave `row` as it is.

        Returns:
            Whether anything was masked. False: every id may come next, nothing was written.

        Raises:
            SettingError: a row that is too narrow for the vocabulary.
        """
        left = self.left(forced, generated)
        if left:
            self._mask(row, left[: self._reach], row if out is None else out)
        return bool(left)

    def mask_rows_(
        self,
        logits: torch.Tensor,
        forced: Iterable[bytes],
        generated: Iterable[Sequence[int]],
    ) -> bool:
        """Apply `mask_` to each row of a batch `[rows, columns]`, and return if any was masked.

        A row with nothing left to force costs one comparison.

        >>> from charwise import Vocabulary
        >>> decisions = Decisions(SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab", b"c"])))
        >>> import torch
        >>> logits = torch.zeros(2, 3)
        >>> decisions.mask_rows_(logits, [b"", b"c"], [[], []]), logits.tolist()
        (True, [[0.0, 0.0, 0.0], [-inf, -inf, 0.0]])
        """
        masked = False
        for row, (text, ids) in enumerate(zip(forced, generated, strict=True)):
            left = self.left(text, ids)
            if left:
                self._mask(logits[row], left[: self._reach], logits[row])
                masked = True
        return masked

    def mask_scores_(
        self, scores: NDArray[np.float32], forced: bytes, generated: Sequence[int]
    ) -> bool:
        """Apply `mask_` to a row of numpy, `[columns]` float32, without keeping the mask.

        >>> from charwise import Vocabulary
        >>> decisions = Decisions(SortedVocabulary(Vocabulary.from_bytes([b"a", b"b", b"c"])))
        >>> scores = np.zeros(3, np.float32)
        >>> decisions.mask_scores_(scores, b"ab", []), scores.tolist()
        (True, [0.0, -inf, -inf])
        """
        left = self.left(forced, generated)
        if left:
            self.check_columns(len(scores))
            allowed = allowed_next(left[: self._reach], self.index)
            kept = scores[allowed]
            scores.fill(-np.inf)
            scores[allowed] = kept
        return bool(left)

    def _mask(self, row: torch.Tensor, left: bytes, out: torch.Tensor) -> None:
        import torch

        key = (left, row.device, row.dtype, row.shape[0])
        kept = self.cache.get(key, lambda: self._tensors(left, row))
        if len(kept) == 1:
            [ids] = kept
            values = row.index_select(0, ids)
            out.fill_(-math.inf).index_copy_(0, ids, values)
        else:
            keep, low = kept
            bits = out.view(low.dtype)
            torch.bitwise_and(row.view(low.dtype), keep, out=bits)
            bits.bitwise_or_(low)

    def _tensors(self, left: bytes, row: torch.Tensor) -> Tensors:
        """Return the masks of rows like this: allowed ids, or `keep` and `low` for every column."""
        import torch

        columns = row.shape[0]
        self.check_columns(columns)
        ids = torch.tensor(allowed_next(left, self.index), device=row.device)
        # With more allowed ids than this share of a row, masking it whole is faster.
        if len(ids) <= columns / 128:
            return (ids,)
        bits = getattr(torch, _BITS[row.dtype.itemsize])
        keep = torch.zeros(columns, dtype=bits, device=row.device)  # all ones where allowed
        low = torch.full_like(row, -torch.inf).view(bits)  # zero where allowed
        return keep.index_fill_(0, ids, -1), low.index_fill_(0, ids, 0)


class _TensorCache:
    """Tensors by key, the least recently used dropped when they exceed a number of bytes.

    >>> import torch
    >>> cache = _TensorCache(4000)
    >>> for name in "aba":
    ...     made = cache.get(name, lambda: (torch.zeros(100),))
    >>> len(cache), cache.bytes <= 4000
    (2, True)
    """

    def __init__(self, max_bytes: int) -> None:
        if max_bytes is not None:
            check_count("max_bytes", max_bytes, 0)
        self.max_bytes = max_bytes
        self.bytes = 0
        self._entries: OrderedDict[Hashable, Tensors] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable, make: Callable[[], Tensors]) -> Tensors:
        """The tensors of a key; `make` is called if they are not kept.

        >>> import torch
        >>> _TensorCache(0).get("a", lambda: (torch.ones(1),))
        (tensor([1.]),)
        """
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
                return found
        made = make()  # outside the lock: two threads may both make it, and one is kept
        with self._lock:
            if key not in self._entries:
                self._entries[key] = made
                self.bytes += _weight(made)
            while self.bytes > self.max_bytes:
                self.bytes -= _weight(self._entries.popitem(last=False)[1])
        return made

    def __len__(self) -> int:
        """How many keys have tensors."""
        return len(self._entries)


def _weight(tensors: Tensors) -> int:
    # What an entry of the cache weighs besides its tensors: keys and objects, generously.
    return 1024 + sum(tensor.nbytes for tensor in tensors)


_caches: WeakKeyDictionary[SortedVocabulary, _TensorCache] = WeakKeyDictionary()
_caches_lock = Lock()


def _cache_of(index: SortedVocabulary) -> _TensorCache:
    """The one cache of an index; it lives as long as the index."""
    with _caches_lock:
        # Bytes of tensors, over all devices.
        return _caches.setdefault(index, _TensorCache(2**26))
