"""A long text in pieces, each after a part of the text before: memory does not grow with it.

A piece is scored as a text with a context. So what is said of a byte is conditioned on the text's
beginning, or on at least 8,192 bytes before its piece: more than the windows of
`coverings/windows.py` hold. A text that is one piece is scored as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class _Piece(NamedTuple):
    """A part of a text: where it begins, its bytes, and those before that it is conditioned on.

    >>> _Piece(3, b"def", b"abc").start
    3
    """

    start: int
    text: bytes
    context: bytes


def pieces(text: bytes, most: int = 2**15, before: int = 2**13) -> Iterator[_Piece]:
    """The pieces of a text, in order; of the empty text one that is empty.

    Where they end depends on the bytes alone: after a line, else before a space, else after a
    whole character.

    >>> [piece.text for piece in pieces(b"one two three", most=8)]
    [b'one two', b' three']
    >>> [piece.context for piece in pieces(b"one two three", most=8, before=3)]
    [b'', b'two']
    """
    start = 0
    while True:
        stop = _stop(text, start, most)
        first = max(0, start - before)
        first = first and _whole(text, range(first, first + 4))
        yield _Piece(start, text[start:stop], text[first:start])
        if stop == len(text):
            return
        start = stop


def _stop(text: bytes, start: int, most: int) -> int:
    """Where the piece ends that begins at `start`."""
    stop = start + most
    if stop >= len(text):
        return len(text)
    least = start + most // 2
    line = text.rfind(b"\n", least, stop)
    if line >= 0:
        return line + 1
    space = text.rfind(b" ", max(least, start + 1), stop)
    return space if space >= 0 else _whole(text, range(stop, stop - 4, -1))


def _whole(text: bytes, places: range) -> int:
    """The first of some places at which no character goes on; else the first of them.

    >>> _whole("aé".encode(), range(2, 4)), _whole("aé".encode(), range(2, 0, -1))
    (3, 1)
    """
    ends = (at for at in places if at >= len(text) or text[at] & 0xC0 != 0x80)
    return next(ends, places[0])
