"""Clients of the language server: Neovim's own, and Emacs with eglot, set as docs/editors.md says.

`NVIM` names a Neovim, by default the one on the path; it takes 0.11, and starts the server by
`editors/neovim/charwise.lua`. From 0.12 on it also shows what is offered, by the settings of
docs/editors.md; here the request is sent by hand.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import charwise

pytest.importorskip("pygls")

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "editors.md"
NEOVIM = """
vim.lsp.config("charwise", dofile(vim.env.ENTRY))
vim.lsp.config("charwise", {
  cmd = { vim.env.PYTHON, "-m", "charwise", "lsp" },
  init_options = { maxBytes = 24, seconds = 120, infill = false },
})
vim.lsp.enable("charwise")
vim.cmd.edit(vim.env.FILE)
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
vim.fn.writefile({ vim.json.encode(seen) }, vim.env.SEEN)
vim.cmd("qall!")
"""


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


def neovim() -> str:
    """A Neovim of 0.11 or newer, or why there is none."""
    program = os.environ.get("NVIM") or shutil.which("nvim")
    if program is None:
        pytest.skip("no Neovim here: NVIM names one")
    text = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60).stdout
    version = re.search(r"v(\d+)\.(\d+)", text)
    if version is None or (int(version[1]), int(version[2])) < (0, 11):
        pytest.skip(f"a Neovim of 0.11 or newer is wanted, not {text.splitlines()[:1]}")
    return program


@pytest.mark.slow
def test_neovim_attaches_sends_changes_and_is_answered(tmp_path: Path) -> None:
    program = neovim()
    (tmp_path / "one.py").write_text("import os\n\n\nfor i in ra\nx = 1\n", encoding="utf-8")
    (tmp_path / "script.lua").write_text(NEOVIM, encoding="utf-8")
    seen = tmp_path / "seen.json"
    paths = {
        "ENTRY": str(ROOT / "editors" / "neovim" / "charwise.lua"),
        "FILE": str(tmp_path / "one.py"),
        "PYTHON": sys.executable,
        "SEEN": str(seen),
    }
    command = [program, "--clean", "--headless", "-l", str(tmp_path / "script.lua")]
    process = subprocess.run(
        command, env=os.environ | paths, capture_output=True, text=True, timeout=600
    )
    assert seen.exists(), process.stderr
    report = json.loads(seen.read_text(encoding="utf-8"))
    assert report["change"] == 2  # incremental
    texts = [_items(one)[0]["insertText"] for one in report["offers"]]
    assert texts[0].startswith("nge(")
    assert texts[1] == texts[0][2:]
    before = report["text"][: report["text"].index("ValueErr") + len("ValueErr")]
    expected = charwise.load().complete(before, max_new_bytes=24)[0].text
    assert texts[2] == expected.split("\n")[0].rstrip()[: len(texts[2])]
    assert texts[2].startswith("or")
    assert _items(report["offers"][2])[0].get("range", {}).get("start", {}).get("line", 3) == 3


def _items(answer: object) -> list[dict[str, object]]:
    return answer["items"] if isinstance(answer, dict) else answer  # type: ignore[return-value]


@pytest.mark.slow
def test_the_menu_of_emacs_has_the_candidates(tmp_path: Path) -> None:
    emacs = shutil.which("emacs")
    if emacs is None:
        pytest.skip("no Emacs here: apt-get install emacs-nox elpa-eglot")
    question = [emacs, "--batch", "--eval", "(progn (package-initialize) (require 'eglot))"]
    if subprocess.run(question, capture_output=True, timeout=60).returncode:
        pytest.skip("this Emacs has no eglot: apt-get install elpa-eglot")
    settings = re.search(r"```elisp\n(\(require 'eglot\).*?)```", PAGE.read_text("utf-8"), re.S)
    assert settings is not None
    program = tmp_path / "charwise"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m charwise "$@"\n')
    program.chmod(0o755)
    (tmp_path / "a.py").write_text("import numpy as np\nimport nump")
    (tmp_path / "script.el").write_text(EMACS.format(settings=settings[1]))
    path = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    process = subprocess.run(
        [emacs, "--batch", "-l", "script.el"],
        cwd=tmp_path,
        env=os.environ | path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.stdout.splitlines()[-1:], process.stderr
    assert any(line.startswith("numpy") for line in process.stdout.splitlines())
