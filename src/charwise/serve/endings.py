r"""The end of a completion: at a line, at a block, or before it repeats the text after the cursor.

All of these look at bytes, and are asked after every token.
"""

from __future__ import annotations

import re
from typing import NamedTuple

#: A word, an operator, or another sign.
_TOKEN = re.compile(rb"[\w\x80-\xff]+|[-+*/=<>!&|^%~@.]+|[^\w\s]")


class _Ending(NamedTuple):
    """Where a completion ends, and why.

    >>> _Ending(4, "line")
    _Ending(at=4, why='line')
    """

    at: int
    why: str


class Rules:
    r"""The rules that end the completions of one request.

    Args:
        before: the text before the cursor.
        after: the text after it.
        until: "line" ends before the first line break; "block" before a line that is indented by
            less than the one with the cursor, or after an empty line at its margin.
        indent: in place of that line's: ends before a line indented by less.

    >>> Rules(b"    x = ", b"", until="line").ending(b"1\n    y", False)
    _Ending(at=1, why='line')
    >>> Rules(b"foo(", b")", until=None).ending(b"bar)", True)
    _Ending(at=3, why='suffix')
    """

    def __init__(
        self, before: bytes, after: bytes = b"", *, until: str | None = None, indent: int = 0
    ) -> None:
        self._until = until
        line = before[before.rfind(b"\n") + 1 :]
        self._indent = indent or (_margin(line) if until == "block" else 0)
        self._rest = after.split(b"\n", 1)[0].rstrip(b"\r")
        below = after[len(after.split(b"\n", 1)[0]) + 1 :]
        following = [one.rstrip() for one in below.split(b"\n") if one.strip()]
        self._next = following[0] if following else None

    def ending(self, new: bytes, done: bool) -> _Ending | None:
        """Where the new bytes end; None if they may go on.

        Args:
            new: all that was written.
            done: whether nothing comes after them.
        """
        ends = [self._line(new), self._block(new), self._suffix(new, done)]
        found = [one for one in ends if one is not None]
        return min(found, key=lambda one: one.at, default=None)

    def _line(self, new: bytes) -> _Ending | None:
        at = new.find(b"\n")
        if at < 0 or self._until != "line":
            return None
        if not new[:at].strip() and at + 1 < len(new) and not self._rest.strip():
            # The cursor is at the end of a line: the next one is meant.
            more = new.find(b"\n", at + 1)
            return None if more < 0 else _Ending(_without_return(new, more), "line")
        if not new[:at].strip() and not self._rest.strip():
            return None
        return _Ending(_without_return(new, at), "line")

    def _block(self, new: bytes) -> _Ending | None:
        if not self._indent and self._until != "block":
            return None
        at, empty = new.find(b"\n"), False
        while at >= 0:
            end = new.find(b"\n", at + 1)
            line = new[at + 1 : len(new) if end < 0 else end]
            if line.strip():
                if _margin(line) < self._indent or (empty and _margin(line) <= self._indent):
                    return _Ending(len(new[: at + 1].rstrip()), "block")
                empty = False
            else:
                empty = empty or (end >= 0 and self._until == "block")
            at = end
        return None

    def _suffix(self, new: bytes, done: bool) -> _Ending | None:
        end = new.find(b"\n")
        if self._rest.strip():
            if end < 0 and not done:
                return self._written(new)
            line = new if end < 0 else new[:end]
            kept = _overlap(line, self._rest)
            if kept < len(line) or end >= 0:
                return _Ending(kept, "suffix")
            return None
        if self._next is None:
            return None
        while end >= 0:
            stop = new.find(b"\n", end + 1)
            if stop < 0 and not done:
                return None
            line = new[end + 1 : len(new) if stop < 0 else stop].rstrip()
            if line and (line == self._next or (stop < 0 and self._next.startswith(line))):
                return _Ending(len(new[: end + 1].rstrip(b" \t\r\n")), "suffix")
            end = stop
        return None

    def _written(self, new: bytes) -> _Ending | None:
        """The rest of the line written out, where no bracket is open before it."""
        at = new.find(self._rest)
        while at >= 0 and not _matched(new[:at]):
            at = new.find(self._rest, at + 1)
        return None if at < 0 or len(self._rest.strip()) < 2 else _Ending(at, "suffix")


def _without_return(new: bytes, at: int) -> int:
    return at - 1 if new[at - 1 : at] == b"\r" else at


def _margin(line: bytes) -> int:
    """How many spaces and tabs a line begins with."""
    return len(line) - len(line.lstrip(b" \t"))


def _overlap(line: bytes, rest: bytes) -> int:
    """Where a line begins to repeat the text after it, brackets that it opened apart; else its end.

    It does so with the first word or sign of that: what would follow is there already.

    >>> _overlap(b"bar())", b")"), _overlap(b"bar()", b")"), _overlap(b"a + b)", b") + 1")
    (5, 5, 5)
    >>> _overlap(b"e(0, 2):", b"(10):")
    1
    """
    first = _TOKEN.search(rest)
    for token in _TOKEN.finditer(line):
        if first and token[0] == first[0] and _matched(line[: token.start()]):
            begun = rest[: first.end()]  # with the space before it, if that is written too
            return token.end() - len(begun if line[: token.end()].endswith(begun) else first[0])
    for size in range(min(len(line), len(rest)), 0, -1):
        if line.endswith(rest[:size]) and _matched(line[: len(line) - size]):
            return len(line) - size
    return len(line)


def _matched(text: bytes) -> bool:
    """Whether no bracket is open that the text opened."""
    pairs = dict(zip(b")]}", b"([{", strict=True))
    open_: list[int] = []
    for byte in text:
        if byte in b"([{":
            open_.append(byte)
        elif byte in pairs and open_ and open_[-1] == pairs[byte]:
            open_.pop()
    return not open_
