"""The mask of every host: which tokens may come next in each row of a batch.

    forced, generated  →  what is left of the forced text      `left`
    left of each row   →  −inf where a token may not come      `mask_`, the batch at once

Nothing is kept of a request: what is left is read off the token ids at every call, so repeated
calls, rejected drafts, preempted and reordered requests all get the answer that belongs to the ids
they show.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from charwise.errors import SettingError, VocabularyError, shown
from charwise.healing.forced import allowed_next, remaining
from charwise.tokens.index import SortedVocabulary

if TYPE_CHECKING:
    import torch


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
        if not isinstance(index, SortedVocabulary):
            raise SettingError(
                f"index is a {type(index).__name__}: make one with SortedVocabulary(vocabulary)."
            )
        self.index = index
        self._columns = 1 + int(index.ids.max())

    def check(self, forced: bytes) -> None:
        """Refuse bytes that cannot be forced, before a request with them starts.

        Raises:
            SettingError: `forced` is not bytes.
            VocabularyError: no token string of the vocabulary spells it.
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

    def left(self, forced: bytes, generated: Sequence[int]) -> bytes | None:
        """Return the bytes still forced after `generated`, all of the tokens since the cut.

        None: they left the forced text, as a draft may, or lead where no token can follow.
        """
        if len(generated) >= len(forced):  # each token has a byte at least
            return b""
        left = remaining(forced, generated, self.index.vocabulary)
        return None if left and len(generated) and not self.index.spellable(left) else left

    def mask_(self, logits: torch.Tensor, left: Sequence[bytes | None]) -> None:
        """Set to −inf, in place, the logits of tokens that may not come next.

        Args:
            logits: `[rows, columns]` of any float type, on any device; columns beyond the
                vocabulary become −inf as well.
            left: what is still forced in each row; rows without stay as they are.

        Raises:
            SettingError: a token of the vocabulary has no column, so the index is another model's.
        """
        import torch

        columns, device = logits.shape[1], logits.device
        if columns < self._columns:
            raise SettingError(
                f"the scores have {columns} columns, but the vocabulary has a token with the id "
                f"{self._columns - 1}: the index belongs to another model."
            )
        rows_of: dict[bytes, list[int]] = {}
        for row, text in enumerate(left):
            if text:
                rows_of.setdefault(text, []).append(row)
        few: list[tuple[list[int], NDArray[np.int64]]] = []
        for text, rows in rows_of.items():
            allowed = allowed_next(text, self.index)
            if len(allowed) * len(rows) <= columns // 8:
                few.append((rows, allowed))
                continue
            ids = torch.tensor(allowed, device=device)  # a third of all tokens begin with a space
            if len(rows) == len(left):
                _keep_(logits, ids)
            else:
                at = torch.tensor(rows, device=device)
                logits[at] = _keep_(logits[at], ids)
        if few:  # one go for all rows
            each = [(np.repeat(rows, len(ids)), np.tile(ids, len(rows))) for rows, ids in few]
            cells = torch.from_numpy(np.concatenate(each, axis=1)).to(device).unbind()
            kept = logits[cells]
            masked = [row for rows, _ in few for row in rows]
            if len(masked) == len(left):
                logits.fill_(-torch.inf)
            else:
                logits.index_fill_(0, torch.tensor(masked, device=device), -torch.inf)
            logits[cells] = kept

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
        left = [self.left(text, ids) for text, ids in zip(forced, generated, strict=True)]
        if any(left):
            self.mask_(logits, left)
        return any(left)


def _keep_(rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Set all columns of some rows to −inf, in place, but those of some ids.

    By their bits: on a CPU that is much faster than by a mask of booleans or by indices. An allowed
    logit keeps every bit, any other becomes −inf whatever it was, NaN included.
    """
    import torch

    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[rows.dtype.itemsize]
    keep = torch.zeros(rows.shape[1], dtype=bits, device=rows.device)
    low = torch.full_like(rows[0], -torch.inf).view(bits)
    keep.index_fill_(0, ids, -1)
    low.index_fill_(0, ids, 0)
    rows.view(bits).bitwise_and_(keep).bitwise_or_(low)
    return rows
