"""How long the playground takes to show a key, in a browser, with the embedded model.

Usage: ``python benchmarks/playground.py [--browser PATH] [--json FILE]``

Types a piece of Python into the page of a real server, as fast as the page keeps up, and prints the
milliseconds from the key to the picture, as the page itself measures them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import threading
import time
from pathlib import Path

import uvicorn
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.table import Table

import charwise
from charwise.serve.app import application
from charwise.serve.server import Settings

TYPED = (
    "class Node:\n    def __init__(self, value, parent=None):\n        self.value = value\n"
    "        self.parent = parent\n\n    def get_node(self, value) -> Node:\n        return"
)


def served() -> tuple[uvicorn.Server, str]:
    """A server in a thread, and its address."""
    app = application(charwise.load(), Settings())
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.02)
    return server, f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"


def keys(address: str, browser: str) -> list[float]:
    """Milliseconds of each key."""
    took = []
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = opened.new_page()
        page.goto(address)
        page.fill("#text", "")
        looked = "text => document.body.dataset.looked === text"
        page.wait_for_function(looked, arg="")
        page.focus("#text")
        for end in range(1, len(TYPED) + 1):
            page.keyboard.insert_text(TYPED[end - 1])
            page.wait_for_function(looked, arg=TYPED[:end])
            took.append(float(page.evaluate("document.body.dataset.took")))
        opened.close()
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    found = shutil.which("chromium-headless-shell") or shutil.which("chromium") or ""
    parser.add_argument("--browser", default=found)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    server, address = served()
    took = sorted(keys(address, arguments.browser))
    server.should_exit = True
    row = {
        "keys": len(took),
        "median ms": statistics.median(took),
        "95th percentile ms": took[int(0.95 * len(took))],
        "worst ms": took[-1],
        "within 100 ms": sum(one <= 100 for one in took) / len(took),
    }
    table = Table(*row)
    table.add_row(*(f"{value:.3g}" for value in row.values()))
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(row))


if __name__ == "__main__":
    main()
