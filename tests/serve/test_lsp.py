"""The language server: documents, settings and offers in this process, then `charwise lsp` itself.

A real process is asked by pygls' own client, over stdin and over TCP.
"""

import asyncio
import json
import re
import signal
import sys
import time
import tomllib
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic.alias_generators import to_camel

import charwise

pytest.importorskip("pygls", reason="the language server needs: pip install 'charwise[lsp]'")

from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.lsp.client import LanguageClient

from charwise import CharLM
from charwise.serve.engine import Engine
from charwise.serve.inspect import healing_steps
from charwise.serve.lsp import _read_ahead, _text_before, _Workspace, offers
from charwise.serve.lsp_settings import EditorSettings
from charwise.serve.prompt import parse_prompt
from charwise.serve.task import Task
from charwise.tokens.line_ends import unify
from commands import Command
from models import examples

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
URI = "file:///a.py"
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
    asyncio.run(_read_ahead(engine, SETTINGS, TEXT + below, len(TEXT)))
    tree = engine.cache.trees
    for typed, most in (("p", 2), ("pi", 2), ("p", 0)):
        before = counts["model_calls"]
        asyncio.run(_read_ahead(engine, SETTINGS, TEXT + typed + below, len(TEXT + typed)))
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

    workspace = _Workspace(None, position_encoding=units)
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
    before = _text_before(text, offset, most)
    assert text[:offset].endswith(before)
    assert len(before) <= most
    assert before == text[:offset] or offset > most


def test_the_beginning_that_is_left_out_stays_while_one_types() -> None:
    line, starts = "x = 1  # " + "a" * 30 + "\n", set()
    for count in range(100):
        text = line * 50 + "y" * count
        before = _text_before(text, len(text), 1000)
        assert 500 <= len(before) <= 1000
        starts.add(len(text) - len(before))
    assert len(starts) <= 2
    assert all(start % len(line) == 0 for start in starts)


# Settings, and what docs/editors.md says of them.

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


# A client, and the process.


