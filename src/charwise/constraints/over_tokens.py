"""Constraints over tokens: the sorted vocabulary and a constraint over bytes go side by side.

Tokens that begin alike are one range, so a byte that may not follow rules out all of them at once.
"""

from __future__ import annotations

from typing import Self

import numpy as np

from charwise.constraints.constraint import END, Constraint, Flags, TokenConstraint
from charwise.tokens.index import SortedVocabulary


class OverTokens:
    """A constraint over tokens, for constraints that know bytes only.

    >>> from charwise.constraints.choices import choices
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"n", b"no", b"not", b"o", None], end_ids=[4])
    >>> narrowed = OverTokens(choices(["no", "yes"]), SortedVocabulary(vocabulary))
    >>> narrowed.mask().tolist(), narrowed.after(b"no").mask().tolist()
    ([True, True, False, False, False], [False, False, False, False, True])
    """

    def __init__(self, constraint: Constraint, index: SortedVocabulary) -> None:
        self.constraint = constraint
        self.index = index

    def mask(self) -> Flags:
        """`[width]`: the tokens all of whose bytes may follow; the end tokens, if it may end."""
        index = self.index
        mask: Flags = np.zeros(index.vocabulary.width, dtype=np.bool_)
        mask[index.ids[allowed_tokens(self.constraint, index, 0, len(index.sorted), 0)]] = True
        mask[list(index.vocabulary.end_ids)] = bool(self.constraint.allowed()[END])
        return mask

    def after(self, data: bytes) -> Self:
        """The constraint after the bytes of a token."""
        return type(self)(self.constraint.after(data), self.index)


def allowed_tokens(
    constraint: Constraint, index: SortedVocabulary, lo: int, hi: int, depth: int
) -> Flags:
    """`[hi - lo]`: which tokens of a range may follow with all their bytes from `depth` on.

    Args:
        constraint: what may follow after the first `depth` bytes, on which the tokens agree.
        index: the vocabulary.
        lo, hi: a range of it, in sorted order.
        depth: bytes of each token that are there already.

    >>> from charwise.constraints.choices import choices
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"is", b"isn", b"iso"]))
    >>> allowed_tokens(choices(["n't"]), index, 0, 3, depth=2).tolist()
    [True, True, False]
    """
    found: Flags = np.zeros(hi - lo, dtype=np.bool_)
    todo = [(constraint, lo, hi, depth)]
    while todo:
        here, first, last, at = todo.pop()
        while first < last and len(index.sorted[first]) == at:
            found[first - lo] = True  # it ends here; twins, of equal bytes, too
            first += 1
        following = np.unique(index.flat[index.starts[first:last] + at])
        allowed = here.allowed()
        for byte in following[allowed[following]].tolist():
            todo.append((here.after(bytes([byte])), *index.narrow(first, last, at, byte), at + 1))
    return found


class Unconstrained:
    """The constraint that allows all byte strings, for sampling where none was given.

    >>> bool(Unconstrained().after(b"x").allowed().all())
    True
    """

    characters = False

    def allowed(self) -> Flags:
        """`[257]`: all of them."""
        return np.ones(END + 1, dtype=np.bool_)

    def after(self, data: bytes) -> Self:
        """The same."""
        return self

    def over(self, index: SortedVocabulary) -> TokenConstraint:
        """The same over the tokens of a vocabulary."""
        return OverTokens(self, index)
