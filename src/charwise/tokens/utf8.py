"""Characters in bytes: where one is incomplete, decoding that waits for its end, and long texts.

A long text is scored in pieces, each conditioned on at least 8,192 bytes before it, or on all: more
than the windows of `coverings/windows.py` hold.
"""

import codecs
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple


def pending(text: bytes) -> bytes:
    """Return the bytes of the character that a text ends inside of; empty between two."""
    return decoder_after(text).getstate()[0]


def bytes_missing(start: bytes) -> int:
    """Return how many bytes a character's start still needs; −1 if no character starts so."""
    try:
        start.decode("utf-8")
        return 0 if len(start) else -1
    except UnicodeDecodeError as error:
        # "unexpected end of data" is how the decoder calls a correct but incomplete start.
        if error.reason != "unexpected end of data" or error.start != 0:
            return -1
    lead = start[0]
    length = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    return length - len(start)


def last_character(text: bytes) -> int:
    """Return the number of bytes of a text's last character, as `errors="replace"` shows it."""
    for size in range(1, min(4, len(text)) + 1):
        end = text[len(text) - size :]
        if bytes_missing(end) >= 0:
            return size
        if end[0] & 0xC0 != 0x80:
            break
    return min(1, len(text))


def decoder_after(text: bytes) -> codecs.IncrementalDecoder:
    """Return a decoder for the rest of a text: a character that the text began comes out whole."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(text[-3:])
    return decoder


class _Piece(NamedTuple):
    """A part of a text: where it begins, its bytes, and those before that it is conditioned on."""

    start: int
    text: bytes
    context: bytes


def pieces(text: bytes, most: int = 2**15, before: int = 2**13) -> Iterator[_Piece]:
    """Yield the pieces of a text, in order; of the empty text one that is empty."""
    start = 0
    while True:
        stop = start + most
        stop = len(text) if stop >= len(text) else seam(text, range(stop, start + most // 2, -1))
        first = max(0, start - before)
        first = first and seam(text, range(first, first + 4))
        yield _Piece(start, text[start:stop], text[first:start])
        if stop == len(text):
            return
        start = stop


def last_bytes(text: bytes, most: int) -> int:
    """Return where the last `most` bytes of a text begin; later, where a seam is near."""
    lost = len(text) - most
    return seam(text, range(lost, lost + most // 4 + 1)) if lost > 0 else 0


def first_bytes(text: bytes, most: int) -> int:
    """Return where the first `most` bytes of a text end; earlier, where a seam is near."""
    return seam(text, range(most, most - most // 4 - 1, -1)) if len(text) > most else len(text)


def seam(text: bytes, places: Sequence[int]) -> int:
    """Return the first offset after a line, else before a space, else between characters."""
    line = (at for at in places if text[at - 1 : at] == b"\n")
    space = (at for at in places if text[at : at + 1] == b" ")
    character = (at for at in places if at >= len(text) or text[at] & 0xC0 != 0x80)
    return next(chain(line, space, character, places))
