"""A constraint over tokens, byte by byte along the sorted vocabulary: the plain way, to compare.

Tokens that begin alike are one range, so a byte that may not follow rules out all of them at once.
"""

from __future__ import annotations

from typing import Self

import numpy as np

from charwise import SortedVocabulary
from charwise.constraints.constraint import END, Constraint, Flags


class OverTokens:
    """A constraint over tokens, for constraints that know bytes only."""

    def __init__(self, constraint: Constraint, index: SortedVocabulary) -> None:
        self.constraint = constraint
        self.index = index

    def mask(self) -> Flags:
        """`[width]`: the tokens all of whose bytes may follow; the end tokens, if it may end."""
        index = self.index
        mask: Flags = np.zeros(index.vocabulary.width, dtype=np.bool_)
        mask[index.ids[self._allowed()]] = True
        mask[list(index.vocabulary.end_ids)] = bool(self.constraint.allowed()[END])
        return mask

    def after(self, data: bytes) -> Self:
        """The constraint after the bytes of a token."""
        return type(self)(self.constraint.after(data), self.index)

    def _allowed(self) -> Flags:
        """`[n]`: which tokens may follow with all their bytes, in sorted order."""
        index = self.index
        found: Flags = np.zeros(len(index.sorted), dtype=np.bool_)
        todo = [(self.constraint, 0, len(index.sorted), 0)]
        while todo:
            here, first, last, at = todo.pop()
            while first < last and len(index.sorted[first]) == at:
                found[first] = True  # it ends here; twins, of equal bytes, too
                first += 1
            following = np.unique(index.flat[index.starts[first:last] + at])
            allowed = here.allowed()
            for byte in following[allowed[following]].tolist():
                narrowed = index.narrow(first, last, at, byte)
                todo.append((here.after(bytes([byte])), *narrowed, at + 1))
        return found
