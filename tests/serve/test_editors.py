"""Editors as they are: Vim with llama.vim, and by the language server Neovim, and Emacs with eglot.

They are set as docs/editors.md says. `NVIM` names a Neovim, by default the one on the path; it
takes 0.11. From 0.12 on it also shows what is offered; here the request is sent by hand.
"""

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from charwise import CharLM
from conftest import FOLDER
from serving import Running

ROOT = Path(__file__).parents[2]
PLUGIN = FOLDER / "clients" / "llama.vim"
LSP = pytest.mark.skipif(find_spec("pygls") is None, reason="needs: pip install 'charwise[lsp]'")

RC = """
set nocompatible encoding=utf-8 noswapfile noautoindent nosmartindent
let g:llama_config = {{
    \\ 'endpoint_fim': '{url}/infill', 'show_info': 0, 'ring_n_chunks': 0,
    \\ 't_max_predict_ms': 1000 }}
set rtp+={plugin}
runtime plugin/llama.vim
function! Tell() abort
    redraw
    let l:row = screenpos(win_getid(), line('.'), 1).row
    let l:from = strdisplaywidth(strpart(getline('.'), 0, col('.') - 1)) + 1
    let l:columns = range(l:from, max([l:from, 200]))
    let l:text = join(map(l:columns, {{_, at -> screenstring(l:row, at)}}), '')
    let l:report = {{'ghost': trim(l:text, ' ', 2), 'lines': getline(1, '$'),
        \\ 'answers': map(values(g:cache_data), {{_, raw -> json_decode(raw).content}})}}
    call writefile([json_encode(l:report)], '{report}.new')
    call rename('{report}.new', '{report}')
endfunction
inoremap <F5> <Cmd>call Tell()<CR>
function! Begin(path) abort
    let [g:cache_data, g:cache_lru_order] = [{{}}, []]
    silent %delete _
    call setline(1, readfile(a:path))
    call cursor(line('$'), 1)
endfunction
"""

#: Code that the model was not trained on, cut inside an identifier.
CODE = """import argparse
import os


def folders(root):
    found = []
    for name in os.listdir(root):
        path = os.path.join(root, name)
        if os.path.isdir(path):
            found.append(path)
    return sorted(found)


parser = argparse.ArgumentParser()
parser.add_argument("root")
"""

#: In the first line, a loop, an indented line, a return, and a call.
CUTS = [
    *("import argp", "    for name in os.listd", "            found.appe", "    return sort"),
    "parser.add_argum",
]


class Vim:
    """Vim under a pseudo-terminal, whose keys are written to a file descriptor."""

    def __init__(self, keys: int, folder: Path) -> None:
        self._keys, self._folder = keys, folder

    def press(self, keys: str) -> None:
        os.write(self._keys, keys.encode())

    def tell(self) -> Any:
        """What Vim shows: its ghost text, and its lines."""
        report = self._folder / "report.json"
        report.unlink(missing_ok=True)
        for attempt in range(600):
            if attempt % 40 == 0:
                self.press("\x1b[15~")  # F5
            if report.exists():
                return json.loads(report.read_text())
            time.sleep(0.05)
        raise AssertionError("Vim does not answer")

    def wait(self, ready: Callable[[Any], bool]) -> Any:
        """What it shows, once something is so; or after a while."""
        for _ in range(200):
            report = self.tell()
            if ready(report):
                break
            time.sleep(0.1)
        return report

    def begin(self, text: str) -> None:
        """A buffer with this text, and the cursor in insert mode at its end."""
        path = self._folder / "text"
        path.write_text(text + "\n")  # which Vim takes off
        self.press(f"\x1b:call Begin('{path}')\rA")


@contextmanager
def vim(url: str, folder: Path) -> Iterator[Vim]:
    rc = folder / "vimrc"
    rc.write_text(RC.format(url=url, plugin=PLUGIN, report=folder / "report.json"))
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (60, 200))
    command = ["vim", "-u", str(rc), "-i", "NONE", "-n", str(folder / "code.py")]
    env = {**os.environ, "TERM": "xterm", "HOME": str(folder), "no_proxy": "*"}
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True
    )
    os.close(slave)

    def drain() -> None:
        with suppress(OSError):
            while os.read(master, 65536):
                pass

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    try:
        yield Vim(master, folder)
    finally:
        process.kill()
        process.wait()
        reader.join(10)
        os.close(master)


def line_after(before: str, lm: CharLM) -> str:
    """The model's best rest of the line; before the first line llama.vim sends a line break."""
    before = before if "\n" in before else "\n" + before
    return lm.complete(before, stop="\n", max_new_bytes=400)[0].text.rstrip(" ")


def is_all(ghost: str, line: str) -> bool:
    """Whether this is what is shown of a line; the longest are cut."""
    return ghost == line or (len(ghost) >= 60 and line.startswith(ghost))


@pytest.mark.skipif(not PLUGIN.is_dir(), reason=f"llama.vim is not in {PLUGIN}")
@pytest.mark.skipif(not (shutil.which("vim") and shutil.which("curl")), reason="no vim and curl")
@pytest.mark.parametrize("cut", CUTS)
def test_ghost_text_is_what_the_model_says(
    running_server: Running, tmp_path: Path, cut: str
) -> None:
    """It stays when typed along, and Tab takes it."""
    lm, before = running_server.lm, CODE[: CODE.index(cut)] + cut
    expected = line_after(before, lm)
    assert expected
    with vim(running_server.url, tmp_path) as editor:
        editor.begin(before[:-1])
        editor.press(before[-1])
        report = along = editor.wait(lambda one: one["ghost"])
        ghost = report["ghost"]
        assert ghost
        if not is_all(ghost, expected):  # offered before the last character, which goes along it
            assert is_all(before[-1] + ghost, line_after(before[:-1], lm))
        assert report["lines"] == before.split("\n")
        if len(ghost) > 2:
            editor.press(ghost[0])  # Vim says that the cursor moved when no key is left
            along = editor.wait(lambda one: one["ghost"] == ghost[1:])
            assert along["ghost"] == ghost[1:]
            assert "\n".join(along["lines"]) == before + ghost[0]
        editor.press("\t")
        accepted = editor.wait(lambda one: one["lines"] != along["lines"])
    whole = "\n".join(accepted["lines"])
    assert whole.startswith(before + ghost)
    answers = [*along["answers"], *accepted["answers"]]
    # Where the answer to what was there before the last key came in time, that key went along it.
    prompts = (before, before[:-1])
    assert whole in {text + answer.rstrip("\n") for text in prompts for answer in answers}


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


@LSP
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


@LSP
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
