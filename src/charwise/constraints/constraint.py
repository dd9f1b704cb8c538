"""The protocol of a constraint: which bytes may follow, and may the text end.

A set C of byte strings, seen from the left. After a text, `allowed` names the bytes with which
some member of C can still be reached, and the end (256) where the text itself is in C. A member
that is no proper prefix of another is *closed*: nothing may follow it but the end.
"""

from __future__ import annotations

from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from charwise.errors import ConstraintError, shown
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

    >>> from charwise.constraints.choices import choices
    >>> checked(choices(["yes"]))
    Choices(1 left, from b'yes' on)
    """
    if not all(callable(getattr(given, name, None)) for name in ("allowed", "after", "over")):
        raise ConstraintError(f"{shown(given)} is no constraint: regex('…') makes one.")
    return given


def closed(constraint: Constraint) -> bool:
    """Whether nothing may follow but the end.

    >>> from charwise.constraints.choices import choices
    >>> closed(choices(["a", "ab"]).after(b"a")), closed(choices(["a", "b"]).after(b"a"))
    (False, True)
    """
    return not constraint.allowed()[:END].any()


def member(constraint: Constraint, text: bytes) -> bool:
    """Whether a text satisfies a constraint.

    Raises:
        ConstraintError: where the constraint is too complex to be followed.

    >>> from charwise.constraints.choices import choices
    >>> [member(choices(["ab", "a"]), text) for text in (b"a", b"ab", b"b", b"")]
    [True, True, False, False]
    """
    try:
        return bool(constraint.after(text).allowed()[END])
    except ConstraintError as error:
        known = constraint.after(text[: error.position]).allowed()
        if len(text) <= error.position or known[text[error.position]]:
            raise  # not because of this byte
        return False


def refuse(data: bytes, position: int, allowed: Flags) -> ConstraintError:
    """The error for a byte that may not follow.

    >>> str(refuse(b"ab", 1, np.eye(257, dtype=bool)[99]))
    "b'b' (byte 1 of b'ab') may not follow here; what may: b'c'."
    """
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

    >>> from charwise.constraints.choices import choices
    >>> finite(choices(["yes", "no"]), 2), finite(choices(["yes", "no"]), 1)
    ([b'no', b'yes'], None)
    """
    found: list[bytes] = []
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
            found.append(text)
        if len(found) + len(todo) + bool(codes) > most:
            return None
        todo += [(text + bytes([code]), here.after(bytes([code]))) for code in reversed(codes)]
    return sorted(found)
