"""The language server in this process: documents, settings, and what is offered."""

from __future__ import annotations

import asyncio
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic.alias_generators import to_camel

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


@pytest.mark.parametrize("below", ["", "\n\n    def name(self):\n"])
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


def test_both_sides_are_read_unless_nothing_is_known_of_what_comes_after(engine: Engine) -> None:
    """A middle between a text and nothing would be the last there is of it."""
    before, after = "for i in ra", "e(3):\n    pass\n"
    texts(engine, before + after, len(before))
    known = engine.cache.at(((), after.encode()), before.encode())
    assert known.request == engine.lm.infill_request(before, after)
    assert texts(engine, before + after, len(before), infill=False) == ["ng"]
    expected = texts(engine, TEXT)
    for below in ("\n", "\n  \n"):  # editors end a buffer's last line
        assert texts(engine, TEXT + below, len(TEXT)) == expected
    template = f"<fim_prefix>{TEXT}<fim_suffix>\n<fim_middle>"
    assert not parse_prompt(Task(template), engine.lm.vocabulary).between
    assert parse_prompt(Task(TEXT, "x\n"), engine.lm.vocabulary).between
    # In a document, the name of a sentinel is text.
    texts(engine, template)
    start, whole = engine.lm.vocabulary.split_prompt(template.encode())
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


@given(TEXTS, TEXTS, UNITS, st.data())
@examples(300)
def test_positions_and_edits_are_what_an_editor_has(
    text: str, new: str, units: types.PositionEncodingKind, data: st.DataObject
) -> None:
    codec, width = WIDTHS[units.value]

    def place(offset: int) -> types.Position:
        *lines, line = re.split(r"\r\n|\r|\n", text[:offset])
        return types.Position(len(lines), len(line.encode(codec, "surrogatepass")) // width)

    def offset(least: int) -> int:
        """None is between the two characters of one end of a line: no position says so."""
        at = data.draw(st.integers(least, len(text)))
        return at + (at > 0 and text[at - 1 : at + 1] == "\r\n")

    workspace = Workspace(None, position_encoding=units)
    workspace.put_text_document(types.TextDocumentItem(URI, "text", 1, text))
    document, start = workspace.get_text_document(URI), offset(0)
    end = offset(start)
    assert document.offset_at_position(place(start)) == start
    beyond = types.Position(place(start).line, 10_000)
    line_end = re.compile(r"[\r\n]|$").search(text, start)
    assert line_end is not None
    assert document.offset_at_position(beyond) == line_end.start()
    assert document.offset_at_position(types.Position(99, 3)) == len(text)  # and of the text
    change = types.TextDocumentContentChangePartial(types.Range(place(start), place(end)), new)
    workspace.update_text_document(types.VersionedTextDocumentIdentifier(2, URI), change)
    assert workspace.get_text_document(URI).source == text[:start] + new + text[end:]


@given(TEXTS, st.integers(1, 30), st.data())
@examples(200)
def test_what_is_read_before_a_cursor(text: str, most: int, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, len(text)))
    before = text_before(text, offset, most)
    assert text[:offset].endswith(before)
    assert len(before) <= most
    assert before == text[:offset] or offset > most


def test_the_beginning_that_is_left_out_stays_while_one_types() -> None:
    line, starts = "x = 1  # " + "a" * 30 + "\n", set()
    for count in range(100):
        text = line * 50 + "y" * count
        before = text_before(text, len(text), 1000)
        assert 500 <= len(before) <= 1000
        starts.add(len(text) - len(before))
    assert len(starts) <= 2
    assert all(start % len(line) == 0 for start in starts)


# Settings, and what docs/editors.md says of them.

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "editors.md").read_text(encoding="utf-8")


def test_every_setting_is_on_the_page_with_its_default() -> None:
    table = PAGE[PAGE.index("| setting | default |") :].split("\n\n")[0].splitlines()[2:]
    page: dict[str, str] = {}
    for row in table:
        names, default = (cell.strip() for cell in row.split("|")[1:3])
        several = re.findall(r"`(\w+)`", names)
        defaults = default.split(", ") if len(several) == default.count(",") + 1 else [default]
        page |= dict(zip(several, defaults * len(several), strict=False))
    fields = {to_camel(name): one.default for name, one in EditorSettings.model_fields.items()}
    assert set(page) == set(fields)
    for name, value in fields.items():
        text = page[name].strip("`")
        shown: Any = None if text == "none" else json.loads(text)
        assert shown == (list(value) if isinstance(value, tuple) else value)


def test_the_settings_and_the_request_that_are_shown_are_taken(http: httpx.Client) -> None:
    for file in ("docs/editors.md", "editors/neovim/charwise.lua"):
        lua = re.search(r"init_options = \{ (.*?) \}", (ROOT / file).read_text("utf-8"))
        assert lua is not None
        options = {k: json.loads(v) for k, v in re.findall(r"(\w+) = ([\d.]+)", lua[1])}
        settings, wrong = EditorSettings().changed(options)
        assert (settings.max_bytes, settings.seconds, wrong) == (80, 0.5, [])
    helix = tomllib.loads((ROOT / "editors" / "helix" / "languages.toml").read_text("utf-8"))
    settings, wrong = EditorSettings().changed(helix["language-server"]["charwise"]["config"])
    assert (settings.menu, wrong) == (True, [])
    for block in re.findall(r"^```json\n(.*?)^```", PAGE, re.M | re.S):
        json.loads(block)
    [(path, body)] = re.findall(r"^curl http://127.0.0.1:8000(\S+) -d '(.*?)'\n", PAGE, re.M | re.S)
    assert len(http.post(path, content=body).json()["choices"]) > 1


@pytest.mark.parametrize(
    ("given_settings", "why"),
    [
        ({"maxBytes": 0}, "maxBytes is 0"),
        ({"maxBytes": "8"}, "maxBytes is '8'"),
        ({"until": ["line"]}, "until"),
        ({"charwise": {"topK": 5, "hue": 1, "until": "length"}}, "unknown setting 'hue'"),
        ([1], "settings are an object"),
    ],
)
def test_wrong_settings_are_named_and_leave_the_rest(given_settings: Any, why: str) -> None:
    settings, [wrong] = EditorSettings(max_bytes=9, top_k=4).changed(given_settings)
    assert why in wrong
    right = (5, None) if "charwise" in given_settings else (4, "line")
    assert (settings.max_bytes, settings.top_k, settings.until) == (9, *right)
    assert settings.changed({"topK": None})[0].top_k == 0
    assert settings.changed(None) == (settings, [])
