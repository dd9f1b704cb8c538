"""A set of byte strings: sorted, those that go on with a text are a range."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Self

import numpy as np

from charwise.constraints.constraint import END, Constraint, Flags, member, refuse
from charwise.errors import ConstraintError, items, shown
from charwise.tokens.canonical import to_bytes
from charwise.tokens.index import SortedVocabulary


class Choices:
    """One of a list of byte strings. Made by `choices`.

    Attributes:
        sorted: all of them, in the order of their bytes.
        lo, hi: those that begin with what came so far.
        depth: how many bytes that is.
        characters: whether what they were chosen by is over whole characters.
    """

    def __init__(
        self, sorted: tuple[bytes, ...], lo: int, hi: int, depth: int, characters: bool = False
    ) -> None:
        self.sorted, self.lo, self.hi, self.depth = sorted, lo, hi, depth
        self.characters = characters

    def allowed(self) -> Flags:
        """Return the bytes that may follow, `[257]` bool; at 256 whether the text may end here."""
        out: Flags = np.zeros(END + 1, dtype=np.bool_)
        at = self.lo
        while at < self.hi:
            byte = self._byte(self.sorted[at])
            out[byte] = True  # −1, where a string ends, is the last index: END
            at = bisect_right(self.sorted, byte, at, self.hi, key=self._byte)
        return out

    def after(self, data: str | bytes) -> Self:
        """The choices that go on with these bytes.

        Raises:
            ConstraintError: at the first byte with which none goes on.
        """
        left, data = self, to_bytes(data)
        for n, byte in enumerate(data):
            lo = bisect_left(left.sorted, byte, left.lo, left.hi, key=left._byte)
            hi = bisect_right(left.sorted, byte, lo, left.hi, key=left._byte)
            if lo == hi:
                raise refuse(data, n, left.allowed())
            left = type(self)(self.sorted, lo, hi, left.depth + 1, self.characters)
        return left

    def those_of(self, other: Constraint) -> Self:
        """The choices that another constraint allows; there may be none."""
        left = [
            choice
            for choice in self.sorted[self.lo : self.hi]
            if member(other, choice[self.depth :])
        ]
        both = self.characters or other.characters
        return type(self)(tuple(left), 0, len(left), self.depth, both)

    def _byte(self, string: bytes) -> int:
        """The next byte of one that is left; −1 if it ends here."""
        return string[self.depth] if len(string) > self.depth else -1

    def over(self, index: SortedVocabulary) -> _ChoiceTokens:
        """The same over the tokens of a vocabulary."""
        return _ChoiceTokens(self, index)

    def __repr__(self) -> str:
        left = b", ".join(self.sorted[self.lo : min(self.hi, self.lo + 3)])
        return f"Choices({self.hi - self.lo} left, from {left!r} on)"


class _ChoiceTokens:
    """One of a list of byte strings, over the tokens of a vocabulary.

    A token may follow if it is a prefix of what is left of a choice: these are read off the sorted
    vocabulary, choice by choice, and the tokens that are none of them are not looked at.
    """

    def __init__(self, choices: Choices, index: SortedVocabulary) -> None:
        self.choices, self.index = choices, index

    def mask(self) -> Flags:
        """`[width]`: the tokens that some choice goes on with; the end tokens, if one ends here."""
        left, index = self.choices, self.index
        mask: Flags = np.zeros(index.vocabulary.width, dtype=np.bool_)
        for choice in left.sorted[left.lo : left.hi]:
            rest = choice[left.depth :]
            if not rest:
                mask[list(index.vocabulary.end_ids)] = True
                continue
            lo, hi = index.twins(rest)
            mask[index.prefixes(rest)] = True
            mask[index.ids[lo:hi]] = True
        return mask

    def after(self, data: bytes) -> Self:
        """The choices that go on with the bytes of a token."""
        return type(self)(self.choices.after(data), self.index)


def choices(strings: Iterable[str | bytes]) -> Choices:
    """Return a constraint to one of these strings, any bytes.

    Raises:
        ConstraintError: none, or what is no string.

    >>> choices(["yes", "no"]).after(b"ye").allowed().nonzero()[0].tolist() == [ord("s")]
    True
    """
    given = items(strings)
    if given is None:
        raise ConstraintError(f"choices are {shown(strings)}: give a list of strings.")
    for string in given:
        if not isinstance(string, str | bytes):
            raise ConstraintError(f"a choice is text or bytes, not {shown(string)}.")
    if not given:
        raise ConstraintError("there are no choices: give at least one string.")
    found = tuple(sorted({to_bytes(string) for string in given}))
    return Choices(found, 0, len(found), 0)
