"""The mask of every host: which tokens may come next in each row of a batch.

Nothing is kept of a request: what is left is read off the token ids at every call, so repeated
calls, rejected drafts, preempted and reordered requests all get the answer that belongs to the ids
they show.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from charwise.errors import SettingError
from charwise.healing.forced import allowed_next, remaining
from charwise.tokens.index import SortedVocabulary

if TYPE_CHECKING:
    import torch

    Allowed = Callable[[bytes], NDArray[np.int64]]
    Bits = Callable[[bytes, int, torch.dtype, torch.device], tuple[torch.Tensor, torch.Tensor]]


class Mask:
    """The allowed next tokens of any request to models of one vocabulary; threads may share it.

    Args:
        index: of the model's vocabulary.

    >>> from charwise import Vocabulary
    >>> mask = Mask(SortedVocabulary(Vocabulary.from_bytes([b"s", b"weep", b"sw", b"a"])))
    >>> import torch
    >>> logits = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4]])
    >>> mask.apply_(logits, [b"sw", b""], [[0], []]), logits
    (True, tensor([[  -inf, 0.2000,   -inf,   -inf],
            [0.1000, 0.2000, 0.3000, 0.4000]]))
    """

    def __init__(self, index: SortedVocabulary) -> None:
        self.index = index
        self._columns = 1 + int(index.ids.max())
        self._allowed, self._bits = _caches(index)

    def check(self, forced: bytes) -> None:
        """Raise `VocabularyError` for bytes that no token string spells, before a request starts.

        Args:
            forced: as `healing.cut` returns it.
        """
        allowed_next(forced, self.index)

    def remaining(self, forced: bytes, generated: Sequence[int]) -> bytes | None:
        """Return the bytes still forced after `generated`, all of the tokens since the cut.

        None: they left the forced text, as a draft may, or lead where no token can follow.
        """
        if len(generated) >= len(forced):  # each token has a byte at least
            return b""
        rest = remaining(forced, generated, self.index.vocabulary)
        return None if rest and len(generated) and not self.index.spellable(rest) else rest

    def masked(self, logits: torch.Tensor, rest: Sequence[bytes | None]) -> torch.Tensor:
        """Return a new tensor with −inf for tokens that may not come next.

        Args:
            logits: `[rows, columns]` of any float type, on any device; columns beyond the
                vocabulary become −inf as well.
            rest: what is still forced in each row; rows without stay as they are.

        Raises:
            SettingError: a token of the vocabulary has no column, so the index is another model's.
        """
        import torch

        out = torch.empty_like(logits)
        if free := [row for row, text in enumerate(rest) if not text]:
            out[free] = logits[free]
        self._mask(logits, rest, out)
        return out

    def _mask(self, logits: torch.Tensor, rest: Sequence[bytes | None], out: torch.Tensor) -> None:
        """Write the rows that something is forced in; `out` may be the logits."""
        import torch

        columns, device = logits.shape[1], logits.device
        if columns < self._columns:
            raise SettingError(
                f"the scores have {columns} columns, but the vocabulary has a token with the id "
                f"{self._columns - 1}: the index belongs to another model."
            )
        rows_of: dict[bytes, list[int]] = {}
        for row, text in enumerate(rest):
            if text:
                rows_of.setdefault(text, []).append(row)
        few: list[tuple[list[int], NDArray[np.int64]]] = []
        for text, rows in rows_of.items():
            allowed = self._allowed(text)
            if len(allowed) * len(rows) <= columns // 8:
                few.append((rows, allowed))
                continue
            # Many, such as the third of all tokens that begin with a space: by their bits.
            keep, low = self._bits(text, columns, logits.dtype, device)
            if len(rows) == len(rest):
                bits = torch.bitwise_and(logits.view(keep.dtype), keep, out=out.view(keep.dtype))
                bits.bitwise_or_(low)
            else:
                at = torch.tensor(rows, device=device)
                bits = logits[at].view(keep.dtype).bitwise_and_(keep).bitwise_or_(low)
                out[at] = bits.view(logits.dtype)
        if few:  # one go for all rows
            each = [(np.repeat(rows, len(ids)), np.tile(ids, len(rows))) for rows, ids in few]
            cells = torch.from_numpy(np.concatenate(each, axis=1)).to(device).unbind()
            cell_logits = logits[cells]
            masked = [row for rows, _ in few for row in rows]
            if len(masked) == len(rest):
                out.fill_(-torch.inf)
            else:
                out.index_fill_(0, torch.tensor(masked, device=device), -torch.inf)
            out[cells] = cell_logits

    def apply_(
        self,
        logits: torch.Tensor,
        forced: Sequence[bytes],
        generated: Sequence[Sequence[int]],
    ) -> bool:
        """Set to −inf, in place, the logits that may not be drawn.

        Args:
            logits: `[rows, columns]` of any float type, on any device.
            forced: the bytes that each row reproduces.
            generated: ids of each row's tokens since the cut, all of them.

        Returns:
            Whether anything was masked. False: every id may come next, nothing was written.
        """
        rest = [self.remaining(text, ids) for text, ids in zip(forced, generated, strict=True)]
        if any(rest):
            self._mask(logits, rest, logits)
        return any(rest)


def _caches(index: SortedVocabulary) -> tuple[Allowed, Bits]:
    """By forced text, and shared by all masks of an index: allowed ids, and how to keep many."""
    if index not in _CACHES:
        weak = weakref.ref(index)  # a cache that holds its own key is never freed

        @lru_cache(maxsize=64)
        def allowed(text: bytes) -> NDArray[np.int64]:
            alive = weak()
            assert alive is not None  # the mask has it
            return allowed_next(text, alive)

        @lru_cache(maxsize=16)
        def bits(
            text: bytes, columns: int, dtype: torch.dtype, device: torch.device
        ) -> tuple[torch.Tensor, torch.Tensor]:
            """`(logit & keep) | low`: an allowed logit keeps every bit, any other becomes −inf.

            Whatever it was, NaN included. On a CPU this is much faster than by indices.
            """
            import torch

            low = torch.full((columns,), -torch.inf, dtype=dtype, device=device)
            low = low.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize])
            ids = torch.tensor(allowed(text), device=device)
            keep = torch.zeros_like(low).index_fill_(0, ids, -1)
            return keep, low.index_fill_(0, ids, 0)

        _CACHES[index] = allowed, bits
    return _CACHES[index]


_CACHES: weakref.WeakKeyDictionary[SortedVocabulary, tuple[Allowed, Bits]] = (
    weakref.WeakKeyDictionary()
)
