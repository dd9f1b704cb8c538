r"""The end of a completion: at a line, at a block, or before it repeats the text after the cursor.

All of these look at bytes whose lines end in `\n`, and are asked after every token.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

#: A word, an operator, another sign, or spaces.
_WORDS = re.compile(rb"[\w\x80-\xff]+|[-+*/=<>!&|^%~@.]+|[^\w\s]|\s+")

#: A string between three quotes, over lines, which may stay open; or in a line.
_STRING = re.compile(
    rb"""(\"{3}|'{3})(?:\\.|(?!\1).)*(?:\1|\Z)|([\"'])(?:\\[^\n]|(?!\2)[^\\\n])*\2""", re.DOTALL
)
_CLOSING = dict(zip(b")]}", b"([{", strict=True))


class _Ending(NamedTuple):
    """The place where a completion ends, in bytes, and the rule: "line", "block" or "suffix"."""

    at: int
    rule: str


class StopRules:
    r"""The rules that end the completions of one request.

    Args:
        before, after: the text around the cursor.
        until: "line" ends before the first line break; "block" before a line that is indented by
            less than the one with the cursor, or after an empty line at its margin.
        indent: in place of that line's: ends before a line indented by less.
        fills_in: whether the model knows the text after the cursor. Several lines before the rest
            of the cursor's line stay if it ended them by itself; another model never comes back.
    """

    def __init__(
        self,
        before: bytes,
        after: bytes = b"",
        *,
        until: str | None = None,
        indent: int = 0,
        fills_in: bool = False,
    ) -> None:
        self._until, self._fills_in = until, fills_in
        self._holds_lines = bool(until or indent or after)
        self._line_before = before[before.rfind(b"\n") + 1 :]
        self._indent = indent or (_margin(self._line_before) if until == "block" else 0)
        rest, _, below = after.partition(b"\n")
        self._rest = rest if rest.strip() else b""
        # Before code, at the margin, whole lines are inserted.
        self._inserts_lines = bool(self._rest) and not self._line_before.strip()
        following = [line.rstrip() for line in below.split(b"\n") if line.strip()]
        if self._inserts_lines:
            following = [(self._line_before + rest).rstrip()]
        self._next = following[0] if following else None

    def ending(self, new: bytes, finish: str = "") -> _Ending | None:
        """Return where all new bytes end, after which nothing comes where they have a `finish`."""
        done, limited = bool(finish), finish in ("length", "window", "time")
        ends = [end for end in (self._line(new), self._block(new)) if end]
        # What a rule leaves is done, as is what the model ended.
        rests = [self._suffix(new[: end.at], True, limited=False) for end in ends]
        others = (self._suffix(new, done, limited), self._below(new, done), *rests)
        ends += [end for end in others if end]
        return min(ends, key=lambda end: end.at, default=None)

    def safe(self, new: bytes) -> int:
        """Return how many of the new bytes stay, whatever comes after them."""
        if not self._holds_lines:
            return len(new)
        several = self._fills_in and self._rest
        end = new.find(b"\n") if several else new.rfind(b"\n")
        line = new[: max(0, end)].rstrip()
        # A limit leaves one line of several, and as much of it as if it were done.
        return _repetition(line, self._rest, True) if several else len(line)

    def _line(self, new: bytes) -> _Ending | None:
        at = new.find(b"\n")
        if at < 0 or self._until != "line":
            return None
        if self._inserts_lines:
            return _Ending(at + 1, "line")
        if not new[:at].strip() and not self._rest:
            # The cursor is at the end of a line: the next one is meant.
            at = new.find(b"\n", at + 1)
        return None if at < 0 else _Ending(len(new[:at].removesuffix(b"\r")), "line")

    def _block(self, new: bytes) -> _Ending | None:
        if not self._indent and self._until != "block":
            return None
        empty = False
        for at, line, ended in _lines(new):
            less = _margin(line) < self._indent + empty
            if at and line.strip() and less:
                return _Ending(len(new[:at].rstrip()), "block")
            empty = at > 0 and not line.strip() and (empty or (ended and self._until == "block"))
        return None

    def _suffix(self, new: bytes, done: bool, limited: bool) -> _Ending | None:
        """The end before the rest of the cursor's line is written again."""
        if not self._rest or self._inserts_lines:
            return None
        line, newline = new, b""
        if limited or not self._fills_in:
            line, newline, _ = new.partition(b"\n")
            line = line.removesuffix(b"\r") if newline else line
        at = _repetition(line, self._rest, done or bool(newline))
        return _Ending(at, "suffix") if at < len(line) or newline else None

    def _below(self, new: bytes, done: bool) -> _Ending | None:
        """The end before the line below is written again."""
        for at, line, ended in _lines(new):
            if self._next is None or not (ended or done):
                return None
            whole = (line if at else self._line_before + line).rstrip()
            repeats = whole == self._next or (not ended and self._next.startswith(whole))
            if line.strip() and repeats:
                return _Ending(at if self._inserts_lines else len(new[:at].rstrip()), "suffix")
        return None


