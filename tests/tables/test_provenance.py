"""What lies beside an output: with equal facts the numbers are equal, and a paper can cite them."""

from __future__ import annotations

import csv
import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import commands
from charwise.tables import provenance
from charwise.tokens.words import WORDS

run = partial(commands.run, "score")

#: What says when, and under which names, and not what was computed.
NAMES = ("date", "command", "output SHA-256")


def test_every_convention_has_its_words() -> None:
    assert provenance._WORDS.keys() == WORDS.keys()


@pytest.fixture
def stimuli(tmp_path: Path) -> Path:
    path = tmp_path / "stimuli.csv"
    path.write_text("item,sentence\n1,import numpy as np\n2,To be or not\n", encoding="utf-8")
    return path


def made(stimuli: Path, name: str, *options: str) -> tuple[bytes, dict[str, Any]]:
    """The output, and the facts beside it."""
    out = stimuli.with_name(name)
    result = run(stimuli, "--text-column", "sentence", *options, "--out", out)
    assert result.exit_code == 0, result.output
    return out.read_bytes(), json.loads(out.with_name(f"{name}.json").read_bytes())


def essential(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name not in NAMES}


def test_equal_facts_are_equal_numbers(stimuli: Path) -> None:
    first, facts = made(stimuli, "first.csv")
    second, again = made(stimuli, "second.csv")
    assert first == second
    assert essential(facts) == essential(again)
    assert facts["output SHA-256"] == hashlib.sha256(first).hexdigest()
    assert facts["inputs"][0]["SHA-256"] == hashlib.sha256(stimuli.read_bytes()).hexdigest()
    assert (facts["texts"], facts["rows"], facts["left out"]) == (2, 8, 0)
    with stimuli.with_name("first.csv").open() as file:
        largest = max(float(row["error"]) for row in csv.DictReader(file))
    assert facts["largest error in bits"] == largest


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["--preset", "accurate"], "preset"),
        (["--tolerance", "0.003"], "tolerance"),
        (["--convention", "trailing"], "convention"),
        (["--convention", "ending"], "convention"),
        (["--dtype", "bfloat16"], "dtype"),
    ],
)
def test_other_numbers_have_other_facts(stimuli: Path, options: list[str], name: str) -> None:
    first, facts = made(stimuli, "first.csv")
    second, others = made(stimuli, "second.csv", *options)
    assert first != second
    assert facts[name] != others[name]


def test_the_sentence_of_a_methods_section(stimuli: Path) -> None:
    facts = made(stimuli, "out.csv", "--convention", "trailing", "--tolerance", "0.01")[1]
    result = run("--methods", stimuli.with_name("out.csv"))
    assert result.exit_code == 0, result.output
    sentence, _, *papers = result.stdout.splitlines()
    for part in (
        "surprisal of words in bits",
        f"embedded (SHA-256 {facts['model SHA-256'][:12]}, float32)",
        f"charwise {facts['charwise']}",
        "tolerance 0.01 bits a byte",
        "whitespace counted with the word before it",
        "Each text was scored on its own.",
        f"{facts['largest error in bits']:.2g} bits",
    ):
        assert part in sentence
    assert len(papers) == 3
    as_json = json.loads(run("--methods", "--json", stimuli.with_name("out.csv")).stdout)
    assert as_json["citations"] == papers
    assert [each["sentence"] for each in as_json["outputs"]] == [sentence]
    assert as_json["outputs"][0]["origin"] == facts
    terminal = {"FORCE_COLOR": "1", "COLUMNS": "80"}
    wrapped = run("--methods", stimuli.with_name("out.csv"), env=terminal).stdout
    assert max(map(len, wrapped.splitlines())) <= 80
    assert wrapped.split() == result.stdout.split(), "no word is broken"


def test_texts_without_a_score_are_in_the_sentence(stimuli: Path) -> None:
    with stimuli.open("a", encoding="utf-8") as file:
        file.write("3,\n")
    out = stimuli.with_name("out.csv")
    options = ["--text-column", "sentence", "--per", "char", "--on-error", "skip", "--out", out]
    assert run(stimuli, *options).exit_code == 3
    methods = run("--methods", out).stdout
    assert "surprisal of characters in bits" in methods
    assert "1 of the texts had no score, and were left out." in methods


def test_methods_of_what_charwise_did_not_write(stimuli: Path) -> None:
    assert "`charwise score` did not write it" in str(run("--methods", stimuli).exception)
    made(stimuli, "out.csv")
    out = stimuli.with_name("out.csv")
    out.write_text(out.read_text().replace("1", "2"))
    assert "is no longer as charwise wrote it" in str(run("--methods", out).exception)
