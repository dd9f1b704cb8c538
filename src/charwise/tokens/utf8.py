"""Characters in bytes: where one is incomplete, and decoding that waits for its end."""

from __future__ import annotations

import codecs


def pending(text: bytes) -> bytes:
    """The bytes of the character that a text ends inside of; empty if it ends between two.

    >>> pending("naï".encode()[:-1]), pending("naï".encode())
    (b'\\xc3', b'')
    """
    for size in range(1, min(4, len(text) + 1)):
        start = text[len(text) - size :]
        if needs(start) > 0:
            return start
        if start[0] & 0xC0 != 0x80:
            break
    return b""


def needs(start: bytes) -> int:
    """How many bytes a character's start still needs; −1 if no character starts so.

    >>> needs(b"\\xe2\\x82"), needs(b"a"), needs(b"\\x82")
    (1, 0, -1)
    """
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
    """Return the number of bytes of a text's last character, as `errors="replace"` shows it.

    A character that the text ends inside of counts as one, a byte that belongs to none as well.

    >>> last_character("naï".encode()), last_character(b"na\\xc3"), last_character(b"na\\x82")
    (2, 1, 1)
    >>> last_character("€".encode()[:-1]), last_character(b"")
    (2, 0)
    """
    for size in range(1, min(4, len(text)) + 1):
        end = text[len(text) - size :]
        if needs(end) >= 0:
            return size
        if end[0] & 0xC0 != 0x80:
            break
    return min(1, len(text))


def decoder_after(text: bytes) -> codecs.IncrementalDecoder:
    """Return a decoder for the rest of a text: a character that the text began comes out whole.

    Bytes that are no character become U+FFFD; an unfinished last character is kept back.

    >>> decoder_after("naï".encode()[:-1]).decode(b"\\xafve")
    'ïve'
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(pending(text))
    return decoder
