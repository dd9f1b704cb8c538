"""Positions and edits of the workspace, against the same counted on encoded bytes."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("pygls", reason="the language server needs: pip install 'charwise[lsp]'")

from hypothesis import given
from hypothesis import strategies as st
from lsprotocol import types

from charwise.serve.lsp import text_before
from charwise.serve.lsp_protocol import Workspace
from models import examples

TEXTS = st.text(st.sampled_from("ab é😀東\n\r\x0c\u2028\ud83d"), max_size=24)
UNITS = st.sampled_from(list(types.PositionEncodingKind))
WIDTHS = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}
URI = "file:///a.py"


def size(text: str, units: types.PositionEncodingKind) -> int:
    codec, width = WIDTHS[units.value]
    return len(text.encode(codec, "surrogatepass")) // width


def split(text: str) -> list[str]:
    """Lines without their ends, the last one too."""
    return re.split(r"\r\n|\r|\n", text)


def opened(text: str, units: types.PositionEncodingKind) -> Workspace:
    workspace = Workspace(None, position_encoding=units)
    workspace.put_text_document(types.TextDocumentItem(URI, "text", 1, text))
    return workspace


def place(text: str, offset: int, units: types.PositionEncodingKind) -> types.Position:
    *lines, line = split(text[:offset])
    return types.Position(len(lines), size(line, units))


def inside_an_end(text: str, offset: int) -> bool:
    """Whether an offset is between the two characters of one end of a line: no position says so."""
    return text[offset - 1 : offset + 1] == "\r\n" if offset else False


@given(TEXTS, UNITS, st.data())
@examples(300)
def test_positions_and_offsets(text: str, units: Any, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, len(text)))
    if inside_an_end(text, offset):
        offset += 1
    document = opened(text, units).get_text_document(URI)
    assert document.offset_at_position(place(text, offset, units)) == offset
    beyond = types.Position(place(text, offset, units).line, 10_000)
    end = re.compile(r"[\r\n]|$").search(text, offset)
    assert end is not None
    assert document.offset_at_position(beyond) == end.start()
    assert document.offset_at_position(types.Position(99, 3)) == len(text)  # and of the text


@given(TEXTS, TEXTS, UNITS, st.data())
@examples(200)
def test_edits_are_what_an_editor_has(text: str, new: str, units: Any, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    start += inside_an_end(text, start)
    end = data.draw(st.integers(start, len(text)))
    end += inside_an_end(text, end)
    workspace = opened(text, units)
    where = types.Range(place(text, start, units), place(text, end, units))
    change = types.TextDocumentContentChangePartial(where, new)
    workspace.update_text_document(types.VersionedTextDocumentIdentifier(2, URI), change)
    assert workspace.get_text_document(URI).source == text[:start] + new + text[end:]


@given(TEXTS, st.integers(1, 30), st.data())
@examples(200)
def test_what_is_read_before_a_cursor(text: str, most: int, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, len(text)))
    before = text_before(text, offset, most)
    assert text[:offset].endswith(before)
    assert len(before) <= most
    if offset <= most:
        assert before == text[:offset]


def test_the_beginning_that_is_left_out_stays_while_one_types() -> None:
    line = "x = 1  # " + "a" * 30 + "\n"
    text, starts = line * 50, set()
    for typed in range(100):
        typed_text = text + "y" * typed
        before = text_before(typed_text, len(typed_text), 1000)
        assert 500 <= len(before) <= 1000
        starts.add(len(typed_text) - len(before))
    assert len(starts) <= 2
    assert all(start % len(line) == 0 for start in starts)
