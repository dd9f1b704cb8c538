"""The pages for one reader each: their Python runs from top to bottom, and their commands too."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from typer.testing import CliRunner

from charwise.cli.app import app

ROOT = Path(__file__).parents[1]
PAGES = (
    "combine",
    "compare",
    "constraints",
    "infill",
    "for-editors",
    "for-serving",
    "for-psycholinguists",
    "for-researchers",
)


def text_of(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout's folder, as far as the pages know it."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(
    page: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", text_of(page), re.M | re.S)
    assert blocks
    for block in blocks:
        exec(block, names)
        for line in re.findall(r"^print\(.*# (b?'.*?')", block, re.M):
            assert line in capsys.readouterr().out


def test_the_latencies_for_editors_are_those_of_the_benchmark() -> None:
    """Columns: the step, what it is compared with, and the ratio of the present version."""

    def rows(page: str, columns: tuple[int, ...]) -> list[tuple[str, ...]]:
        lines = [line.split("|") for line in text_of(page).splitlines() if line.startswith("|")]
        cells = [[cell.strip() for cell in line] for line in lines if len(line) > max(columns) + 1]
        return [tuple(row[n] for n in columns) for row in cells]

    measured = rows("benchmarks", (1, 2, 5))
    shown = [row for row in rows("for-editors", (1, 2, 3)) if row[2][:1].isdigit()]
    assert len(shown) == 5
    assert set(shown) <= set(measured)


def test_a_student_learns_from_a_teacher_table(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow", reason="Parquet needs: pip install 'charwise[tables]'")
    page = text_of("export")
    command = re.findall(r"^charwise (export .*)\n", page, re.M)[0]
    result = CliRunner().invoke(app, shlex.split(command))
    assert result.exit_code == 0, result.output
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S):
        exec(block, names)
    came, teacher = names["came"], names["teacher"]
    assert len(came) == len(teacher) > 300
    assert float((teacher.sum(dim=1) - 1).abs().max()) < 1e-6
    first, loss, least = (float(word) for word in capsys.readouterr().out.split()[-3:])
    assert least < loss < first - 1  # it has learned, and knows no more than its teacher


def test_the_command_for_psycholinguists_runs(folder: Path) -> None:
    page = text_of("for-psycholinguists")
    [(command, shown)] = re.findall(r"^\$ charwise (.*)\n(.*)\n", page, re.M)
    result = CliRunner().invoke(app, shlex.split(command), env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == shown
