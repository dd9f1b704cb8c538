"""The README: what it prints is what the tool prints, and its Python runs."""

from __future__ import annotations

import os
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


def shown(block: str) -> str:
    """A block whose comments that quote a text are what its lines must give."""
    return re.sub(r"^(\S.*)  # ('.*')$", r"assert \1 == \2", block, flags=re.M)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the README was printed on a CPU")
def test_the_printed_blocks() -> None:
    assert run("demo") == printed("charwise demo")
    prompt = "def check(value):\n    if value < 0:\n        raise ValueErr"
    command = ("complete", "--stdin", "--max-new-bytes", "24")
    assert run(*command, stdin=prompt) == printed("charwise complete --stdin")


def test_the_python_blocks_run(monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
    assert len(blocks) == 5
    for block in blocks:  # in the order of the page, in one session
        if "tinystories-3m" in block:
            models = Path(os.environ.get("CHARWISE_DATA", "")) / "models"
            if not (models / "tinystories-3m").is_dir():
                continue  # the one block that takes a model which is not in the package
            with monkeypatch.context() as elsewhere:
                elsewhere.chdir(models)
                exec(shown(block), names)
        else:
            exec(block, names)
    assert len(names["texts"]) == 2
    assert names["generated"].startswith(names["forced"])
    assert names["completion"].text
