"""`charwise infill`: between two texts, or at a place in a file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from charwise.cli.app import app
from charwise.cli.side_by_side import sides_of
from charwise.errors import SettingError
from conftest import Data
from sentinels import saved_with

NAMES = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
TEXT = "x = 1\nnaïve = x\n"


def run(*arguments: str, command: str = "infill") -> Any:
    return CliRunner().invoke(app, [command, *arguments], env={"COLUMNS": "100"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The embedded model with sentinels that it was not trained to use."""
    return str(saved_with(tmp_path_factory.mktemp("model"), NAMES))


@pytest.mark.parametrize("order", ["psm", "spm"])
def test_json(folder: str, order: str) -> None:
    result = run(
        "--prefix", "for i in ra", "--suffix", "e(10):", "--model", folder, "--json",
        "--order", order, "--n", "2", "--max-new-bytes", "4",
    )  # fmt: skip
    answer = json.loads(result.stdout)
    assert (answer["forced"], answer["ending"]) == (" ra", "e")
    assert (answer["order"], answer["template"]) == (order, "StarCoder, Granite")
    assert list(answer["middles"]) == ["plain", "healed", "exact"]
    assert len(answer["logprobs"]) == len(answer["middles"]["exact"])
    assert answer["logprobs"] == sorted(answer["logprobs"], reverse=True)
    assert all(len(text.encode()) <= 4 for texts in answer["middles"].values() for text in texts)


def test_a_place_in_a_file(folder: str, tmp_path: Path) -> None:
    path = tmp_path / "a:b.py"
    path.write_text(TEXT, encoding="utf-8")
    result = run(f"{path}:2:4", "--model", folder, "--json", "--max-new-bytes", "2")
    assert result.exit_code == 0, result.output
    data = TEXT.encode()
    for at in range(len(data) + 1):
        assert sides_of(f"{path}:{at}") == (data[:at], data[at:])
    for number, line in enumerate(TEXT.split("\n"), 1):
        for column in range(1, len(line) + 2):
            before, after = sides_of(f"{path}:{number}:{column}")
            assert before + after == data
            assert before.decode().split("\n")[-1] == line[: column - 1]
            assert before.count(b"\n") == number - 1


def test_what_is_no_place(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(TEXT, encoding="utf-8")
    for place in (f"{path}:9:1", f"{path}:0:1", f"{path}:1:9", f"{path}:1:0", f"{path}:999"):
        with pytest.raises(SettingError):
            sides_of(place)
    with pytest.raises(SettingError, match="No such file"):
        sides_of(f"{tmp_path}/none.py:1:1")
    with pytest.raises(typer.BadParameter):
        sides_of("a.py")
    assert run("a.py:1:1", "--prefix", "x").exit_code == 2


def test_a_model_that_cannot_fill_in_is_refused(data: Data) -> None:
    small = str(data.folder / "models" / "tinystories-3m")
    result = run("--prefix", "a", "--suffix", "b", "--model", small)
    assert isinstance(result.exception, SettingError)
    assert "--template '<PRE> <SUF> <MID>'" in str(result.exception)
    assert "Template.named" not in str(result.exception)


def test_a_template_by_the_names_of_its_tokens(folder: str) -> None:
    sent = ["--prefix", "for i in ra", "--suffix", "e(10):", "--model", folder, "--json"]
    named, known = (
        json.loads(run(*sent, *more, "--max-new-bytes", "4").stdout)
        for more in (["--template", " ".join(NAMES)], [])
    )
    assert named.pop("template") == "given"
    assert known.pop("template") == "StarCoder, Granite"
    assert named == known
    swapped = json.loads(run(*sent, "--template", " ".join(NAMES[::-1])).stdout)
    assert swapped["logprobs"] != known["logprobs"]
    spm = json.loads(run(*sent, "--template", " ".join(NAMES[:2])).stdout)
    assert spm["order"] == "spm"


@pytest.mark.slow
def test_the_demo_of_a_model_that_fills_in_shows_one_gap(folder: str) -> None:
    shown = run("--model", folder, command="demo")
    assert shown.exit_code == 0, shown.output
    gap = json.loads(run("--model", folder, "--json", command="demo").stdout)["infilling"]
    assert (gap["forced"], gap["ending"], gap["meant"]) == (".app", "d", "en")
    assert list(gap["completions"]) == list(gap["right"]) == ["plain", "healed", "exact"]
    asked = json.loads(
        run(
            "--prefix", gap["prefix"], "--suffix", gap["suffix"], "--model", folder,
            "--max-new-bytes", "12", "--json",
        ).stdout
    )  # fmt: skip
    assert {name: [text] for name, text in gap["completions"].items()} == asked["middles"]
    for name, right in gap["right"].items():
        assert right == (gap["completions"][name] == "en")
    last = shown.stdout.rstrip().splitlines()[-1]
    assert last.split()[:2] == ["result.app│d(item)", "en"]
    assert len(re.findall("[✓✗]", last)) == 3


def test_the_demo_fills_in_what_was_cut_out() -> None:
    gap = json.loads(run("--json", command="demo").stdout)["infilling"]
    assert gap["right"]["healed"]
    assert gap["right"]["exact"]
    assert not gap["right"]["plain"]


def test_the_demo_of_a_model_that_does_not_fill_in_shows_none(data: Data) -> None:
    small = str(data.folder / "models" / "tinystories-3m")
    assert json.loads(run("--model", small, "--json", command="demo").stdout)["infilling"] is None
    assert "the gap" not in run("--model", small, command="demo").stdout
