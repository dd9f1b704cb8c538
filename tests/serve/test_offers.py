"""The language server in this process: positions and edits of documents, and what is offered."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import charwise

pytest.importorskip("pygls", reason="the language server needs: pip install 'charwise[lsp]'")

from lsprotocol import types

from charwise.serve.engine import Engine
from charwise.serve.lsp import Workspace, offers, read_ahead, text_before
from charwise.serve.lsp_settings import EditorSettings
from charwise.serve.prompt import parse_prompt
from charwise.serve.task import Task
from models import examples

SETTINGS = EditorSettings(seconds=None, max_bytes=24)
TEXT = "import math\n\n\nclass Circle:\n    def area(self, radius):\n        return math."
BELOW = "\n\n    def name(self):\n"


@pytest.fixture
def engine() -> Iterator[Engine]:
    one = Engine(charwise.load(), seconds=600.0)
    yield one
    one.close()


def texts(engine: Engine, text: str, at: int | None = None, **settings: object) -> list[str]:
    chosen, wrong = SETTINGS.changed(settings)
    assert not wrong
    at = len(text) if at is None else at
    return [one.text for one in asyncio.run(offers(engine, chosen, text, slice(at, at)))]


@pytest.mark.parametrize("below", ["", BELOW])
def test_a_key_goes_on_from_what_was_read(engine: Engine, below: str) -> None:
    counts = engine.model.counts
    asyncio.run(read_ahead(engine, SETTINGS, TEXT + below, len(TEXT)))
    tree = engine.cache.trees
    for typed, most in (("p", 2), ("pi", 2), ("p", 0)):
        before = counts["model_calls"]
        asyncio.run(read_ahead(engine, SETTINGS, TEXT + typed + below, len(TEXT + typed)))
        assert counts["model_calls"] - before <= most
    assert engine.cache.trees == tree
    assert not engine.cache._offers


def test_a_model_with_a_template_reads_both_sides(engine: Engine) -> None:
    before, after = "for i in ra", "e(3):\n    pass\n"
    texts(engine, before + after, len(before))
    known = engine.cache.at(((), after.encode()), before.encode())
    assert known.request == engine.lm.infill_request(before, after)
    assert texts(engine, before + after, len(before), infill=False) == ["ng"]


def test_at_the_end_of_a_text_nothing_is_known_of_what_comes_after(engine: Engine) -> None:
    """A middle between a text and nothing would be the last there is of it."""
    expected = texts(engine, TEXT)
    for below in ("\n", "\n  \n"):  # editors end a buffer's last line
        assert texts(engine, TEXT + below, len(TEXT)) == expected
    prompt_text = f"<fim_prefix>{TEXT}<fim_suffix>\n<fim_middle>"
    assert not parse_prompt(Task(prompt_text), engine.lm.vocabulary).between
    assert parse_prompt(Task(TEXT, "x\n"), engine.lm.vocabulary).between


def test_the_name_of_a_sentinel_in_a_document_is_text(engine: Engine) -> None:
    prompt_text = "<fim_prefix>for i in ra<fim_suffix>e(3)<fim_middle>"
    texts(engine, prompt_text)
    start, whole = engine.lm.vocabulary.split_prompt(prompt_text.encode())
    assert engine.cache.at(start, whole).cached == len(whole)


@given(text=st.text(st.sampled_from("# é🍋東\n\r"), min_size=1, max_size=5))
@examples(8)
def test_what_is_offered_is_text_that_can_be_inserted(text: str) -> None:
    engine = Engine(charwise.load(), seconds=600.0)
    try:
        for most in (1, 3):
            for one in texts(engine, text, maxBytes=most, candidates=3):
                assert one.strip()
                assert "\ufffd" not in one
    finally:
        engine.close()


# Positions and edits, against the same counted on encoded bytes.

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
