"""`charwise lsp` with real clients: pygls' own, Neovim's, and Emacs with eglot.

Neovim and Emacs are set as docs/editors.md says. `NVIM` names a Neovim, by default the one on the
path; it takes 0.11. From 0.12 on it also shows what is offered; here the request is sent by hand.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytest.importorskip("pygls", reason="the language server needs: pip install 'charwise[lsp]'")

from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.lsp.client import LanguageClient

from charwise import CharLM
from charwise.serve.inspect import healing_steps
from charwise.tokens.line_ends import unify
from commands import Command

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
URI = "file:///a.py"


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
    while editor.suggestions() != [best(lm, "for i in rang")]:  # it is fetched meanwhile
        pass


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


NEOVIM = """
vim.lsp.config("charwise", dofile(vim.env.ENTRY))
vim.lsp.config("charwise", {
  cmd = { vim.env.PYTHON, "-m", "charwise", "lsp" },
  init_options = { maxBytes = 24, seconds = 120, infill = false },
})
vim.lsp.enable("charwise")
vim.cmd.edit("one.py")
vim.bo.filetype = "python"
local client
vim.wait(120000, function()
  client = vim.lsp.get_clients({ name = "charwise" })[1]
  return client and client.initialized
end)
local seen = { change = client.server_capabilities.textDocumentSync.change, offers = {} }
local function offer(line, byte)
  vim.api.nvim_win_set_cursor(0, { line + 1, byte })
  local params = vim.lsp.util.make_position_params(0, client.offset_encoding)
  params.position.character = vim.str_utfindex(
    vim.api.nvim_buf_get_lines(0, line, line + 1, false)[1], client.offset_encoding, byte)
  params.context = { triggerKind = 2 }
  local answer = client:request_sync("textDocument/inlineCompletion", params, 120000)
  table.insert(seen.offers, answer and answer.result or vim.NIL)
end
offer(3, 11)
vim.api.nvim_buf_set_text(0, 3, 11, 3, 11, { "ng" })
offer(3, 13)
vim.api.nvim_buf_set_text(0, 1, 0, 2, 0, { "s = '\\u{1F600}é'", "" })
vim.api.nvim_buf_set_lines(0, 3, 4, false, { "t = '\\u{1F600}'; raise ValueErr" })
offer(3, #vim.api.nvim_buf_get_lines(0, 3, 4, false)[1])
seen.text = table.concat(vim.api.nvim_buf_get_lines(0, 0, -1, false), "\\n")
vim.fn.writefile({ vim.json.encode(seen) }, "seen.json")
vim.cmd("qall!")
"""


def run(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True,
        timeout=600,
    )  # fmt: skip


@pytest.mark.slow
def test_neovim_attaches_sends_changes_and_is_answered(tmp_path: Path, lm: CharLM) -> None:
    program = os.environ.get("NVIM") or shutil.which("nvim")
    text = run(tmp_path, program, "--version").stdout if program else ""
    version = re.search(r"v(\d+)\.(\d+)", text)
    if program is None or version is None or (int(version[1]), int(version[2])) < (0, 11):
        pytest.skip(f"a Neovim of 0.11 or newer is wanted (NVIM names one), not {text[:20]!r}")
    (tmp_path / "one.py").write_text("import os\n\n\nfor i in ra\nx = 1\n", encoding="utf-8")
    (tmp_path / "script.lua").write_text(NEOVIM, encoding="utf-8")
    entry = str(ROOT / "editors" / "neovim" / "charwise.lua")
    command = [program, "--clean", "--headless", "-l", "script.lua"]
    process = run(tmp_path, *command, ENTRY=entry, PYTHON=sys.executable)
    seen = tmp_path / "seen.json"
    assert seen.exists(), process.stderr
    report = json.loads(seen.read_text(encoding="utf-8"))
    assert report["change"] == 2  # incremental
    items = [one["items"] if isinstance(one, dict) else one for one in report["offers"]]
    texts = [one[0]["insertText"] for one in items]
    assert texts[0].startswith("nge(")
    assert texts[1] == texts[0][2:]
    before = report["text"][: report["text"].index("ValueErr") + len("ValueErr")]
    expected = lm.complete(before, max_new_bytes=24)[0].text
    assert texts[2] == expected.split("\n")[0].rstrip()[: len(texts[2])]
    assert texts[2].startswith("or")
    assert items[2][0].get("range", {}).get("start", {}).get("line", 3) == 3


EMACS = """
(require 'package)
(package-initialize)
{settings}
(setq eglot-connect-timeout 120 eglot-sync-connect 120)
(find-file "a.py")
(python-mode)
(apply #'eglot (eglot--guess-contact))
(goto-char (point-max))
(let ((found (run-hook-with-args-until-success 'completion-at-point-functions)))
  (princ (mapconcat #'substring-no-properties
    (all-completions (buffer-substring (nth 0 found) (nth 1 found)) (nth 2 found)) "\\n")))
"""


@pytest.mark.slow
def test_the_menu_of_emacs_has_the_candidates(tmp_path: Path) -> None:
    emacs, question = shutil.which("emacs"), "(progn (package-initialize) (require 'eglot))"
    if emacs is None or run(tmp_path, emacs, "--batch", "--eval", question).returncode:
        pytest.skip("no Emacs with eglot here: apt-get install emacs-nox elpa-eglot")
    page = (ROOT / "docs" / "editors.md").read_text("utf-8")
    settings = re.search(r"```elisp\n(\(require 'eglot\).*?)```", page, re.S)
    assert settings is not None
    program = tmp_path / "charwise"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m charwise "$@"\n')
    program.chmod(0o755)
    (tmp_path / "a.py").write_text("import numpy as np\nimport nump")
    (tmp_path / "script.el").write_text(EMACS.format(settings=settings[1]))
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    process = run(tmp_path, emacs, "--batch", "-l", "script.el", PATH=path)
    assert any(line.startswith("numpy") for line in process.stdout.splitlines()), process.stderr
