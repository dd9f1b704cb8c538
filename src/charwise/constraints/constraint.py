"""What a constraint is, a set of byte strings seen from the left; and the simplest, a list."""

from collections.abc import Callable, Iterable
from typing import Self

import numpy as np
from numpy.typing import NDArray

from charwise.errors import ConstraintError, items, quote
from charwise.tokens.canonical import to_bytes
from charwise.tokens.index import SortedVocabulary

#: Index of the end in `Constraint.allowed`.
END = 256

Flags = NDArray[np.bool_]


class Constraint:
    """The bytes that may follow, step by step: an immutable value.

    Attributes:
        characters: whether it is over whole characters, and allows nothing but valid UTF-8.
        check: why a finished text is not valid, None of a valid one; None where none is checked.
        fault: why the text so far is not valid; None if it is, or is not checked.
    """

    characters = False
    check: Callable[[bytes], str | None] | None = None
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

    @property
    def is_closed(self) -> bool:
        """Whether nothing may follow but the end."""
        return not self.allowed()[:END].any()

    def members(self, most: int, longest: int = 4096) -> list[bytes] | None:
        """All members of a small set, in the order of their bytes; None if there are more.

        Args:
            most: so many members at most.
            longest: most bytes of a member, so that the search ends.
        """
        members: list[bytes] = []
        todo, steps = [(b"", self)], 0
        while todo:
            text, here = todo.pop()
            steps += 1
            # The check of a schema may refuse all that a way leads to.
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

    def _refusal(self, data: bytes, position: int) -> ConstraintError:
        """The error for a byte that may not follow."""
        codes = np.flatnonzero(self.after(data[:position]).allowed()).tolist()
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


def checked(constraint: Constraint) -> Constraint:
    """Return the argument, if it is a constraint."""
    if not isinstance(constraint, Constraint):
        raise ConstraintError(f"{quote(constraint)} is no constraint: regex('…') makes one.")
    return constraint


class Choices(Constraint):
    """One of a list of byte strings: sorted, what is left of those that begin as the text did."""

    def __init__(self, suffixes: tuple[bytes, ...], index: SortedVocabulary | None = None) -> None:
        self.suffixes, self.index = suffixes, index

    def allowed(self) -> Flags:
        out: Flags = np.zeros(END + 1, dtype=np.bool_)
        out[[one[0] if one else END for one in self.suffixes]] = True
        return out

    def mask(self) -> Flags:
        assert self.index is not None
        index, vocabulary = self.index, self.index.vocabulary
        mask: Flags = np.zeros(vocabulary.width, dtype=np.bool_)
        for one in self.suffixes:
            lo, hi = index.same_bytes(one)
            ids = [*index.prefixes(one), *index.ids[lo:hi]] if one else list(vocabulary.end_ids)
            mask[ids] = True
        return mask

    def after(self, data: str | bytes) -> Self:
        data = to_bytes(data)
        suffixes = tuple(one[len(data) :] for one in self.suffixes if one.startswith(data))
        if not suffixes:
            length = 0
            while any(one.startswith(data[: length + 1]) for one in self.suffixes):
                length += 1
            raise self._refusal(data, length)
        return type(self)(suffixes, self.index)

    def over(self, index: SortedVocabulary) -> Self:
        return type(self)(self.suffixes, index)

    def __repr__(self) -> str:
        return f"Choices({len(self.suffixes)} left, from {b', '.join(self.suffixes[:3])!r} on)"


def choices(strings: Iterable[str | bytes]) -> Choices:
    """Return a constraint to one of these strings, any bytes.

    Raises:
        ConstraintError: none, or what is no string.

    >>> choices(["yes", "no"]).after(b"ye").allowed().nonzero()[0].tolist() == [ord("s")]
    True
    """
    members = items(strings)
    if members is None:
        raise ConstraintError(f"choices are {quote(strings)}: give a list of strings.")
    if not members:
        raise ConstraintError("there are no choices: give at least one string.")
    for string in members:
        if not isinstance(string, str | bytes):
            raise ConstraintError(f"a choice is text or bytes, not {quote(string)}.")
    return Choices(tuple(sorted({to_bytes(string) for string in members})))
