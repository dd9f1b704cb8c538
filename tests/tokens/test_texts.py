"""Parts of texts: characters in bytes, words, pieces of long texts, stop strings, line ends."""

from __future__ import annotations

import unicodedata
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st

from charwise.surprisal.score import Score
from charwise.tokens.line_ends import line_end, offset, unify, write_pieces
from charwise.tokens.stops import Stops
from charwise.tokens.utf8 import bytes_missing, decoder_after, last_character, pending, pieces, seam
from charwise.tokens.words import _word_edges, graphemes, words
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


def shown(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


@given(TEXTS, TEXTS)
@example("🙂".encode()[:3], "🙂".encode()[3:])
@examples(300)
def test_a_text_ends_after_a_character_or_inside_one(text: bytes, more: bytes) -> None:
    held = pending(text)
    assert text.endswith(held)
    assert len(held) < 4
    rest = decoder_after(text).decode(more, final=True)
    assert shown(text[: len(text) - len(held)]) + rest == shown(text + more)
    size = last_character(text)
    assert shown(text[: len(text) - size]) == shown(text)[:-1]
    assert bool(size) == bool(text)


@given(st.sampled_from(PARTS).flatmap(lambda part: st.sampled_from([part[:n] for n in range(5)])))
def test_the_bytes_that_a_character_still_needs(start: bytes) -> None:
    texts = {end: shown(start + end) for end in ENDS}
    sizes = {len(end) for end, text in texts.items() if len(text) == 1 and text != "\ufffd"}
    assert bytes_missing(start) == min(sizes, default=-1)


@pytest.mark.parametrize(
    ("text", "at"),
    [("a b\nc d", 4), ("a b c\nd", 3), ("ab cd", 2), ("é\n", 3), ("a漢", 4), ("abc", 2)],
)
def test_a_text_is_cut_after_a_line_else_before_a_space_else_between_characters(
    text: str, at: int
) -> None:
    assert seam(text.encode(), range(2, 6)) == at


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


def test_what_is_given():
    assert Stops().strings == Stops([]).strings == ()
    assert Stops("ab").strings == Stops([b"ab"]).strings == Stops(("ab",)).strings == (b"ab",)
    # No engine searches a byte that is no text; "a" and "ba" may begin inside the forced text.
    assert Stops([b"\xff", "a", "ba", "c"]).safe_after(b"ab") == ["c"]


LINE_ENDS = st.sampled_from(["\n", "\r\n", "\r"])
LINES = st.text(st.sampled_from("ab é\n\r"), max_size=12)


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
def test_each_line_has_the_one_kind_of_end_in_pieces_too(pieces: list[str], end: str) -> None:
    text = "".join(pieces)
    whole = unify(text, end)
    assert whole == text.replace("\r\n", "\n").replace("\r", "\n").replace("\n", end)
    result = write_pieces([one.encode() for one in pieces], end)
    assert b"".join(result) == whole.encode() == unify(text.encode(), end)
    assert len(result) == len(pieces)


#: A word each, of scripts that put spaces between words.
SPACED = """
    word हिन्दी क्षत्रिय தமிழ் മലയാളം বাংলা ગુજરાતી ਪੰਜਾਬੀ తెలుగు ಕನ್ನಡ සිංහල שָׁלוֹם مُدَرِّسَة می‌خواهم
    한국어 Ελληνικά tiếng አማርኛ snake_case don't l’été カタカナ
"""
FORMS = [unicodedata.normalize(form, word) for word in SPACED.split() for form in ("NFC", "NFD")]
UNSPACED = ["สวัสดีครับ", "ภาษาลาว ພາສາລາວ", "ភាសាខ្មែរ", "မြန်မာဘာသာ", "你好世界", "ひらがな"]
EMOJI = ["👩‍👩‍👧‍👦", "👍🏽", "🇫🇷", "🏳️‍🌈", "☺️", "e\u0301\u0323", "\u0600 "]
OTHERS = [" ", "\r\n", "\n", ".", ":", "'", "3", "\u0308"]
WORDS = st.sampled_from([*FORMS, *UNSPACED, *EMOJI, *OTHERS]) | st.text(max_size=3)


@given(st.lists(WORDS, max_size=8).map("".join), st.lists(st.integers(0, 40), max_size=4))
@examples(300)
def test_words_split_no_cluster_and_are_all_of_the_text(text: str, at: list[int]) -> None:
    raw = text.encode("utf-8", "replace")
    string = raw.decode()
    clusters = [0, *(match.end() for match in regex.finditer(r"\X", string))]
    assert graphemes(string) == clusters
    edges = _word_edges(string)
    assert edges == sorted(set(edges) & set(clusters))
    assert (edges[0], edges[-1]) == (0, len(string))
    zeros = np.zeros(len(raw))
    score = Score(raw, zeros - 1, zeros)
    given: list[Any] = [None, "unicode", [one for one in at if one <= len(string)], _word_edges]
    for boundaries in given:
        for convention in ("leading", "trailing", "none"):
            rows = score.words(convention, boundaries=boundaries)  # type: ignore[arg-type]
            assert "".join(row.text for row in rows) == string
            assert {row.end for row in rows} <= set(clusters)
        assert words(string, "ending", boundaries) == words(string, "none", boundaries)
    assert [row.text for row in score.graphemes()] == [string[a:b] for a, b in pairwise(clusters)]


@pytest.mark.parametrize("boundaries", [[6], lambda text: [6]])
def test_boundaries_of_ones_own(boundaries: Any) -> None:
    assert _word_edges("สวัสดีครับ", boundaries) == [0, 6, 10]
    assert _word_edges("a\u0308b", [1]) == [0, 3]  # not inside a cluster
