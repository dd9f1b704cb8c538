"""The protocol of a constraint: which bytes may follow, and may the text end.

A set C of byte strings, seen from the left. After a text, `allowed` names the bytes with which
some member of C can still be reached, and the end (256) where the text itself is in C. A member
that is no proper prefix of another is *closed*: nothing may follow it but the end.

The simplest set is a list, `Choices`: sorted, those that go on with a text are a range.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from charwise.errors import ConstraintError, items, shown
from charwise.tokens.canonical import to_bytes
from charwise.tokens.index import SortedVocabulary

#: Index of the end in `Constraint.allowed`.
END = 256

Flags = NDArray[np.bool_]


class TokenConstraint(Protocol):
    """A constraint over the tokens of one vocabulary."""

    def mask(self) -> Flags:
        """`[width]`: the tokens all of whose bytes may follow; the end tokens, if it may end."""
        ...

    def after(self, data: bytes) -> Self:
        """The constraint after the bytes of a token."""
        ...


class Constraint(Protocol):
    """The bytes that may follow, step by step: an immutable value.

    Attributes:
        characters: whether it is over whole characters, and allows nothing but valid UTF-8.
    """

    @property
    def characters(self) -> bool: ...

    def allowed(self) -> Flags:
        """Return the bytes that may follow, `[257]` bool; at 256 whether the text may end here."""
        ...

    def after(self, data: bytes) -> Self:
        """The constraint after more bytes.

        Raises:
            ConstraintError: at the first byte that may not follow; `position` is its offset.
        """
        ...

    def over(self, index: SortedVocabulary) -> TokenConstraint:
        """The same over the tokens of a vocabulary."""
        ...


def checked(given: Constraint) -> Constraint:
    """Return the argument, if it is a constraint.

    Raises:
        ConstraintError: what is none.
    """
    if not all(callable(getattr(given, name, None)) for name in ("allowed", "after", "over")):
        raise ConstraintError(f"{shown(given)} is no constraint: regex('…') makes one.")
    return given


def closed(constraint: Constraint) -> bool:
    """Whether nothing may follow but the end."""
    return not constraint.allowed()[:END].any()


def has_check(constraint: Constraint | None) -> bool:
    """Whether finished texts under a constraint are checked as a whole."""
    return getattr(constraint, "check", None) is not None


def fault_of(constraint: Constraint) -> str | None:
    """Why the text so far is not valid; None if it is, or is not checked."""
    fault: str | None = getattr(constraint, "fault", None)
    return fault


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
            if is_member(other, choice[self.depth :])
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
            lo, hi = index.same_bytes(rest)
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
    if not given:
        raise ConstraintError("there are no choices: give at least one string.")
    for string in given:
        if not isinstance(string, str | bytes):
            raise ConstraintError(f"a choice is text or bytes, not {shown(string)}.")
    distinct = tuple(sorted({to_bytes(string) for string in given}))
    return Choices(distinct, 0, len(distinct), 0)
