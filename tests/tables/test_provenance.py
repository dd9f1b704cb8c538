"""What lies beside an output: with equal facts the numbers are equal, and a paper can cite them."""

import csv
import hashlib
import json
import math
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import commands
from charwise.errors import MissingExtraError, SettingError
from charwise.tables import provenance
from charwise.tables.measure import COVARIATES, check_language, covariates
from charwise.tokens.words import WORDS

run = partial(commands.run, "score")

COVARIATES_EXTRA = "this needs: pip install 'charwise[covariates]'"


def test_every_convention_has_its_words() -> None:
    assert provenance._WORDS.keys() == WORDS.keys()


@pytest.fixture
def stimuli(tmp_path: Path) -> Path:
    path = tmp_path / "stimuli.csv"
    path.write_text("item,sentence\n1,import numpy as np\n2,To be or not\n", encoding="utf-8")
    return path


def made(stimuli: Path, name: str, *options: str, status: int = 0) -> tuple[bytes, dict[str, Any]]:
    """The output, and the facts beside it."""
    out = stimuli.with_name(name)
    result = run(stimuli, "--text-column", "sentence", *options, "--out", out)
    assert result.exit_code == status, result.output
    return out.read_bytes(), json.loads(out.with_name(f"{name}.json").read_bytes())


def test_equal_facts_are_equal_numbers(stimuli: Path) -> None:
    first, facts = made(stimuli, "first.csv")
    second, again = made(stimuli, "second.csv")
    assert first == second
    for name in ("date", "command"):
        del facts[name], again[name]
    assert facts == again
    assert facts["output SHA-256"] == hashlib.sha256(first).hexdigest()
    assert facts["inputs"][0]["SHA-256"] == hashlib.sha256(stimuli.read_bytes()).hexdigest()
    assert (facts["texts"], facts["rows"], facts["left out"]) == (2, 8, 0)
    with stimuli.with_name("first.csv").open() as file:
        largest = max(float(row["error"]) for row in csv.DictReader(file))
    assert facts["largest error in bits"] == largest


def test_the_sentence_of_a_methods_section(stimuli: Path) -> None:
    with stimuli.open("a", encoding="utf-8") as file:
        file.write("3,\n")
    options = ["--convention", "trailing", "--tolerance", "0.01", "--on-error", "skip"]
    facts, out = made(stimuli, "out.csv", *options, status=3)[1], stimuli.with_name("out.csv")
    result = run("--methods", out)
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
        "1 of the texts had no score, and were left out.",
    ):
        assert part in sentence
    assert len(papers) == 3
    as_json = json.loads(run("--methods", "--json", out).stdout)
    assert as_json["citations"] == papers
    assert as_json["outputs"] == [{"out": str(out), "sentence": sentence, "origin": facts}]
    wrapped = run("--methods", out, env={"FORCE_COLOR": "1", "COLUMNS": "80"}).stdout
    assert max(map(len, wrapped.splitlines())) <= 80
    assert wrapped.split() == result.stdout.split(), "no word is broken"
    out.write_text(out.read_text().replace("1", "2"))
    assert "is no longer as charwise wrote it" in str(run("--methods", out).exception)


# --- Lengths and frequencies of words -----------------------------------------------------------


def test_covariates_of_a_word_and_of_the_word_before() -> None:
    wordfreq = pytest.importorskip("wordfreq", reason=COVARIATES_EXTRA)
    the, blank, unknown, dug = covariates([" the", "\n ", "xqzwv ", "dug,"], "en")
    frequency = math.log(wordfreq.word_frequency("the", "en"))
    previous = {"previous_length": None, "previous_log_frequency": None}
    assert the == {"length": 3, "log_frequency": frequency, **previous}
    assert blank == {"length": None, "log_frequency": None}
    assert (unknown["length"], unknown["log_frequency"]) == (5, None)
    assert unknown["previous_log_frequency"] == frequency
    assert (dug["length"], dug["previous_length"]) == (4, 5)
    assert dug["log_frequency"] == math.log(wordfreq.word_frequency("dug", "en"))


def test_a_table_has_covariates_and_says_where_they_are_from(stimuli: Path) -> None:
    pytest.importorskip("wordfreq", reason=COVARIATES_EXTRA)
    facts = made(stimuli, "words.csv", "--covariates", "en", "--end")[1]
    with stimuli.with_name("words.csv").open(encoding="utf-8") as file:
        *words, end = (row for row in csv.DictReader(file) if row["row"] == "1")
    expected = covariates([word["text"] for word in words], "en")
    for word, own in zip(words, expected, strict=True):
        for name, kind in COVARIATES.items():
            assert (None if word[name] == "NA" else kind(word[name])) == own[name]
    assert all(end[name] == "NA" for name in COVARIATES)
    assert (facts["covariates"], facts["wordfreq"]) == ("en", version("wordfreq"))
    report = run("--methods", stimuli.with_name("words.csv")).output
    assert f"wordfreq {facts['wordfreq']} for the language 'en'" in report
    assert "Speer" in report


def test_a_language_that_wordfreq_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wordfreq", reason=COVARIATES_EXTRA)
    with pytest.raises(SettingError, match="'xx'"):
        check_language("xx")
    monkeypatch.setitem(sys.modules, "jieba", None)
    with pytest.raises(MissingExtraError, match="wordfreq\\[cjk\\]"):
        check_language("zh")
