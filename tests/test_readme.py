"""The README: what it prints is what the tool prints, and its Python runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from charwise.cli.app import app

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
COLUMNS = "100"


def printed(command: str) -> str:
    """What the README shows below a command, up to the end of the block."""
    [shown] = re.findall(rf"^\$ [^\n]*{command}[^\n]*\n(.*?)^```", README, re.M | re.S)
    return trimmed(shown)


def trimmed(output: str) -> str:
    """Without spaces at the ends of lines, and without empty lines at both ends."""
    return "\n".join(line.rstrip() for line in output.splitlines()).strip("\n")


def run(*arguments: str, stdin: str | None = None) -> str:
    result = CliRunner().invoke(app, list(arguments), input=stdin, env={"COLUMNS": COLUMNS})
    assert result.exit_code == 0, result.output
    return trimmed(result.stdout)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the README was printed on a CPU")
def test_the_printed_blocks() -> None:
    assert run("demo") == printed("charwise demo")
    prompt = "def check(value):\n    if value < 0:\n        raise ValueErr"
    command = ("complete", "--stdin", "--max-new-bytes", "24")
    assert run(*command, stdin=prompt) == printed("charwise complete --stdin")


def test_the_python_blocks_run() -> None:
    names: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
    assert len(blocks) == 4
    for block in blocks:  # in the order of the page, in one session
        exec(block, names)
    assert len(names["texts"]) == 2
    assert names["generated"].startswith(names["forced"])
    assert names["completion"].text
