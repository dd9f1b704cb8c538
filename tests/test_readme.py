"""The README: what it prints is what the tool prints, and its Python runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from charwise.cli.app import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
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
def test_the_printed_block() -> None:
    assert run("demo") == printed("charwise demo")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the README was printed on a CPU")
def test_the_python_block_runs() -> None:
    names: dict[str, Any] = {}
    [block] = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
    assert shown(block).count("assert ") == 2
    exec(shown(block), names)
    assert len(names["score"].words("trailing")) == 4


def test_the_figures_are_those_of_the_benchmarks() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    results = (ROOT / "docs" / "results").glob("*.csv")
    known = page + "".join(path.read_text(encoding="utf-8") for path in results)
    [section] = re.findall(r"^## Does it work\?\n(.*?)^## ", README, re.M | re.S)
    figures = re.findall(r"(?<![\d.])\d+\.\d+(?![\d.])", section)
    assert len(figures) == 19
    assert set(figures) <= set(re.findall(r"\d+\.\d+", known))
    commands = re.findall(r"`(python\sbenchmarks/.*?)`", section, re.S)
    assert len(commands) == 4
    for command in commands:
        assert " ".join(command.split()) in " ".join(known.split())
