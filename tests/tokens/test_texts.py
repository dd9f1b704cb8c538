"""Parts of texts: characters in bytes, pieces of long texts, stop strings, line ends."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from charwise.errors import SettingError, VocabularyError
from charwise.tokens.canonical import to_bytes
from charwise.tokens.line_ends import line_end, offset, unify, write_pieces
from charwise.tokens.stops import Stops
from charwise.tokens.utf8 import bytes_missing, decoder_after, last_character, pending, pieces, seam
from models import examples


@given(
    text=st.binary(max_size=200) | st.text(max_size=80).map(str.encode),
    most=st.integers(8, 40),
    before=st.integers(0, 50),
)
@examples(300)
def test_pieces_are_the_text(text: bytes, most: int, before: int) -> None:
    result = list(pieces(text, most, before))
    assert b"".join(piece.text for piece in result) == text
    for piece in result:
        assert text[piece.start :].startswith(piece.text)
        assert len(piece.text) <= most
        assert text[: piece.start].endswith(piece.context)
        assert len(piece.context) <= before
        assert len(piece.context) >= min(before - 3, piece.start)
    try:
        text.decode()
    except UnicodeDecodeError:
        return
    for piece in result:  # no character is cut
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


# --- stop strings, against a search at every byte -----------------------------------------------

STRINGS = st.lists(st.text("ab\n", min_size=1, max_size=3), max_size=4)
AB_TEXTS = st.text("ab\n", max_size=9).map(str.encode)


@examples(500)
@given(AB_TEXTS, STRINGS, st.integers(0, 9))
def test_the_one_that_is_complete_first(text, strings, since):
    result = [
        (end, begin)
        for end in range(since + 1, len(text) + 1)
        for begin in range(end)
        if text[begin:end].decode() in strings
    ]
    expected = (min(result)[1], min(result)[0]) if result else None
    assert Stops(strings).first(text, since) == expected
    assert Stops(strings).first(bytearray(text), since) == expected


@examples(300)
@given(AB_TEXTS, STRINGS, st.text("ab\n", max_size=4).map(str.encode))
def test_what_is_held_back_is_enough_and_no_more(text, strings, more):
    stops = Stops(strings)
    held = stops.held(text)
    offset = len(text) - held
    match = stops.first(text + more, since=len(text))
    if match is not None:
        assert match[0] >= offset
    if held:
        assert any(string.encode().startswith(text[offset:]) for string in strings)


@examples(300)
@given(AB_TEXTS, STRINGS, AB_TEXTS)
def test_those_apart_are_found_where_the_new_text_alone_would_have_them(forced, strings, new):
    """So an engine may search them in all that it writes."""
    apart = Stops(strings).safe_after(forced)
    assert set(apart) <= set(strings)
    for string in apart:
        result = (forced + new).find(string.encode())
        alone = new.find(string.encode())
        assert result == (alone + len(forced) if alone >= 0 else -1)


def test_those_that_cannot_be_apart():
    assert Stops(["a", "ba", "c"]).safe_after(b"ab") == ["c"]
    assert Stops([b"\xff", "c"]).safe_after(b"ab") == ["c"]  # no engine searches such a byte


def test_what_is_given():
    assert Stops().strings == Stops(None).strings == Stops([]).strings == ()
    assert Stops("ab").strings == Stops([b"ab"]).strings == Stops(("ab",)).strings == (b"ab",)
    assert not Stops()
    for wrong in ("", b"", [""], ["a", b""], 5, [5], [None], {"a": 1}, 1.5, [["a"]]):
        with pytest.raises(SettingError, match="stop"):
            Stops(wrong)


# --- line ends of files: what a model reads, what a file gets, and where a place in it is ---------

LINE_ENDS = st.sampled_from(["\n", "\r\n", "\r"])
LINES = st.text(st.sampled_from("ab é\n\r"), max_size=12)


@given(LINES)
def test_what_is_read_has_one_kind_of_end(text: str) -> None:
    assert unify(text) == "\n".join(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))
    assert unify(text.encode()) == unify(text).encode()


@given(st.text(st.sampled_from("ab é"), max_size=4), st.integers(0, 5), LINE_ENDS)
def test_a_file_of_one_kind_is_what_it_was(line: str, lines: int, end: str) -> None:
    text = "".join([line + end] * lines)
    assert unify(unify(text), line_end(text)) == text


@given(LINES, LINES)
def test_most_lines_decide(before: str, after: str) -> None:
    counts = dict.fromkeys(["\n", "\r\n", "\r"], 0)
    for text in (before, after):
        for one in text.replace("\r\n", "2").translate({ord("\n"): "1", ord("\r"): "3"}):
            if one in "123":
                counts[{"1": "\n", "2": "\r\n", "3": "\r"}[one]] += 1
    assert counts[line_end(before, after.encode())] == max(counts.values())


@given(LINES, st.data())
def test_an_offset_leads_to_the_same_place(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    at = data.draw(st.integers(0, len(unify(raw))))
    place = offset(raw, at)
    assert unify(raw[:place]) == unify(raw)[:at]
    assert unify(raw[place:]) == unify(raw)[at:]


@given(st.lists(LINES, max_size=4), LINE_ENDS)
def test_pieces_are_those_of_the_text(pieces: list[str], end: str) -> None:
    result = write_pieces([one.encode() for one in pieces], end)
    assert b"".join(result) == unify("".join(pieces), end).encode()
    assert len(result) == len(pieces)
