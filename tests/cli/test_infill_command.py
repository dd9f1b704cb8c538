"""`charwise infill`: between two texts, or at a place in a file."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from charwise.cli.app import app
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


def test_the_demo_of_a_model_that_does_not_fill_in_shows_none(data: Data) -> None:
    small = str(data.folder / "models" / "tinystories-3m")
    assert json.loads(run("--model", small, "--json", command="demo").stdout)["infilling"] is None
    assert "the gap" not in run("--model", small, command="demo").stdout
