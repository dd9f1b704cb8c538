"""Several models on one text: the numbers are those of scores, and the intervals of pairs."""

import gc
import json
import math
import weakref
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import charwise
import commands
from charwise import CharLM, Vocabulary
from charwise.errors import ModelError, SettingError, VocabularyError, ZeroProbabilityError
from charwise.evaluation import compare as module
from charwise.evaluation.resampling import intervals, units_of
from charwise.models import EMBEDDED
from models import examples, random_lm


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


# --- Intervals cover what they promise to, where that is known ------------------------------------

Floats = NDArray[np.float64]


def dependent(rng: np.random.Generator, size: int, carried: float, columns: int) -> Floats:
    """Skewed values of mean 0, each of which carries a share of the one before."""
    drawn = rng.exponential(size=(size + 100, columns)) - 1
    for t in range(1, len(drawn)):
        drawn[t] += carried * drawn[t - 1]
    return np.asarray(drawn[100:])


def coverage(many: Iterable[tuple[Floats, ...]], truth: float) -> NDArray[np.float64]:
    """How many of the intervals of 95 % have the truth in them, for each column."""
    drawn = [intervals(units_of(series), 400, n) for n, series in enumerate(many)]
    return np.mean([[mean.low <= truth <= mean.high for mean in means] for means in drawn], axis=0)


@pytest.mark.slow
@pytest.mark.parametrize(("carried", "size"), [(0.0, 300), (0.5, 1000)])
def test_parts_cover_a_known_mean(carried: float, size: int) -> None:
    """93 to 97 % of the intervals of 95 %, of a mean and of a difference of pairs."""
    rng, draws = np.random.default_rng(5), 400
    many = dependent(rng, size, carried, 2 * draws)
    shared = 3 * dependent(rng, size, carried, draws)  # what is hard for both models
    a, b = many[:, :draws] + shared, many[:, draws:] + shared
    covered = coverage(((np.column_stack(pair),) for pair in zip(a.T, (a - b).T, strict=True)), 0)
    assert ((covered >= 0.93) & (covered <= 0.97)).all(), covered


@pytest.mark.slow
def test_texts_cover_a_known_ratio() -> None:
    """Texts of different lengths, and each with a level of its own."""
    rng = np.random.default_rng(6)

    def texts() -> tuple[Floats, ...]:
        sizes = rng.integers(10, 60, 40)
        levels = 2 * rng.gamma(4.0, 0.25, 40)  # of mean 2, whatever the length
        return tuple(np.full((s, 1), level) for s, level in zip(sizes, levels, strict=True))

    [covered] = coverage((texts() for _ in range(1000)), 2)
    assert 0.93 <= covered <= 0.97


def test_pairs_are_narrower_than_what_they_are_of() -> None:
    rng = np.random.default_rng(0)
    shared = dependent(rng, 2000, 0.5, 1)
    a, b = (shared + 0.1 * dependent(rng, 2000, 0.5, 1) for _ in range(2))
    one, other, pair = intervals(units_of([np.column_stack([a, b, a - b])]), resamples=400)
    assert pair.high - pair.low < (one.high - one.low) / 4
    assert one.high - one.low < 2 * (other.high - other.low)


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    columns=st.integers(1, 3),
    seed=st.integers(0, 99),
)
@examples(100)
def test_any_sizes(sizes: list[int], columns: int, seed: int) -> None:
    """The mean is that of all bytes; equal columns have equal intervals, and 0 has none at all."""
    rng = np.random.default_rng(seed)
    series = []
    for size in sizes:
        values = rng.exponential(size=(size, columns))
        series.append(np.column_stack([values, values[:, 0], np.zeros(size)]))
    for units in (units_of(series), series):
        means = intervals(units, resamples=50, seed=seed)
        whole = np.concatenate(series)
        assert np.array_equal(np.concatenate(units), whole)
        for mean, column in zip(means, whole.T, strict=True):
            assert math.isclose(mean.value, column.mean(), rel_tol=1e-12)
            assert math.isnan(mean.low) or mean.low <= mean.high
        assert repr(means[0]) == repr(means[columns])
        zero = means[-1]
        assert math.isnan(zero.low) or tuple(zero) == (0.0, 0.0, 0.0)
        assert repr(intervals(units, resamples=50, seed=seed)) == repr(means)


def test_repeated_and_short_texts() -> None:
    values = np.tile(np.array([1.0, 5.0, 2.0, 2.0, 1.0]), 200)[:, None]
    values[:7] += 0.3
    [mean] = intervals(units_of([values]), resamples=500)
    assert 2.0 < mean.low <= mean.value <= mean.high < 2.4, "a text that repeats"
    for low, units in ((math.nan, 4), (1.0, 5)):
        for drawn in (units_of([np.ones((units * 32, 1))]), [np.ones((9, 1))] * units):
            assert repr(intervals(drawn, resamples=10)[0].low) == repr(low)
