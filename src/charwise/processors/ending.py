"""The decision at the other end: a middle may end only with the bytes that the suffix gave up.

    new bytes, ending  →  what is still owed              infill.owed
    owed               →  the end is not allowed, and its probability goes to what is owed

A model that would end the middle before that has said that it is over; all that is missing then
is what the suffix begins with. Like the mask at the beginning, this is read off the token ids at
every call. The end itself is never forced: a model that goes on past the ending may do so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from charwise.healing import remaining
from charwise.infill import owed, owed_tokens
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.vocabulary import Vocabulary

if TYPE_CHECKING:
    import torch

    Row = torch.Tensor | NDArray[np.floating[Any]]


def hold_end_of_(
    row: Row,
    forced: bytes,
    ending: bytes,
    generated: Sequence[int],
    index: SortedVocabulary,
) -> bool:
    """`_hold_end_` for a row whose tokens since the cut are given: all of them.

    While the forced text is not reproduced there is nothing to do: its mask allows no end. Later
    only as many tokens are read as the ending has bytes.

    >>> from charwise import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"y", b"ex", None], end_ids=[2]))
    >>> row = np.zeros(3)
    >>> hold_end_of_(row, b"y", b"ex", [0, 0], index), row.round(4)
    (True, array([0.    , 0.6931,   -inf]))
    >>> hold_end_of_(row, b"y", b"ex", [0, 1], index)
    False
    """
    if not ending:
        return False
    new: bytes | None
    if len(generated) >= len(forced) + len(ending):  # each token has a byte at least
        new = index.vocabulary.decode(generated[-len(ending) :])
    else:
        new = new_bytes(generated, forced, index)
    return new is not None and _hold_end_(row, new, ending, index)


def new_bytes(ids: Sequence[int], forced: bytes, index: SortedVocabulary) -> bytes | None:
    """Return the new bytes beyond the forced text; None while, or if, tokens do not have it.

    >>> from charwise import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"in", b"index", b"d"]))
    >>> new_bytes([1], b"ind", index), new_bytes([0], b"ind", index)
    (b'ex', None)
    """
    if remaining(forced, ids, index.vocabulary) != b"":
        return None
    return index.vocabulary.decode(ids)[len(forced) :]


def end_ids(vocabulary: Vocabulary) -> list[int]:
    """Return the tokens that end a middle: ends of texts, of turns and of files.

    >>> from charwise import Vocabulary
    >>> end_ids(Vocabulary.from_bytes([b"y", None, None], end_ids=[1], special={2: "<file_sep>"}))
    [1, 2]
    """
    return sorted({*vocabulary.stop_ids, *vocabulary.closing})


def _hold_end_(row: Row, new: bytes, ending: bytes, index: SortedVocabulary) -> bool:
    """Take the end tokens out of a row of scores, in place, where the middle may not end.

    Args:
        row: `[columns]` scores, of torch or numpy, of which softmax makes probabilities.
        new: the bytes written beyond the forced text.
        ending: what the middle must end with.
        index: of the model's vocabulary.

    Returns:
        Whether anything was changed.

    >>> from charwise import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"y", b"ex", b"e", None], end_ids=[3]))
    >>> row = np.log([0.25, 0.25, 0.25, 0.25])
    >>> _hold_end_(row, b"ind", b"ex", index), np.exp(row).round(4)
    (True, array([0.25, 0.5 , 0.25, 0.  ]))
    >>> _hold_end_(row, b"index", b"ex", index)
    False
    """
    if not owed(new, ending):
        return False
    ends = end_ids(index.vocabulary)
    heir = next(iter(owed_tokens(new, ending, index)), None)
    if heir is not None:
        scores: list[float] = row[[heir, *ends]].tolist()
        most = max(scores)
        if most > -math.inf:
            row[heir] = most + math.log(sum(math.exp(score - most) for score in scores))
    row[ends] = -math.inf
    return True
