"""Positions and edits, against the same counted on encoded bytes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charwise.serve.documents import Document, Units
from models import examples

TEXTS = st.text(st.sampled_from("ab é😀東\n\r\x0c\u2028\ud83d"), max_size=24)
UNITS = st.sampled_from(["utf-8", "utf-16", "utf-32"])
WIDTHS = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}


def size(text: str, units: Units) -> int:
    codec, width = WIDTHS[units]
    return len(text.encode(codec, "surrogatepass")) // width


def split(text: str) -> list[str]:
    """Lines without their ends, the last one too."""
    return re.split(r"\r\n|\r|\n", text)


@given(TEXTS, UNITS, st.data())
@examples(300)
def test_positions_and_offsets(text: str, units: Any, data: st.DataObject) -> None:
    document, lines = Document(text), split(text)
    number = data.draw(st.integers(0, len(lines) - 1))
    column = data.draw(st.integers(0, len(lines[number])))
    character = size(lines[number][:column], units)
    offset = document.offset(number, character, units)
    assert document.text[document.starts[number] : offset] == lines[number][:column]
    assert document.position(offset, units) == (number, character)
    assert document.line(number) == lines[number]
    assert document.offset(number, 10_000, units) - document.starts[number] == len(lines[number])
    assert document.offset(len(lines), 0, units) == len(text)


@given(TEXTS, TEXTS, st.data())
@examples(200)
def test_edits_are_what_an_editor_has(text: str, new: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    assert Document(text).edited(start, end, new).text == text[:start] + new + text[end:]


@given(TEXTS, st.integers(1, 30), st.data())
@examples(200)
def test_what_is_read_before_a_cursor(text: str, most: int, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, len(text)))
    before = Document(text).before(offset, most)
    assert text[:offset].endswith(before)
    assert len(before) <= most
    if offset <= most:
        assert before == text[:offset]
    assert Document(text).after(offset, most) == text[offset : offset + most]


def test_the_beginning_that_is_left_out_stays_while_one_types() -> None:
    line = "x = 1  # " + "a" * 30 + "\n"
    text, starts = line * 50, set()
    for typed in range(100):
        document = Document(text + "y" * typed)
        before = document.before(len(document.text), 1000)
        assert 500 <= len(before) <= 1000
        starts.add(len(document.text) - len(before))
    assert len(starts) <= 2
    assert all(start % len(line) == 0 for start in starts)


@pytest.mark.parametrize("text", ["", "\r", "a\r\n\r\n", "\n" * 5])
def test_ends_of_lines(text: str) -> None:
    document = Document(text)
    assert len(document.starts) == len(split(text))
    assert document.position(len(text)) == (len(split(text)) - 1, 0)
