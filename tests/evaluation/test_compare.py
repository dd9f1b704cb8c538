"""Several models on one text: the numbers are those of scores, and the intervals of pairs."""

from __future__ import annotations

import gc
import json
import math
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import charwise
import commands
from charwise import CharLM, Vocabulary
from charwise.errors import (
    ModelError,
    SettingError,
    VocabularyError,
    ZeroProbabilityError,
)
from charwise.models import EMBEDDED
from models import random_lm

TEXT = "import numpy as np\nfor i in range(10):\n    print(naïve)\n" * 4


def small(seed: int, *tokens: bytes, window: int | None = 90) -> CharLM:
    """A random model of a, b, é and a stray byte, with more tokens if these are given."""
    spelled = [b"a", b"b", b" ", b"\xc3", b"\xa9", b"\xff", *tokens]
    end = len(spelled)
    vocabulary = Vocabulary([*spelled, None], end_ids=[end], bos_ids=[end])
    return CharLM(random_lm(vocabulary, 2, seed, window=window))


@pytest.fixture
def pair() -> dict[str, CharLM]:
    """Two models of different tokenizers."""
    return {"one": small(0, b"ab"), "other": small(1, b"ba", b"\xc3\xa9", b"aab")}


def test_numbers_are_those_of_scores(pair: dict[str, CharLM]) -> None:
    text = "abéaab" * 60
    result = charwise.compare(pair, text, resamples=200)
    for model, bits, errors in zip(result.models, result.bits, result.errors, strict=True):
        score = pair[model.name].score(text)
        assert np.array_equal(bits, -score.logprobs / math.log(2))
        assert np.array_equal(errors, score.error / math.log(2))
        assert math.isclose(model.bits_per_byte, score.bits_per_byte, rel_tol=1e-12)
        assert math.isclose(model.error, errors.mean())
        assert model.low < model.bits_per_byte < model.high
    [difference] = result.differences
    one, other = (model.bits_per_byte for model in result.models)
    assert math.isclose(difference.bits_per_byte, one - other)
    assert math.isclose(difference.error, sum(model.error for model in result.models))
    assert difference.name == "one − other"


def test_identical_models_do_not_differ_at_all(pair: dict[str, CharLM]) -> None:
    one = pair["one"]
    for texts in ("abab" * 100, ["ab" * n for n in range(1, 30)]):
        result = charwise.compare([one, one], texts, resamples=100)
        [difference] = result.differences
        assert (difference.bits_per_byte, difference.low, difference.high) == (0.0, 0.0, 0.0)
        assert not difference.clear
        assert not any("not clear" in note for note in result.notes)
        assert [word.difference for word in result.words(3)] == [0.0] * min(3, len(result.words(3)))
    assert [model.name for model in result.models] == ["a model", "a model (2)"]


def test_a_difference_is_clear_beyond_interval_and_error(pair: dict[str, CharLM]) -> None:
    result = charwise.compare(pair, "abab" * 200, resamples=100)
    [row] = result.differences
    assert row.clear == (row.low > row.error or row.high < -row.error)
    within = replace(row, low=0.01, high=0.03, error=0.1, clear=False)
    notes = replace(result, differences=[within]).notes
    assert any("the error of the numbers reaches 0" in note for note in notes)


def test_what_intervals_are_drawn_from(pair: dict[str, CharLM]) -> None:
    few, many = ["ab" * 100] * 3, ["ab" * (n % 5 + 1) for n in range(25)]
    assert charwise.compare(pair, few, resamples=10).units == 18  # parts of 32 bytes or so
    result = charwise.compare(pair, many, resamples=10)
    assert result.units == 25
    again = charwise.compare(pair, many, resamples=10)
    assert repr(again.rows) == repr(result.rows)
    other = charwise.compare(pair, many, resamples=10, seed=1)
    assert other.rows != result.rows


@pytest.mark.parametrize("text", [b"a", b"\xc3", b"\xa9\xff\xa9", "é".encode(), b"ab" * 200])
def test_any_bytes_and_any_length(pair: dict[str, CharLM], text: bytes) -> None:
    """One byte, parts of characters, stray bytes, and more than the window holds."""
    result = charwise.compare(pair, text, resamples=20)
    assert result.bytes == len(text)
    assert np.isfinite(result.bits).all()
    assert math.isnan(result.models[0].low) == (len(text) < 5 * 32)
    assert sum(word.first for word in result.words(99)) == pytest.approx(result.bits[0].sum())
    result.plot()


def test_a_long_text_is_scored_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = {"one": small(0, b"ab", window=None), "other": small(1, b"ba", b"aab", window=None)}
    text = bytes(np.random.default_rng(0).choice(list(b"ab"), 160).tolist())
    whole = charwise.compare(pair, text, resamples=10)
    monkeypatch.setattr("charwise.tokens.utf8.pieces.__defaults__", (40, 36))
    parts = charwise.compare(pair, text, resamples=10)
    # Of an order of 2, what is 36 bytes before changes next to nothing.
    assert (np.abs(whole.bits - parts.bits).mean(axis=1) < 0.05).all()
    assert parts.bits.shape == (2, 160)


