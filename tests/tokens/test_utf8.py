"""Characters in bytes, and long texts in pieces: the text itself, with no character cut."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from charwise.errors import VocabularyError
from charwise.tokens.canonical import to_bytes
from charwise.tokens.utf8 import bytes_missing, decoder_after, last_character, pending, pieces, seam
from models import examples


@given(
    text=st.binary(max_size=200) | st.text(max_size=80).map(str.encode),
    most=st.integers(8, 40),
    before=st.integers(0, 50),
)
@examples(300)
def test_pieces_are_the_text(text: bytes, most: int, before: int) -> None:
    found = list(pieces(text, most, before))
    assert b"".join(piece.text for piece in found) == text
    for piece in found:
        assert text[piece.start :].startswith(piece.text)
        assert len(piece.text) <= most
        assert text[: piece.start].endswith(piece.context)
        assert len(piece.context) <= before
        assert len(piece.context) >= min(before - 3, piece.start)
    try:
        text.decode()
    except UnicodeDecodeError:
        return
    for piece in found:  # no character is cut
        (piece.context + piece.text).decode()
        piece.text.decode()


#: Whole characters of one to four bytes, parts of them, and bytes that are in none.
PARTS = [*(c.encode() for c in "aé€🙂"), b"\xc3", b"\x82", b"\xe2\x82", b"\xf0\x9f\x98", b"\xff"]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=8).map(b"".join)
ENDS = [b"", *(bytes([lead]) + b"\x80" * n for lead in (0x80, 0x90, 0xA0) for n in range(3))]


@given(TEXTS, TEXTS)
@example("🙂".encode()[:3], "🙂".encode()[3:])
@examples(300)
def test_a_decoder_goes_on_inside_a_character(text: bytes, more: bytes) -> None:
    held = pending(text)
    assert text.endswith(held)
    assert len(held) < 4
    decoder = decoder_after(text)
    rest = decoder.decode(more, final=True)
    assert (text + more).decode("utf-8", "replace").endswith(rest)
    whole = text[: len(text) - len(held)].decode("utf-8", "replace")
    assert whole + rest == (text + more).decode("utf-8", "replace")


@given(st.sampled_from(PARTS).flatmap(lambda part: st.sampled_from([part[:n] for n in range(5)])))
def test_the_bytes_that_a_character_still_needs(start: bytes) -> None:
    missing = bytes_missing(start)
    sizes = {len(end) for end in ENDS if is_character(start + end)}
    assert missing == min(sizes, default=-1)


@given(TEXTS)
@examples(300)
def test_the_last_character_is_the_one_that_is_shown(text: bytes) -> None:
    size = last_character(text)
    assert (
        text[: len(text) - size].decode("utf-8", "replace") == text.decode("utf-8", "replace")[:-1]
    )
    assert bool(size) == bool(text)


@pytest.mark.parametrize(
    ("text", "at"),
    [("a b\nc d", 4), ("a b c\nd", 3), ("ab cd", 2), ("é\n", 3), ("a漢", 4), ("abc", 2)],
)
def test_a_text_is_cut_after_a_line_else_before_a_space_else_between_characters(
    text: str, at: int
) -> None:
    assert seam(text.encode(), range(2, 6)) == at


def is_character(raw: bytes) -> bool:
    try:
        return len(raw.decode()) == 1
    except UnicodeDecodeError:
        return False


@pytest.mark.parametrize(
    ("text", "code", "position"),
    [
        ("a\ud83d", "lone surrogate, U+D83D", 1),
        ("é\ude00a", "lone surrogate, U+DE00", 2),
        ("a\ud83d\ude00b", "lone surrogate, U+D83D", 1),
    ],
)
def test_what_has_no_utf8_form_is_named(text: str, code: str, position: int) -> None:
    with pytest.raises(VocabularyError, match=re.escape(code)) as caught:
        to_bytes(text)
    assert caught.value.position == position
