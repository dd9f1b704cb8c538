"""The methods page: its Python runs, and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import torch

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?|-?\d+e-?\d+")

#: Bits by which a printed number may differ between machines.
CLOSE = 0.03


@pytest.mark.skipif(torch.cuda.is_available(), reason="the page was printed on a CPU")
def test_the_page_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    names: dict[str, Any] = {}
    printed = ""
    compared = 0
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.M | re.S):
        if language == "python":
            exec(block, names)
            printed = capsys.readouterr().out
        elif printed:
            assert NUMBER.sub("", block).split() == NUMBER.sub("", printed).split()
            found, said = (list(map(float, NUMBER.findall(part))) for part in (printed, block))
            assert found == pytest.approx(said, abs=CLOSE, rel=0)
            printed, compared = "", compared + 1
    assert compared == 6
    assert (tmp_path / "sentence.png").read_bytes().startswith(b"\x89PNG")
