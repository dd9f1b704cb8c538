"""Long texts in pieces: the text itself, with no character cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from charwise.tokens.utf8 import pieces
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
