"""The methods page: its commands and its Python run, and print what it says."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import torch
from typer.testing import CliRunner

from charwise.cli.app import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?|-?\d+e-?\d+")

#: Bits by which a printed number may differ between machines.
CLOSE = 0.03


def test_stimuli_are_those_of_the_page() -> None:
    shown = re.search(r"^item,.*?(?=^…)", PAGE, re.M | re.S)
    assert shown
    assert (ROOT / "examples" / "stimuli.csv").read_text().startswith(shown.group())


@pytest.mark.skipif(torch.cuda.is_available(), reason="the page was printed on a CPU")
def test_the_page_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    names: dict[str, Any] = {}
    printed = ""
    compared = 0
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.M | re.S):
        if language == "python":
            exec(block, names)
            printed = capsys.readouterr().out
        elif block.startswith("$ "):
            for command in re.findall(r"^\$ charwise (.*)", block, re.M):
                result = CliRunner().invoke(app, shlex.split(command))
                assert result.exit_code == 0, result.output
        elif printed:
            assert NUMBER.sub("", block).split() == NUMBER.sub("", printed).split()
            found, said = (list(map(float, NUMBER.findall(part))) for part in (printed, block))
            assert found == pytest.approx(said, abs=CLOSE, rel=0)
            printed, compared = "", compared + 1
    assert compared == 6
    for name in ("sentence.png", "regions.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert len((tmp_path / "words.csv").read_text().splitlines()) == 77
