"""The extension in a real JupyterLab: a cell, ghost text from the cells above it, and failures."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from editors import JUPYTERLAB, opened, picture
from listening import free_port, started
from serving import chromium, running

#: JupyterLab with the extension's wheel installed: `make editors` says where.
JUPYTER = shutil.which(os.environ.get("JUPYTER", "jupyter"))

pytestmark = [
    pytest.mark.skipif(JUPYTER is None, reason="no JupyterLab with the extension: make editors"),
    pytest.mark.skipif(
        not list(JUPYTERLAB.glob("dist/*.whl")), reason="the extension is not built: make editors"
    ),
]

CELLS = ["def zumquandle_total(prices):\n    return sum(prices)", "prices = [1, 2, 3]", ""]
GHOST = ".jp-GhostText"


KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
CODE = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
NOTEBOOK = {
    "cells": [{**CODE, "id": f"c{n}", "source": text} for n, text in enumerate(CELLS)],
    "metadata": {"kernelspec": KERNEL, "language_info": {"name": "python"}},
    "nbformat": 4,
    "nbformat_minor": 5,
}


@pytest.fixture(scope="module")
def server_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, server_port: int) -> Iterator[str]:
    """JupyterLab with a notebook of three cells; the address of its page."""
    folder: Path = tmp_path_factory.mktemp("lab")
    (folder / "a.ipynb").write_text(json.dumps(NOTEBOOK))
    settings = folder / "config/lab/user-settings/@jupyterlab"
    for name, value in {
        "completer-extension/inline-completer": {
            "providers": {"charwise": {"url": f"http://127.0.0.1:{server_port}/"}}
        },
        "apputils-extension/notification": {"fetchNews": "false"},
    }.items():
        file = settings / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(value))
    command = [str(JUPYTER), "lab", "--no-browser", "--port=PORT", "--IdentityProvider.token=",
               "--allow-root", f"--ServerApp.root_dir={folder}"]  # fmt: skip
    home = {"JUPYTER_CONFIG_DIR": str(folder / "config"), "HOME": str(folder)}
    with started(command, "/api", **home) as address:
        yield f"{address}/lab/tree/a.ipynb"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as one:
        yield one


@pytest.fixture
def page(browser: Any, lab: str) -> Iterator[Any]:
    """A page that shows the notebook, with the cursor in its third cell."""
    page = opened(browser, lab)
    page.locator(".jp-CodeCell .cm-content").nth(2).click()
    yield page
    page.close()


def test_the_third_cell_uses_a_name_of_the_first(page: Any, server_port: int) -> None:
    with running(port=server_port, allow_origins=("*",)):
        page.keyboard.type("total = zumq")
        ghost = page.locator(GHOST)
        ghost.wait_for()
        assert ghost.inner_text().startswith("uandle_total(")
        picture(page, "jupyterlab")
        page.keyboard.press("Tab")
        page.wait_for_timeout(500)
        cell = page.locator(".jp-CodeCell .cm-content").nth(2).inner_text()
        assert cell.startswith("total = zumquandle_total(")


def test_without_a_server_typing_goes_on(page: Any) -> None:
    page.keyboard.type("x = 1")
    page.wait_for_timeout(2000)
    assert page.locator(GHOST).count() == 0
    assert page.locator(".jp-CodeCell .cm-content").nth(2).inner_text() == "x = 1"
