"""`charwise export`: what it writes, that kill -9 changes nothing of it, and what it refuses."""

from __future__ import annotations

import json
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import charwise
import commands
from preloaded import Command

pytest.importorskip("pyarrow", reason="Parquet needs: pip install 'charwise[tables]'")
pandas = pytest.importorskip("pandas")

TEXTS = 130


run = partial(commands.run, "export")


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five chunks of short rows."""
    path = tmp_path_factory.mktemp("many") / "many.jsonl"
    rows = ({"id": n, "text": f"x{n} = {n % 7}"} for n in range(TEXTS))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def arguments(many: Path, out: Path) -> list[str]:
    options = ["--item-column", "id", "--preset", "fast", "--top", "8", "--out", str(out)]
    return ["embedded", str(many), *options]


def test_a_text_and_its_rows(tmp_path: Path) -> None:
    text = "import os  # é\n".encode()
    (tmp_path / "a.py").write_bytes(text)
    out = tmp_path / "teacher"
    result = run("embedded", tmp_path / "a.py", "--out", out, "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert (answer["rows"], answer["records"], answer["left_out"]) == (1, len(text), 0)
    frame = pandas.read_parquet(out)
    assert bytes(frame["byte"]) == text
    rows = np.stack(frame["logprobs"]).astype(np.float64)
    assert np.abs(np.exp(rows).sum(axis=1) - 1).max() < 1e-3
    score = charwise.load().score(text, entropy="byte")
    assert score.ranks is not None
    ranks = 1 + (rows > rows[np.arange(len(text)), list(text)][:, None]).sum(axis=1)
    assert (ranks <= score.ranks).all()  # rounding makes ties, and changes no order
    assert np.allclose(frame["error"], score.error)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no kill -9")
@pytest.mark.slow
def test_killed_and_started_again(many: Path, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "teacher"
    assert run(*arguments(many, whole)).exit_code == 0
    parts = tmp_path / "teacher.parts"
    command = Command(["export", *arguments(many, out)], tmp_path)
    command.kill_when(lambda: len(list(parts.glob("0*"))) >= 2)
    assert not out.exists()
    result = run(*arguments(many, out), "--json")
    assert result.exit_code == 0, result.output
    assert 64 <= json.loads(result.stdout)["continued_after"] < TEXTS
    files = [{path.name: path.read_bytes() for path in each.iterdir()} for each in (whole, out)]
    assert files[0] == files[1]
    assert not parts.exists()


@pytest.mark.slow
def test_another_run_of_the_same_name(many: Path, tmp_path: Path) -> None:
    out = tmp_path / "teacher"
    assert run(*arguments(many, out)).exit_code == 0
    before = {path: path.read_bytes() for path in out.iterdir()}
    again = run(*arguments(many, out))
    assert again.exit_code == 1
    assert "is there, and finished" in str(again.exception)
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    assert run(*arguments(many, out), "--overwrite").exit_code == 0
    assert {path: path.read_bytes() for path in out.iterdir()} == before


NO_MODEL = "no model at all"


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["{folder}/no.txt", "-o", "{folder}/t"], 1, "does not exist"),
        (["{text}", "-o", "{folder}/no/t"], 1, "there is no folder"),
        (["{text}", "-o", "{text}"], 2, "is one of the input files"),
        (["{text}", "-o", "{folder}"], 1, "has 'a.txt' in it"),
        (["{empty}", "-o", "{folder}/t"], 1, "there is no text"),
        (["{text}", "-o", "{folder}/t", "--top", "257"], 2, "--top"),
        (["{text}", "-o", "{folder}/t", "--floats", "float64"], 2, "--floats"),
        (["{text}", "-o", "{folder}/t", "--preset", "best"], 2, "unknown preset"),
        (["{text}", "-o", "{folder}/t", "--preset", "fast", "--tolerance", "1"], 2, "give one"),
        (["{text}", "-o", "{folder}/t", "--workers", "2"], 2, "those of --ray"),
        (["{text}", "-o", "{folder}/t", "--text-column", "a"], 2, "no columns"),
        (["-", "-", "-o", "{folder}/t"], 2, "can be given once"),
    ],
)
def test_refused_before_anything_is_loaded(
    options: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(*_: Any) -> None:
        pytest.fail("a model is loaded")

    monkeypatch.setattr("charwise.cli.options.ModelOptions.load", load)
    (tmp_path / "in").mkdir()
    text, empty = tmp_path / "in" / "a.txt", tmp_path / "in" / "empty.txt"
    text.write_text("import os")
    empty.write_text("")
    places = {"folder": text.parent, "text": text, "empty": empty}
    result = run(NO_MODEL, *(option.format(**places) for option in options), stdin=b"")
    assert result.exit_code == code, result.output
    assert message in " ".join(f"{result.output} {result.exception}".replace("│", "").split())
    assert sorted(path.name for path in text.parent.iterdir()) == ["a.txt", "empty.txt"]


def test_texts_that_are_left_out(tmp_path: Path) -> None:
    table = tmp_path / "a.jsonl"
    table.write_text('{"text": "os"}\n{"text": ""}\n')
    assert run("embedded", table, "-o", tmp_path / "t").exit_code == 1
    result = run("embedded", table, "-o", tmp_path / "t", "--on-error", "skip")
    assert result.exit_code == 3, result.output
    assert bytes(pandas.read_parquet(tmp_path / "t")["byte"]) == b"os"
