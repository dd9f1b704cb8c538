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
from charwise.errors import ModelError, SettingError, VocabularyError, ZeroProbabilityError
from charwise.evaluation import compare as module
from charwise.models import EMBEDDED
from models import random_lm


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
    [row] = result.differences
    one, other = (model.bits_per_byte for model in result.models)
    assert row.name == "one − other"
    assert math.isclose(row.bits_per_byte, one - other)
    assert math.isclose(row.error, sum(model.error for model in result.models))
    assert row.clear == (row.low > row.error or row.high < -row.error)
    within = replace(row, low=0.01, high=0.03, error=0.1, clear=False)
    notes = replace(result, differences=[within]).notes
    assert any("the error of the numbers reaches 0" in note for note in notes)
    head, first, *rest = result.to_csv().splitlines()
    assert head == "name,bits_per_byte,low,high,error,clear,window"
    assert float(first.split(",")[1]) == one
    assert len(rest) == 2
    pytest.importorskip("pandas", reason="tables need: pip install 'charwise[tables]'")
    assert result.to_pandas()["name"].tolist() == ["one", "other", "one − other"]


def test_identical_models_do_not_differ_at_all(pair: dict[str, CharLM]) -> None:
    one = pair["one"]
    for texts in ("abab" * 100, ["ab" * n for n in range(1, 30)]):
        result = charwise.compare([one, one], texts, resamples=100)
        [difference] = result.differences
        assert (difference.bits_per_byte, difference.low, difference.high) == (0.0, 0.0, 0.0)
        assert not difference.clear
        assert not any("not clear" in note for note in result.notes)
        assert {word.difference for word in result.words(3)} == {0.0}
    assert [model.name for model in result.models] == ["a model", "a model (2)"]


def test_intervals_are_drawn_from_texts_or_parts_by_a_seed(pair: dict[str, CharLM]) -> None:
    few, many = ["ab" * 100] * 3, ["ab" * (n % 5 + 1) for n in range(25)]
    assert charwise.compare(pair, few, resamples=10).units == 18  # parts of 32 bytes or so
    result, again = (charwise.compare(pair, many, resamples=10) for _ in range(2))
    assert result.units == 25
    assert repr(again.rows) == repr(result.rows)
    assert charwise.compare(pair, many, resamples=10, seed=1).rows != result.rows


@pytest.mark.parametrize("text", [b"a", b"\xa9\xff\xa9", "é".encode(), b"ab" * 200])
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
    words = charwise.compare(pair, "ab a", resamples=10).words()
    assert {(w.name, w.text, w.start, w.end) for w in words} == {
        ("the text", "ab", 0, 2),
        ("the text", " a", 2, 4),
    }
    assert all(word.difference == pytest.approx(word.first - word.second) for word in words)
    with pytest.raises(SettingError, match="there is one model"):
        charwise.compare([pair["one"]], "ab", resamples=10).words()


def test_models_are_loaded_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the second is asked for, nothing holds the first any more."""
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


@pytest.mark.parametrize(
    ("models", "texts", "options", "error"),
    [
        ("embedded", "a", {}, SettingError),
        (["embedded"], ["a", ""], {}, SettingError),
        (["embedded"], "a", {"resamples": 0}, SettingError),
        (["embedded"], "a", {"preset": "best"}, SettingError),
        (["embedded", Path(__file__).parent], "a", {}, ModelError),
    ],
)
def test_wrong_arguments_are_refused_before_any_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, models: Any, texts: Any, options: Any, error: type[Exception]
) -> None:
    monkeypatch.setattr(module, "load", lambda *_, **__: pytest.fail("a model is loaded"))
    with pytest.raises(error):
        charwise.compare(models, texts, **options)


def test_a_text_that_a_model_cannot_write_is_named(pair: dict[str, CharLM]) -> None:
    with pytest.raises(
        (ZeroProbabilityError, VocabularyError), match=r"the model one cannot score bad\.txt"
    ):
        charwise.compare(pair, {"good.txt": "ab", "bad.txt": "xyz"}, resamples=10)


def test_the_command(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need: pip install 'charwise[plots]'")
    run = partial(commands.run, "compare", "embedded")
    table, out, figure = (tmp_path / name for name in ("b.csv", "out.csv", "out.png"))
    table.write_text("code\nimport os\nimport sys\n")
    arguments = [EMBEDDED, table, "-", "--text-column", "code", "--preset", "fast"]
    arguments += ["--resamples", "10", "--out", out, "--figure", figure, "--json"]
    result = run(*arguments, stdin=b"a\xff")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert len(out.read_text().splitlines()) == 4
    assert run(*arguments).exit_code == 1, "the table is there"
    texts = {f"{table}, row 1 (line 2)": 9, f"{table}, row 2 (line 3)": 10, "-": 2}
    assert answer["texts"] == texts
    assert answer["rows"][-1]["bits_per_byte"] == 0.0
    assert answer["rows"][0]["low"] is None, "so few bytes have no interval"
    assert len(answer["words"]) == 5
