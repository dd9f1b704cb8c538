"""`charwise lsp` with pygls' own client: a real process, over stdin and over TCP."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytest.importorskip("pygls", reason="the language server needs: pip install 'charwise[lsp]'")

from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.lsp.client import LanguageClient

from charwise import CharLM
from charwise.tokens.line_ends import unify
from commands import Command

T = TypeVar("T")
URI = "file:///a.py"
#: Most clients add the option.
COMMAND = [sys.executable, "-m", "charwise", "lsp", "--stdio"]


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

    def initialize(self, options: Any = None, encodings: list[Any] | None = None) -> Any:
        capabilities = types.ClientCapabilities(
            workspace=types.WorkspaceClientCapabilities(configuration=True),
            general=types.GeneralClientCapabilities(position_encodings=encodings),
        )
        result = self.wait(
            self.client.initialize_async(
                types.InitializeParams(capabilities, initialization_options=options)
            )
        )
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
        before = self.text[:offset]
        line = before[before.rfind("\n") + 1 :]
        return types.Position(before.count("\n"), len(line.encode("utf-16-le")) // 2)

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

    def params(self, offset: int, **context: Any) -> types.InlineCompletionParams:
        kind = types.InlineCompletionTriggerKind.Automatic
        return types.InlineCompletionParams(
            types.InlineCompletionContext(kind, **context),
            types.TextDocumentIdentifier(URI),
            self.place(offset),
        )

    def items(self, offset: int, **context: Any) -> list[Any]:
        reply = self.wait(
            self.client.text_document_inline_completion_async(self.params(offset, **context))
        )
        return [] if reply is None else list(reply.items)

    def suggestions(self, offset: int | None = None) -> list[str]:
        return [
            item.insert_text for item in self.items(len(self.text) if offset is None else offset)
        ]

    def configure(self, settings: Any) -> None:
        self.client.workspace_did_change_configuration(types.DidChangeConfigurationParams(settings))

    def settle(self) -> None:
        """Until the server has read all that was sent: it answers in order."""
        self.items(0)

    def end(self) -> None:
        self.wait(self.client.shutdown_async(None))
        self.client.exit(None)
        self.wait(self.client.stop())


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def started(runner: asyncio.Runner) -> Iterator[Editor]:
    editor = Editor(runner)
    editor.wait(editor.client.start_io(*COMMAND))
    capabilities = editor.initialize({"seconds": 600, "maxBytes": 40, "color": 1})
    assert capabilities.inline_completion_provider is not None
    assert capabilities.text_document_sync.change == types.TextDocumentSyncKind.Incremental
    yield editor
    editor.end()
    assert editor.client._server.returncode == 0


DEFAULTS = {"seconds": 600, "maxBytes": 40, "until": "line", "candidates": 1, "infill": True}


@pytest.fixture
def editor(started: Editor) -> Iterator[Editor]:
    started.configure({"charwise": DEFAULTS})
    started.shown.clear()
    yield started
    started.configure({"charwise": dict.fromkeys(["stop", "threshold", "enabled", "temperature"])})
    started.close()


def best(lm: CharLM, text: str, most: int = 40) -> str:
    """The first line of what `CharLM` has to say."""
    return lm.complete(text, max_new_bytes=most, stop=["\n"])[0].text


def test_an_unknown_setting_is_named_at_the_start(started: Editor) -> None:
    started.settle()
    assert any("unknown setting 'color'" in one for one in started.shown)


def test_a_menu_for_editors_without_ghost_text(editor: Editor) -> None:
    editor.open("# 😀\nimport nump")
    document = types.TextDocumentIdentifier(URI)
    at = types.CompletionParams(document, editor.place(len(editor.text)))
    assert editor.wait(editor.client.text_document_completion_async(at)) is None
    editor.configure({"charwise": DEFAULTS | {"menu": True}})
    reply = editor.wait(editor.client.text_document_completion_async(at)).items
    assert reply[0].label.startswith("numpy")
    assert all(one.label.startswith("nump") for one in reply)
    assert [one.text_edit.range.start.character for one in reply] == [7] * len(reply)
    scores = [float(one.detail.removesuffix(" bits a byte")) for one in reply]
    assert scores == sorted(scores)
    assert [one.sort_text for one in reply] == [f"{n:03}" for n in range(len(reply))]


def test_an_editor_can_ask_how_a_text_was_read(started: Editor, lm: CharLM) -> None:
    from charwise.serve.inspect import healing_steps

    started.open("x = '🍋'\nimport nump = 1")
    ask = started.client.protocol.send_request_async
    place = {"line": 1, "character": len("import nump")}
    reply = started.wait(ask("charwise/steps", {"textDocument": {"uri": URI}, "position": place}))
    wanted = healing_steps(lm, "x = '🍋'\nimport nump".encode())
    assert reply.forced == wanted["forced"] == " nump"
    assert list(reply.removed) == wanted["removed"]
    assert [step.allowed for step in reply.steps] == [one["allowed"] for one in wanted["steps"]]
    started.close()
    gone = {"textDocument": {"uri": URI}, "position": place}
    assert started.wait(ask("charwise/steps", gone)) is None
    assert started.items(0) == []


def test_typing_and_deleting_go_on_from_the_states(editor: Editor, lm: CharLM) -> None:
    editor.open("for i in ra")
    [item] = editor.items(11)
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


@pytest.mark.parametrize(
    "before",
    ["x = '😀😀'; raise ValueErr", "名前 = '東京'\nimport nump", "s = '\x0c\u2028'; import nump"],
)
def test_positions_count_as_editors_count(editor: Editor, lm: CharLM, before: str) -> None:
    editor.open(f"# 😀\r\n{before}")
    at = len(editor.text)
    assert editor.suggestions() == [best(lm, unify(editor.text))]
    editor.edit(at - 2, at, "😀")  # replaces two letters, in the middle of a line later on
    editor.edit(at - 2, at - 1, before[-2:])
    assert editor.text == f"# 😀\r\n{before}"
    assert editor.suggestions() == [best(lm, unify(editor.text))]


def test_the_selected_entry_of_a_menu_begins_the_offer(editor: Editor, lm: CharLM) -> None:
    editor.open("import nu")
    chosen = types.SelectedCompletionInfo(
        types.Range(types.Position(0, 7), types.Position(0, 9)), "nump"
    )
    [item] = editor.items(9, selected_completion_info=chosen)
    assert item.insert_text == "nump" + best(lm, "import nump")
    assert (item.range.start.character, item.range.end.character) == (7, 9)


def test_settings(editor: Editor, lm: CharLM) -> None:
    editor.open("for i in rang")
    editor.configure({"charwise": {"candidates": 3, "stop": ["("]}})
    several = editor.suggestions()
    assert len(several) == len(set(several)) > 1
    assert not any("(" in one for one in several)
    editor.configure({"charwise": {"threshold": 1.0}})
    assert editor.suggestions() == []
    editor.configure({"charwise": {"threshold": None, "enabled": False}})
    assert editor.suggestions() == []
    editor.settings = {"enabled": True, "candidates": 1, "stop": None}
    editor.configure(None)  # to be fetched
    while editor.suggestions() != [best(lm, "for i in rang")]:  # it is fetched meanwhile
        pass


def test_a_cancelled_request_answers_with_an_error(editor: Editor, lm: CharLM) -> None:
    editor.open("def " * 600)
    editor.configure({"charwise": {"maxBytes": 4000, "until": "length"}})

    async def cancelled() -> None:
        request = editor.client.protocol.send_request_async(
            types.TEXT_DOCUMENT_INLINE_COMPLETION, editor.params(2400), msg_id="long"
        )
        task = asyncio.ensure_future(request)
        await asyncio.sleep(0.3)
        editor.client.cancel_request(types.CancelParams("long"))
        with pytest.raises(JsonRpcException) as error:
            await task
        assert error.value.code == types.LSPErrorCodes.RequestCancelled

    editor.wait(cancelled())
    editor.configure({"charwise": DEFAULTS})
    editor.close()
    editor.open("import nump")  # and the thread is free again
    assert editor.suggestions() == [best(lm, "import nump")]


@pytest.mark.parametrize("seconds", [0, 0.2])
def test_a_change_overtakes_what_is_under_way(editor: Editor, lm: CharLM, seconds: float) -> None:
    editor.open("import nu")
    editor.configure({"charwise": {"maxBytes": 4000, "until": "length"}})

    async def overtaken() -> Any:
        request = editor.client.text_document_inline_completion_async(editor.params(9))
        task = asyncio.ensure_future(request)
        await asyncio.sleep(seconds)
        editor.edit(9, 9, "mp")
        return await task

    assert editor.wait(overtaken()) is None
    editor.configure({"charwise": DEFAULTS})
    assert editor.suggestions() == [best(lm, "import nump")]


@pytest.mark.slow
def test_over_tcp_each_editor_has_its_own(
    runner: asyncio.Runner, lm: CharLM, tmp_path: Path
) -> None:
    process = Command(["lsp", "--tcp", "0"], tmp_path)
    try:
        match = None
        while match is None:
            assert process.running, process.errors.read_text()
            time.sleep(0.01)
            match = re.search(r"listening on 127\.0\.0\.1:(\d+)", process.errors.read_text())
        port = int(match[1])
        editors = [Editor(runner), Editor(runner)]
        for number, one in enumerate(editors):
            one.wait(one.client.start_tcp("127.0.0.1", port))
            one.initialize({"maxBytes": 8 + 8 * number, "seconds": 600})
            one.open("import nump" if number else "for i in rang")
        for number, one in enumerate(editors):
            assert one.suggestions() == [best(lm, one.text, 8 + 8 * number)]
        editors[0].end()
        assert editors[1].suggestions()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
