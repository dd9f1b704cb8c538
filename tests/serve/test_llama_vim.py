"""Vim with llama.vim, as they are: typing, ghost text, and Tab, under a pseudo-terminal."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from charwise.char_lm import CharLM
from conftest import FOLDER  # type: ignore[attr-defined]
from serving import Running

PLUGIN = FOLDER / "clients" / "llama.vim"

pytestmark = [
    pytest.mark.skipif(not PLUGIN.is_dir(), reason=f"llama.vim is not in {PLUGIN}"),
    pytest.mark.skipif(
        not (shutil.which("vim") and shutil.which("curl")), reason="needs vim and curl"
    ),
]

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