def _repetition(text: bytes, rest: bytes, done: bool) -> int:
    """Return where a text begins to repeat the line after it; its length if it does not.

    It does so where, outside brackets and strings of its own, it writes all of the rest, or closes
    the bracket that the rest closes. The last line of a text that is done also does where it makes
    the call that the rest makes, with whatever arguments, or ends with the first words of the rest.
    """
    space = rest[: len(rest) - len(rest.lstrip())]
    sign = rest[len(space) : len(space) + 1]
    call = re.match(rb"[\w\x80-\xff]*[(\[{]", rest)
    ends = {match.end() for match in _WORDS.finditer(rest)}
    last_line = text.rfind(b"\n") + 1
    for at in _outside(text, done):
        byte = text[at]
        if byte not in (rest[0], sign[0]):
            continue
        size, last = len(text) - at, done and at >= last_line
        whole = len(rest.strip()) > 1 or (done and size == len(rest))
        if sign in b")]}" and byte == sign[0]:
            # With the space before the bracket, if that is written too.
            return at - len(space) if text[:at].endswith(space) else at
        if (
            (whole and text.startswith(rest, at))
            or (last and size in ends and rest.startswith(text[at:]))
            or (
                (last and call is not None and text.startswith(call[0], at))
                and _alike(text[at + call.end() - 1 :], rest[call.end() - 1 :])
            )
        ):
            return at
    return len(text)


def _alike(part: bytes, rest: bytes) -> bool:
    """Return whether two texts go on alike after the brackets that they begin with."""
    ends = (next((at for at in _outside(text, True) if at), len(text)) for text in (part, rest))
    tail, wanted = part[next(ends) :], rest[next(ends) :]  # empty where brackets stay open
    return wanted.startswith(tail) or (bool(wanted) and tail.startswith(wanted))


def _outside(text: bytes, done: bool) -> Iterator[int]:
    """The places in a text at which no bracket and no quote is open that the text opened.

    A quote that its line does not close is an apostrophe.
    """
    brackets, end = list[int](), 0
    open_lines = dict.fromkeys(b"\"'", 0)  # the end of a line that does not close such a quote
    for at, byte in enumerate(text):
        if at < end:
            continue
        if not brackets:
            yield at
        if byte in b"\"'":
            if at < open_lines[byte]:
                continue
            if string := _STRING.match(text, at):
                end = string.end()
                continue
            newline = text.find(b"\n", at)
            if newline < 0 and not done:
                return  # its line may still close it
            open_lines[byte] = len(text) if newline < 0 else newline
        elif byte in b"([{":
            brackets.append(byte)
        elif byte in _CLOSING and brackets and brackets[-1] == _CLOSING[byte]:
            brackets.pop()


def _lines(text: bytes) -> Iterator[tuple[int, bytes, bool]]:
    """Where each line begins, the line without its end, and whether it has one."""
    at = 0
    for line in text.split(b"\n"):
        yield at, line, at + len(line) < len(text)
        at += len(line) + 1


def _margin(line: bytes) -> int:
    """The number of spaces and tabs that a line begins with."""
    return len(line) - len(line.lstrip(b" \t"))
