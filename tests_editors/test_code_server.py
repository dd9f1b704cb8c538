"""The packaged extension in code-server: it starts `charwise lsp` from a virtual environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from editors import GHOST, SETTINGS, TIMEOUT, VSCODE, opened, picture, until_text
from listening import started
from serving import chromium, running

#: A command that starts code-server, such as "node …/code-server/out/node/entry.js".
CODE_SERVER = os.environ.get("CODE_SERVER", "").split()

pytestmark = [
    pytest.mark.skipif(not CODE_SERVER, reason="CODE_SERVER names no command that starts it"),
    pytest.mark.skipif(
        not (VSCODE / "charwise.vsix").exists(), reason="no extension: make extensions"
    ),
]

TEXT = "class Node:\n    pass\n\n\ndef first(tree) -> No"
OURS = SETTINGS | {"chat.disableAIFeatures": True, "extensions.ignoreRecommendations": True}
OURS |= {"files.autoSave": "afterDelay", "files.autoSaveDelay": 100}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A folder with a file."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.py").write_text(TEXT)
    return folder


@contextmanager
def window(tmp_path: Path, workspace: Path, more: Path | None = None) -> Iterator[Any]:
    """Open the file in code-server with the extension; neither charwise nor uv is on the path.

    `more` is a folder before those of the path.
    """
    data = tmp_path / "data"
    (data / "User").mkdir(parents=True)
    (data / "User" / "settings.json").write_text(json.dumps(OURS))
    common = ["--user-data-dir", str(data), "--extensions-dir", str(tmp_path / "extensions")]
    installed = [*CODE_SERVER, *common, "--install-extension", str(VSCODE / "charwise.vsix")]
    subprocess.run(installed, check=True, capture_output=True)
    serve = [*CODE_SERVER, *common, "--auth=none", "--bind-addr=127.0.0.1:PORT",
             "--disable-telemetry", "--disable-update-check", str(workspace)]  # fmt: skip
    folders = map(Path, os.environ["PATH"].split(os.pathsep))
    free = [one for one in folders if not ((one / "charwise").exists() or (one / "uv").exists())]
    path = os.pathsep.join(map(str, [*([more] if more else []), *free]))
    # With VSCODE_CLI it asks no login shell for another path.
    server = started(serve, "/healthz", PATH=path, VSCODE_CLI="1")
    with server as address, chromium() as browser:
        page = opened(browser, f"{address}/?folder={workspace}", 2 * TIMEOUT)
        page.locator(".monaco-list-row", has_text="a.py").dblclick()
        page.wait_for_selector(".statusbar-item:has-text('Python')")
        page.locator(".view-line").last.click()
        page.keyboard.press("Control+End")
        yield page


def until_saved(page: Any, workspace: Path, wanted: str) -> None:
    until_text(page, (workspace / "a.py").read_text, wanted)


def test_the_language_server_completes_and_explains(tmp_path: Path, workspace: Path) -> None:
    program = workspace / ".venv" / "bin" / "charwise"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m charwise "$@"\n')
    program.chmod(0o755)
    with window(tmp_path, workspace) as page:
        page.wait_for_selector(".statusbar-item:has-text('embedded model')")
        page.keyboard.type("d")
        page.wait_for_selector(GHOST)
        ghost = "".join(page.locator(GHOST).all_text_contents())
        assert ghost.startswith("e")
        page.keyboard.press("Tab")
        until_saved(page, workspace, f"{TEXT}d{ghost}")
        page.keyboard.press("F1")
        page.keyboard.type("charwise: show how")
        page.wait_for_timeout(1000)
        page.keyboard.press("Enter")
        page.wait_for_selector(".tab:has-text('How the text was read')")
        picture(page, "code-server")


def test_without_charwise_one_message_says_what_to_install(tmp_path: Path, workspace: Path) -> None:
    with window(tmp_path, workspace) as page:
        message = page.locator(".notification-list-item-message", has_text="pip install")
        message.wait_for()
        page.keyboard.type("de")
        page.wait_for_timeout(3000)
        assert page.locator(".notification-list-item-message").count() == 1
        assert page.locator(GHOST).count() == 0
        until_saved(page, workspace, f"{TEXT}de")


def test_a_server_that_runs_is_found(tmp_path: Path, workspace: Path) -> None:
    with running(port=8000), window(tmp_path, workspace) as page:
        page.wait_for_selector(".statusbar-item:has-text('charwise')")
        page.keyboard.type("d")
        page.wait_for_selector(GHOST)
        assert page.locator(".notification-list-item-message").count() == 0


#: A stand-in for uv, which makes the environment without a download: it writes down what it was
#: asked, and puts the program of this environment into the folder.
UV = """#!/bin/sh
echo "$@" >> "{log}"
if [ "$1" = venv ]; then
    for folder; do :; done
    mkdir -p "$folder/bin"
    printf '#!/bin/sh\\nexec "{python}" -m charwise "$@"\\n' > "$folder/bin/charwise"
    chmod +x "$folder/bin/charwise"
fi
{end}
"""


@pytest.mark.parametrize("end", ["exit 0", 'test "$1" = venv'])
def test_one_button_installs_with_uv(tmp_path: Path, workspace: Path, end: str) -> None:
    programs, log = tmp_path / "programs", tmp_path / "log"
    programs.mkdir()
    (programs / "uv").write_text(UV.format(log=log, python=sys.executable, end=end))
    (programs / "uv").chmod(0o755)
    with window(tmp_path, workspace, programs) as page:
        button = page.locator(".monaco-button", has_text="Install it with uv (about")
        button.wait_for()
        picture(page, "code-server-install")
        button.click()
        if end == "exit 0":
            page.wait_for_selector(".statusbar-item:has-text('embedded model')")
        else:
            failed = page.locator(".notification-list-item-message", has_text="could not install")
            failed.wait_for()
    creation, installation = (line.split() for line in log.read_text().splitlines())
    assert creation[0] == "venv"
    assert installation[-1] == "charwise[lsp]"
    assert (Path(creation[-1]) / "bin" / "charwise").exists() == (end == "exit 0")
