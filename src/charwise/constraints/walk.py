"""Constraints over tokens, by walking: the sorted vocabulary and the constraint go side by side.

Tokens that begin alike are one range, so a byte that may not follow rules out all of them at once.
"""

from __future__ import annotations

from typing import Self

import numpy as np

from charwise.constraints.constraint import END, Constraint, Flags
from charwise.tokens.index import SortedVocabulary


class Walked:
    """A constraint over tokens, for constraints that know bytes only.

    >>> from charwise.constraints.choices import choices
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"n", b"no", b"not", b"o", None], end_ids=[4])
    >>> walked = Walked(choices(["no", "yes"]), SortedVocabulary(vocabulary))
    >>> walked.mask().tolist(), walked.after(b"no").mask().tolist()
    ([True, True, False, False, False], [False, False, False, False, True])
    """

    def __init__(self, constraint: Constraint, index: SortedVocabulary) -> None:
        self.constraint = constraint
        self.index = index

    def mask(self) -> Flags:
        """`[width]`: the tokens all of whose bytes may follow; the end tokens, if it may end."""
        index = self.index
        ranks: Flags = np.zeros(len(index.sorted), dtype=np.bool_)
        todo = [(self.constraint, 0, len(index.sorted), 0)]
        while todo:
            constraint, lo, hi, depth = todo.pop()
            while lo < hi and len(index.sorted[lo]) == depth:
                ranks[lo] = True  # it ends here; twins, of equal bytes, too
                lo += 1
            following = np.unique(index.flat[index.starts[lo:hi] + depth])
            allowed = constraint.allowed()
            for byte in following[allowed[following]].tolist():
                narrowed = index.narrow(lo, hi, depth, byte)
                todo.append((constraint.after(bytes([byte])), *narrowed, depth + 1))
        mask: Flags = np.zeros(index.vocabulary.width, dtype=np.bool_)
        mask[index.ids[ranks]] = True
        mask[list(index.vocabulary.end_ids)] = bool(self.constraint.allowed()[END])
        return mask

    def after(self, data: bytes) -> Self:
        """The constraint after the bytes of a token."""
        return type(self)(self.constraint.after(data), self.index)
