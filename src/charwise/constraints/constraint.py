"""What a constraint is, and the simplest: one of a list of texts.

A set C of byte strings, seen from the left. After a text, `allowed` names the bytes with which
some member of C can still be reached, and the end (256) where the text itself is in C. A member
that is no proper prefix of another is *closed*: nothing may follow it but the end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Self

import numpy as np
from numpy.typing import NDArray

from charwise.errors import ConstraintError, items, shown
from charwise.tokens.canonical import to_bytes
from charwise.tokens.index import SortedVocabulary

#: Index of the end in `Constraint.allowed`.
END = 256

Flags = NDArray[np.bool_]


class Constraint:
    """The bytes that may follow, step by step: an immutable value.

    Attributes:
        characters: whether it is over whole characters, and allows nothing but valid UTF-8.
        has_check: whether finished texts are checked as a whole.
        fault: why the text so far is not valid; None if it is, or is not checked.
    """

    characters = False
    has_check = False
    fault: str | None = None

    def allowed(self) -> Flags:
        """Return the bytes that may follow, `[257]` bool; at 256 whether the text may end here."""
        raise NotImplementedError

    def mask(self) -> Flags:
        """Return the tokens of the vocabulary (`over`) that may follow, `[width]` bool.

        All bytes of such a token may follow; the end tokens may, where the text may end.
        """
        raise NotImplementedError

    def after(self, data: str | bytes) -> Self:
        """The constraint after more bytes.

        Raises:
            ConstraintError: at the first byte that may not follow; `position` is its offset.
        """
        raise NotImplementedError

    def over(self, index: SortedVocabulary) -> Self:
        """The same over the tokens of a vocabulary."""
        raise NotImplementedError


def checked(given: Constraint) -> Constraint:
    """Return the argument, if it is a constraint.

    Raises:
        ConstraintError: what is none.
    """
    if not isinstance(given, Constraint):
        raise ConstraintError(f"{shown(given)} is no constraint: regex('…') makes one.")
    return given


def closed(constraint: Constraint) -> bool:
    """Whether nothing may follow but the end."""
    return not constraint.allowed()[:END].any()


def is_member(constraint: Constraint, text: bytes) -> bool:
    """Whether a text satisfies a constraint.

    Raises:
        ConstraintError: where the constraint is too complex to be followed.
    """
    try:
        return bool(constraint.after(text).allowed()[END])
    except ConstraintError as error:
        possible = constraint.after(text[: error.position]).allowed()
        if len(text) <= error.position or possible[text[error.position]]:
            raise  # not because of this byte
        return False


def refuse(data: bytes, position: int, allowed: Flags) -> ConstraintError:
    """The error for a byte that may not follow."""
    codes = np.flatnonzero(allowed).tolist()
    what = repr(bytes(code for code in codes if code < END))
    if len(codes) > 20:
        what = f"{len(codes)} others"
    elif END in codes:
        what = "the end of the text" if len(codes) == 1 else f"{what}, or the end of the text"
    elif not codes:
        what = "nothing"
    here = data[position : position + 1]
    return ConstraintError(
        f"{here!r} (byte {position} of {data[:40]!r}) may not follow here; what may: {what}.",
        position,
    )


def finite(constraint: Constraint, most: int, longest: int = 4096) -> list[bytes] | None:
    """All members of a small set, in the order of their bytes; None if there are more.

    Args:
        constraint: a set C.
        most: so many members at most.
        longest: most bytes of a member, so that the search ends.
    """
    members: list[bytes] = []
    todo, steps = [(b"", constraint)], 0
    while todo:
        text, here = todo.pop()
        steps += 1
        # Every step lies on the way to a member, unless two constraints exclude each other.
        if len(text) > longest or steps > most * longest:
            return None
        allowed = here.allowed()
        codes = np.flatnonzero(allowed[:END]).tolist()
        if allowed[END]:
            members.append(text)
        if len(members) + len(todo) + bool(codes) > most:
            return None
        todo += [(text + bytes([code]), here.after(bytes([code]))) for code in reversed(codes)]
    return sorted(members)


class Choices(Constraint):
    """One of a list of byte strings. Made by `choices`.

    Attributes:
        sorted: all of them, in the order of their bytes.
        lo, hi: those that begin with what came so far are a range.
        depth: how many bytes that is.
        characters: whether a constraint over whole characters chose them.
        index: the vocabulary of `mask`.
    """

    def __init__(
        self,
        sorted: tuple[bytes, ...],
        lo: int,
        hi: int,
        depth: int = 0,
        characters: bool = False,
        index: SortedVocabulary | None = None,
    ) -> None:
        self.sorted, self.lo, self.hi, self.depth = sorted, lo, hi, depth
        self.characters, self.index = characters, index

    def allowed(self) -> Flags:
        """Return the bytes that may follow, `[257]` bool; at 256 whether the text may end here."""
        out: Flags = np.zeros(END + 1, dtype=np.bool_)
        at = self.lo
        while at < self.hi:
            byte = self._byte(self.sorted[at])
            out[byte] = True  # −1, where a string ends, is the last index: END
            at = bisect_right(self.sorted, byte, at, self.hi, key=self._byte)
        return out

    def mask(self) -> Flags:
        """Return the tokens that are prefixes of what is left of a choice, `[width]` bool."""
        assert self.index is not None
        index, vocabulary = self.index, self.index.vocabulary
        mask: Flags = np.zeros(vocabulary.width, dtype=np.bool_)
        for choice in self.sorted[self.lo : self.hi]:
            rest = choice[self.depth :]
            lo, hi = index.same_bytes(rest)
            mask[[*index.prefixes(rest), *index.ids[lo:hi]] if rest else vocabulary.end_ids] = True
        return mask

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
            left = self._with(lo, hi, left.depth + 1, self.index)
        return left

    def over(self, index: SortedVocabulary) -> Self:
        """The same over the tokens of a vocabulary."""
        return self._with(self.lo, self.hi, self.depth, index)

    def those_of(self, other: Constraint) -> Self:
        """The choices that another constraint allows; there may be none."""
        left = [one[self.depth :] for one in self.sorted[self.lo : self.hi]]
        both = self.characters or other.characters
        members = tuple(one for one in left if is_member(other, one))
        return type(self)(members, 0, len(members), characters=both)

    def _with(self, lo: int, hi: int, depth: int, index: SortedVocabulary | None) -> Self:
        return type(self)(self.sorted, lo, hi, depth, self.characters, index)

    def _byte(self, string: bytes) -> int:
        """The next byte of one that is left; −1 if it ends here."""
        return string[self.depth] if len(string) > self.depth else -1

    def __repr__(self) -> str:
        left = b", ".join(self.sorted[self.lo : min(self.hi, self.lo + 3)])
        return f"Choices({self.hi - self.lo} left, from {left!r} on)"


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
    if not given:
        raise ConstraintError("there are no choices: give at least one string.")
    for string in given:
        if not isinstance(string, str | bytes):
            raise ConstraintError(f"a choice is text or bytes, not {shown(string)}.")
    distinct = tuple(sorted({to_bytes(string) for string in given}))
    return Choices(distinct, 0, len(distinct))
