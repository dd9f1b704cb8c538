"""The extension in VS Code's web build: keys, ghost text, commands, and failures."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from editors import GHOST, VSCODE, Window, picture, vscode_web
from serving import running

pytestmark = pytest.mark.skipif(
    not (VSCODE / "dist/web.js").exists(), reason="the extension is not built: make extensions"
)

NODE = "class Node:\n    pass\n\n\ndef first(tree) -> No"


@pytest.fixture(scope="module")
def window() -> Iterator[Window]:
    with running(allow_origins=("*",)) as server, vscode_web(server.url) as one:
        yield one


@pytest.fixture(autouse=True)
def settings(window: Window) -> Iterator[None]:
    yield
    window.set(url=window.url, enabled=True, languages=["*"])
    window.status("charwise")


def test_tab_accepts_the_ghost_text(window: Window) -> None:
    window.open(NODE)
    window.type("d")
    ghost = window.ghost()
    assert ghost.startswith("e")
    picture(window.page, "vscode")
    window.page.keyboard.press("Tab")
    window.until(NODE + "d" + ghost)


def test_a_word_is_accepted(window: Window) -> None:
    window.open("import argparse\nparser = argparse.Argu")
    window.type("m")
    whole = window.ghost()
    window.page.keyboard.press("Control+ArrowRight")
    window.quiet()
    word = window.text().removeprefix("import argparse\nparser = argparse.Argum")
    assert word
    assert whole.startswith(word)
    assert len(word) < len(whole)


def test_the_reading_is_shown(window: Window) -> None:
    window.open("import nump")
    window.hand('await vscode.commands.executeCommand("charwise.explain")')
    page = window.hand(
        "return vscode.workspace.textDocuments"
        '.find((one) => one.uri.scheme === "charwise").getText()'
    )
    assert re.search(r'^  kept .*"import"$', page, re.M)
    assert re.search(r'^  removed  " n" "ump"$', page, re.M)
    assert '" nump" is left' in page
    window.quiet()
    picture(window.page, "vscode-explained")


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", ""])
def test_without_a_server_one_message_helps(window: Window, url: str) -> None:
    window.open("x")
    window.set(url=url)
    window.page.wait_for_selector(".notification-list-item-message")
    window.type("yz")
    window.quiet()
    [message] = window.messages()
    assert "charwise serve" in message if url else "address" in message
    buttons = window.page.locator(".notification-list-item-buttons-container")
    assert "address" in buttons.inner_text()
    assert window.text() == "xyz"


def test_only_chosen_languages_are_completed(window: Window) -> None:
    window.set(languages=["rust"])
    window.open(NODE)
    window.type("d")
    window.quiet()
    assert window.page.locator(GHOST).count() == 0
    window.open(NODE, "rust")
    window.type("d")
    assert window.ghost()


def test_the_status_item_turns_it_off(window: Window) -> None:
    window.open(NODE)
    window.page.locator(".statusbar-item:has-text('charwise')").click()
    window.status("off")
    window.page.locator(".monaco-editor textarea").first.focus()
    window.type("d")
    window.quiet()
    assert window.page.locator(GHOST).count() == 0
    assert window.text() == NODE + "d"


def test_a_file_of_20_mb_stays_usable(window: Window) -> None:
    line = "value = compute(value)  # " + "a" * 70 + "\n"
    text = line * (20_000_000 // len(line))
    window.open(text + NODE)
    window.type("d")
    window.quiet()
    assert window.messages() == []
    tail = window.hand(
        "const { document } = vscode.window.activeTextEditor;"
        "return document.lineAt(document.lineCount - 1).text"
    )
    assert tail == "def first(tree) -> Nod"


def test_a_cursor_inside_a_character_inserts_nothing(window: Window) -> None:
    window.open("x = '🍋'")
    window.hand(
        "const at = new vscode.Position(0, 6);"
        "vscode.window.activeTextEditor.selection = new vscode.Selection(at, at);"
        'await vscode.commands.executeCommand("editor.action.inlineSuggest.trigger")'
    )
    window.quiet()
    assert window.messages() == []
    assert window.text() == "x = '🍋'"