class Editor:
    """A client with one document, whose positions it counts itself."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self.runner, self.client = runner, LanguageClient("test", "0")
        self.shown: list[str] = []
        self.settings: dict[str, Any] = {}
        self.text, self.version = "", 0

        @self.client.feature(types.WINDOW_SHOW_MESSAGE)
        def _(params: types.ShowMessageParams) -> None:
            self.shown.append(params.message)

        @self.client.feature(types.WORKSPACE_CONFIGURATION)
        def _(params: types.ConfigurationParams) -> list[Any]:
            return [self.settings for _ in params.items]

    def wait(self, awaited: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(asyncio.wait_for(awaited, 120))

    def initialize(self, options: Any) -> Any:
        workspace = types.WorkspaceClientCapabilities(configuration=True)
        params = types.InitializeParams(
            types.ClientCapabilities(workspace=workspace), initialization_options=options
        )
        result = self.wait(self.client.initialize_async(params))
        self.client.initialized(types.InitializedParams())
        return result.capabilities

    def open(self, text: str) -> None:
        self.text, self.version = text, 1
        item = types.TextDocumentItem(URI, "python", 1, text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))

    def close(self) -> None:
        document = types.TextDocumentIdentifier(URI)
        self.client.text_document_did_close(types.DidCloseTextDocumentParams(document))

    def place(self, offset: int) -> types.Position:
        line = self.text[:offset].rpartition("\n")[2]
        return types.Position(self.text[:offset].count("\n"), len(line.encode("utf-16-le")) // 2)

    def edit(self, start: int, end: int, new: str) -> None:
        self.version += 1
        where = types.Range(self.place(start), self.place(end))
        self.text = self.text[:start] + new + self.text[end:]
        self.client.text_document_did_change(
            types.DidChangeTextDocumentParams(
                types.VersionedTextDocumentIdentifier(self.version, URI),
                [types.TextDocumentContentChangePartial(where, new)],
            )
        )

    def params(self, **context: Any) -> types.InlineCompletionParams:
        kind = types.InlineCompletionTriggerKind.Automatic
        return types.InlineCompletionParams(
            types.InlineCompletionContext(kind, **context),
            types.TextDocumentIdentifier(URI),
            self.place(len(self.text)),
        )

    def items(self, **context: Any) -> list[Any]:
        params = self.params(**context)
        reply = self.wait(self.client.text_document_inline_completion_async(params))
        return [] if reply is None else list(reply.items)

    def suggestions(self) -> list[str]:
        return [item.insert_text for item in self.items()]

    def configure(self, **settings: Any) -> None:
        given = {"charwise": settings} if settings else None
        self.client.workspace_did_change_configuration(types.DidChangeConfigurationParams(given))

    def end(self) -> None:
        self.wait(self.client.shutdown_async(None))
        self.client.exit(None)
        self.wait(self.client.stop())


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


DEFAULTS: dict[str, Any] = {
    "seconds": 600, "maxBytes": 40, "until": "line", "candidates": 1, "infill": True, "menu": False,
    **dict.fromkeys(["stop", "threshold", "enabled"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def started(runner: asyncio.Runner) -> Iterator[Editor]:
    editor = Editor(runner)
    command = [sys.executable, "-m", "charwise", "lsp", "--stdio"]  # most clients add the option
    editor.wait(editor.client.start_io(*command))
    capabilities = editor.initialize({"seconds": 600, "color": 1})
    assert capabilities.inline_completion_provider is not None
    assert capabilities.text_document_sync.change == types.TextDocumentSyncKind.Incremental
    yield editor
    editor.end()
    assert editor.client._server.returncode == 0
    assert any("unknown setting 'color'" in one for one in editor.shown)


@pytest.fixture
def editor(started: Editor) -> Iterator[Editor]:
    started.configure(**DEFAULTS)
    yield started
    started.close()


def best(lm: CharLM, text: str, most: int = 40) -> str:
    """The first line of what `CharLM` has to say."""
    return lm.complete(text, max_new_bytes=most, stop=["\n"])[0].text


def test_a_menu_for_editors_without_ghost_text(editor: Editor) -> None:
    editor.open("# 😀\nimport nump")
    document = types.TextDocumentIdentifier(URI)
    at = types.CompletionParams(document, editor.place(len(editor.text)))
    assert editor.wait(editor.client.text_document_completion_async(at)) is None
    editor.configure(menu=True)
    reply = editor.wait(editor.client.text_document_completion_async(at)).items
    assert reply[0].label.startswith("numpy")
    assert all(one.label.startswith("nump") for one in reply)
    assert [one.text_edit.range.start.character for one in reply] == [7] * len(reply)
    scores = [float(one.detail.removesuffix(" bits a byte")) for one in reply]
    assert scores == sorted(scores)
    assert [one.sort_text for one in reply] == [f"{n:03}" for n in range(len(reply))]


def test_an_editor_can_ask_how_a_text_was_read(editor: Editor, lm: CharLM) -> None:
    editor.open("x = '🍋'\nimport nump = 1")
    ask = editor.client.protocol.send_request_async
    place = {"line": 1, "character": len("import nump")}
    params = {"textDocument": {"uri": URI}, "position": place}
    reply = editor.wait(ask("charwise/steps", params))
    wanted = healing_steps(lm, "x = '🍋'\nimport nump".encode())
    assert reply.forced == wanted["forced"] == " nump"
    assert list(reply.removed) == wanted["removed"]
    assert [step.allowed for step in reply.steps] == [one["allowed"] for one in wanted["steps"]]
    editor.close()
    assert editor.wait(ask("charwise/steps", params)) is None
    assert editor.items() == []


def test_typing_and_deleting_go_on_from_the_states(editor: Editor, lm: CharLM) -> None:
    editor.open("for i in ra")
    [item] = editor.items()
    assert item.insert_text == best(lm, "for i in ra")
    assert item.range.start == item.range.end == types.Position(0, 11)
    state = lm.state("for i in ra")
    for key in "nge(":
        editor.edit(len(editor.text), len(editor.text), key)
        state = state + key
        [reply] = state.complete(max_new_bytes=40, stop=["\n"])
        assert editor.suggestions() == [reply.text] * bool(reply.text.strip())
    editor.edit(len(editor.text) - 2, len(editor.text), "")
    assert editor.text == "for i in rang"
    [reply] = (state - 2).complete(max_new_bytes=40, stop=["\n"])
    assert editor.suggestions() == [reply.text]


def test_positions_count_as_editors_count(editor: Editor, lm: CharLM) -> None:
    editor.open(text := "# 😀\r\ns = '\x0c\u2028😀東'; import nump")
    at, expected = len(text), [best(lm, unify(text))]
    assert editor.suggestions() == expected
    editor.edit(at - 2, at, "😀")  # replaces two letters, in the middle of a line later on
    editor.edit(at - 2, at - 1, text[-2:])
    assert editor.text == text
    assert editor.suggestions() == expected


def test_the_selected_entry_of_a_menu_begins_the_offer(editor: Editor, lm: CharLM) -> None:
    editor.open("import nu")
    place = types.Range(types.Position(0, 7), types.Position(0, 9))
    chosen = types.SelectedCompletionInfo(place, "nump")
    [item] = editor.items(selected_completion_info=chosen)
    assert item.insert_text == "nump" + best(lm, "import nump")
    assert item.range == place


def test_settings_are_sent_or_fetched(editor: Editor, lm: CharLM) -> None:
    editor.open("for i in rang")
    editor.configure(candidates=3, stop=["("])
    several = editor.suggestions()
    assert len(several) == len(set(several)) > 1
    assert not any("(" in one for one in several)
    for settings in ({"threshold": 1.0}, {"threshold": None, "enabled": False}):
        editor.configure(**settings)
        assert editor.suggestions() == []
    editor.settings = {"enabled": True, "candidates": 1, "stop": None}
    editor.configure()  # to be fetched
    right = [best(lm, "for i in rang")]
    assert any(editor.suggestions() == right for _ in range(1000))  # it is fetched meanwhile


@pytest.mark.parametrize("seconds", [0, 0.2, None])
def test_a_change_or_a_cancellation_ends_what_is_under_way(
    editor: Editor, lm: CharLM, seconds: float | None
) -> None:
    editor.open("def " * 600 if seconds is None else "import nu")
    editor.configure(maxBytes=4000, until="length")

    async def ask(then: Callable[[], None]) -> Any:
        kind = types.TEXT_DOCUMENT_INLINE_COMPLETION
        request = editor.client.protocol.send_request_async(kind, editor.params(), msg_id="long")
        task = asyncio.ensure_future(request)
        await asyncio.sleep(0.3 if seconds is None else seconds)
        then()
        return await task

    if seconds is None:
        with pytest.raises(JsonRpcException) as error:
            editor.wait(ask(lambda: editor.client.cancel_request(types.CancelParams("long"))))
        assert error.value.code == types.LSPErrorCodes.RequestCancelled
        editor.close()
        editor.open("import nump")
    else:
        assert editor.wait(ask(lambda: editor.edit(9, 9, "mp"))) is None
    editor.configure(**DEFAULTS)
    assert editor.suggestions() == [best(lm, "import nump")]  # the thread is free again


@pytest.mark.slow
def test_over_tcp_each_editor_has_its_own(
    runner: asyncio.Runner, lm: CharLM, tmp_path: Path
) -> None:
    process, match = Command(["lsp", "--tcp", "0"], tmp_path), None
    try:
        while match is None:
            assert process.running, process.errors.read_text()
            time.sleep(0.01)
            match = re.search(r"listening on 127\.0\.0\.1:(\d+)", process.errors.read_text())
        editors = [Editor(runner), Editor(runner)]
        for number, one in enumerate(editors):
            one.wait(one.client.start_tcp("127.0.0.1", int(match[1])))
            one.initialize({"maxBytes": 8 + 8 * number, "seconds": 600})
            one.open("import nump" if number else "for i in rang")
        for number, one in enumerate(editors):
            assert one.suggestions() == [best(lm, one.text, 8 + 8 * number)]
        editors[0].end()
        assert editors[1].suggestions()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