def test_words_and_where_they_are(pair: dict[str, CharLM]) -> None:
    result = charwise.compare(pair, "ab a", resamples=10)
    words = sorted(result.words(), key=lambda word: word.start)
    assert [(w.name, w.text, w.start, w.end) for w in words] == [
        ("the text", "ab", 0, 2),
        ("the text", " a", 2, 4),
    ]
    assert all(word.difference == pytest.approx(word.first - word.second) for word in words)
    with pytest.raises(SettingError, match="there is one model"):
        charwise.compare([pair["one"]], "ab", resamples=10).words()


def test_models_are_loaded_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the second is asked for, nothing holds the first any more."""
    from charwise.evaluation import compare as module

    opened: list[weakref.ref[Any]] = []

    def load(name: str, **_: Any) -> CharLM:
        gc.collect()
        assert not any(one() for one in opened)
        lm = small(len(opened))
        opened.append(weakref.ref(lm.engine))
        return lm

    monkeypatch.setattr(module, "load", load)
    monkeypatch.setattr(module, "read_vocabulary", lambda *_, **__: None)
    result = charwise.compare(["m/a", "n/a", "b"], "abab", resamples=10)
    assert [model.name for model in result.models] == ["a", "a (2)", "b"]
    assert len(result.differences) == 3
    gc.collect()
    assert not any(one() for one in opened)


def test_a_model_that_is_not_there_is_missed_before_any_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from charwise.evaluation import compare as module

    monkeypatch.setattr(module, "load", lambda *_, **__: pytest.fail("a model is loaded"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError):
        charwise.compare(["embedded", tmp_path / "empty"], "abc")


@pytest.mark.parametrize(
    ("models", "texts", "options", "message"),
    [
        ("embedded", "a", {}, "put one into a list"),
        (small(0), "a", {}, "put one into a list"),
        (["embedded"], "", {}, "is empty"),
        (["embedded"], ["a", ""], {}, "text 2 is empty"),
        (["embedded"], "a", {"resamples": 0}, "resamples is 0"),
        (["embedded"], "a", {"seed": -1}, "seed is -1"),
        (["embedded"], "a", {"preset": "best"}, "unknown preset"),
        (["embedded"], "a", {"preset": "fast", "tolerance": 0.1}, "give one of them"),
    ],
)
def test_wrong_arguments(models: Any, texts: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        charwise.compare(models, texts, **options)


def test_a_text_that_a_model_cannot_write_is_named(pair: dict[str, CharLM]) -> None:
    with pytest.raises((ZeroProbabilityError, VocabularyError)) as caught:
        charwise.compare(pair, {"good.txt": "ab", "bad.txt": "xyz"}, resamples=10)
    assert "the model one cannot score" in str(caught.value)
    assert "bad.txt" in str(caught.value)


def test_tables(pair: dict[str, CharLM]) -> None:
    result = charwise.compare(pair, "ab" * 60, resamples=50)
    lines = result.to_csv().splitlines()
    assert lines[0] == "name,bits_per_byte,low,high,error,clear,window"
    assert len(lines) == 4
    assert float(lines[1].split(",")[1]) == result.models[0].bits_per_byte
    assert json.loads(json.dumps(result.to_dict()))["seed"] == 0
    pytest.importorskip("pandas", reason="tables need: pip install 'charwise[tables]'")
    frame = result.to_pandas()
    assert frame["name"].tolist() == ["one", "other", "one − other"]


# --- The command --------------------------------------------------------------------------------


run = partial(commands.run, "compare")


def test_the_command(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need: pip install 'charwise[plots]'")
    text, table = tmp_path / "a.py", tmp_path / "b.csv"
    text.write_text(TEXT)
    table.write_text("code\nimport os\nimport sys\n")
    out, figure = tmp_path / "out.csv", tmp_path / "out.png"
    arguments = ["embedded", EMBEDDED, text, table, "--text-column", "code", "--preset", "fast"]
    arguments += ["--resamples", "200", "--out", out, "--figure", figure, "--json"]
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert len(out.read_text().splitlines()) == 4
    assert run(*arguments).exit_code == 1, "the table is there"
    assert answer["texts"] == {
        str(text): len(TEXT.encode()),
        f"{table}, row 1 (line 2)": 9,
        f"{table}, row 2 (line 3)": 10,
    }
    assert [row["bits_per_byte"] for row in answer["rows"]][-1] == 0.0
    assert len(answer["words"]) == 10


def test_text_from_stdin() -> None:
    result = run("embedded", "-", "--json", "--resamples", "10", stdin=b"a\xff")
    assert result.exit_code == 0, result.output
    row = json.loads(result.stdout)["rows"][0]
    assert row["low"] is None  # two bytes have no interval
