"""Lengths and frequencies of words, in a table and by themselves."""

from __future__ import annotations

import csv
import json
import math
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path

import pytest

import commands
from charwise.errors import MissingExtraError, SettingError
from charwise.tables.covariates import COVARIATES, check_language, covariates

wordfreq = pytest.importorskip("wordfreq", reason="this needs: pip install 'charwise[covariates]'")
run = partial(commands.run, "score")


def test_a_word_has_its_own_and_those_of_the_word_before() -> None:
    the, blank, unknown, dug = covariates([" the", "\n ", "xqzwv ", "dug,"], "en")
    assert the == {
        "length": 3,
        "log_frequency": math.log(wordfreq.word_frequency("the", "en")),
        "previous_length": None,
        "previous_log_frequency": None,
    }
    assert blank == {"length": None, "log_frequency": None}
    assert (unknown["length"], unknown["log_frequency"]) == (5, None)
    assert unknown["previous_log_frequency"] == the["log_frequency"]
    assert (dug["length"], dug["previous_length"]) == (4, 5)
    assert dug["log_frequency"] == math.log(wordfreq.word_frequency("dug", "en"))


def test_a_table_has_them_and_says_where_they_are_from(tmp_path: Path) -> None:
    out, text = tmp_path / "words.csv", tmp_path / "a.txt"
    text.write_text("The horse raced", encoding="utf-8")
    result = run(text, "--covariates", "en", "--end", "--out", out)
    assert result.exit_code == 0, result.output
    with out.open(encoding="utf-8") as file:
        *words, end = csv.DictReader(file)
    expected = covariates([word["text"] for word in words], "en")
    for word, own in zip(words, expected, strict=True):
        for name, kind in COVARIATES.items():
            assert (None if word[name] == "NA" else kind(word[name])) == own[name]
    assert all(end[name] == "NA" for name in COVARIATES)
    facts = json.loads(out.with_name("words.csv.json").read_bytes())
    assert (facts["covariates"], facts["wordfreq"]) == ("en", version("wordfreq"))
    report = run("--methods", out).output
    assert f"wordfreq {facts['wordfreq']} for the language 'en'" in report
    assert "Speer" in report


def test_a_language_that_it_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match="'xx'"):
        check_language("xx")
    monkeypatch.setitem(sys.modules, "jieba", None)
    with pytest.raises(MissingExtraError, match="wordfreq\\[cjk\\]"):
        check_language("zh")
