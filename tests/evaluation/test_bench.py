"""`charwise bench`: the baselines against tiny oracles, the report, its files."""

from __future__ import annotations

import csv
import json
import math
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

import charwise
import commands
from charwise import CharLM, Vocabulary
from charwise.cli import bench as cli_bench
from charwise.coverings.reference import next_character_probability, prefix_probability
from charwise.errors import MissingExtraError, SettingError, VocabularyError, ZeroProbabilityError
from charwise.evaluation import bench as benches
from charwise.evaluation.distance import js_distance
from charwise.evaluation.methods import walk_beam, walk_canonical, walk_healed, walk_rounds
from charwise.scoring.effort import PRESETS
from models import Case, Model, by_hand, cases, examples, random_lm, spelled, table
from near import approx

TEXT = b'def main():\n    raise ValueError("na\xc3\xafve")\n'


# --- the baselines ------------------------------------------------------------------------------


def healed_next_bytes(model: Model, prefix: bytes) -> NDArray[np.float64]:
    """`[257]` of Appendix F, from the members of eq. 43 one by one; all 0 if they have no mass."""
    vocabulary = model.vocabulary
    stem = tuple(vocabulary.encode_beginning(prefix))
    if stem and vocabulary.decode(stem) == prefix:
        stem = stem[:-1]
    rest = prefix[len(vocabulary.decode(stem)) :]
    masses = np.zeros(257)
    if not rest:  # no tokens to heal: whatever comes first
        masses[256] = sum(model.p(())[list(vocabulary.end_ids)])
    for id, token in enumerate(vocabulary.tokens):
        if token is None or not token.startswith(rest):
            continue
        p = model.p(stem)[id]
        if token != rest:
            masses[token[len(rest)]] += p
            continue
        after = model.p((*stem, id))
        masses[256] += p * sum(after[list(vocabulary.end_ids)])
        for following, token_after in enumerate(vocabulary.tokens):
            if token_after is not None:
                masses[token_after[0]] += p * after[following]
    return masses / masses.sum() if masses.sum() else masses


@given(cases())
@examples(300)
def test_token_healing_is_appendix_f_at_every_byte(case: Case):
    model, text, lm = case.model, case.text, CharLM(case.model.lm)
    try:
        model.vocabulary.encode_beginning(text)
        expected = [healed_next_bytes(model, text[:t]) for t in range(len(text))]
    except VocabularyError:
        assert not spelled(text, model.index.sorted)
        with pytest.raises(VocabularyError):
            walk_healed(lm, text)
        return
    if any(row[byte] == 0 for row, byte in zip(expected, text, strict=True)):
        with pytest.raises(ZeroProbabilityError):
            walk_healed(lm, text)
        return
    walk = walk_healed(lm, text, distributions=True)
    assert walk.distributions is not None
    for t, row in enumerate(expected):
        assert walk.distributions[t] == approx(row, rel=1e-9, abs=1e-12)
        assert walk.logprobs[t] == approx(math.log(row[text[t]]), rel=1e-9, abs=1e-9)
    assert (walk_healed(lm, text).logprobs == walk.logprobs).all()


def test_token_healing_slides_over_long_texts():
    """A model of the last two tokens alone does not notice where windows and batches end."""
    vocabulary = Vocabulary.from_bytes(
        [b"a", b"b", b"c", b"ab", b"bc", b"abc", b"cc", None], end_ids=[7], bos_ids=[7]
    )
    rng = np.random.default_rng(1)
    text = bytes(rng.choice(list(b"abc"), size=700).tolist())
    whole, windows = (
        walk_healed(CharLM(random_lm(vocabulary, 2, 5, window=window)), text)
        for window in (None, 120)
    )
    assert windows.logprobs == approx(whole.logprobs, rel=1e-12)
    assert windows.calls > whole.calls
    assert whole.contexts < 3 * len(text)


@given(cases())
@examples(100)
def test_the_canonical_baseline_books_tokens_on_their_first_bytes(case: Case):
    model, text = case.model, case.text
    try:
        ids = model.vocabulary.encode(text)
    except VocabularyError:
        assert not spelled(text, model.index.sorted)
        return
    expected = np.zeros(len(text))
    at = 0
    for n, id in enumerate(ids):
        p = model.p(tuple(ids[:n]))[id]
        expected[at] = math.log(p) if p else -math.inf
        at += model.index.length(id)
    walk = walk_canonical(CharLM(model.lm), text)
    assert walk.logprobs == approx(expected, rel=1e-9, abs=1e-9)


@given(cases(possible=True))
@examples(100)
def test_the_distributions_of_rounds_are_those_of_the_definition(case: Case):
    model, text = case.model, case.text
    walk = walk_rounds(CharLM(model.lm), text, PRESETS["exact"], distributions=True)
    assert walk.distributions is not None
    for t, row in enumerate(walk.distributions):
        truth = next_character_probability(text[:t], model.p, model.vocabulary)
        assert row == approx(truth, rel=1e-9, abs=1e-12)


def test_an_implied_space_is_no_byte_of_the_text():
    """Where the tokenizer puts a space before a text, it is conditioned on."""
    vocabulary = Vocabulary(
        [b" ", b"a", b" a", b"b", None],
        implied_prefix=b" ",
        end_ids=[4],
        bos_ids=[4],
        bos_rule="told",
    )
    lm = CharLM(random_lm(vocabulary, 2, 3))
    walks = [
        walk_beam(lm, "ab", 50, distributions=True),
        walk_rounds(lm, "ab", PRESETS["exact"], distributions=True),
        walk_healed(lm, "ab", distributions=True),
    ]
    score = lm.score("ab", preset="exact")
    for walk in walks:
        assert walk.distributions is not None
        assert walk.logprobs.shape == (2,)
        assert walk.distributions.shape == (2, 257)
    for walk in walks[:2]:
        assert walk.logprobs == approx(score.logprobs, rel=1e-9)


# --- the report ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report() -> benches.Report:
    candidates = benches.methods([2, 4], [0.0, 1e-2], ["fast", "default"])
    found = benches.bench(charwise.load(), TEXT, candidates, benches.beam(8), repeat=2)
    return replace(found, model="embedded")


def test_what_is_averaged(report: benches.Report):
    """The definitions of the module, from the walks themselves."""
    lm = charwise.load()
    reference = walk_beam(lm, TEXT, 8, distributions=True)
    fast = walk_rounds(lm, TEXT, PRESETS["fast"], distributions=True)
    found = next(result for result in report.results if result.method == "fast")
    assert fast.distributions is not None
    assert reference.distributions is not None
    assert found.js_distance is not None
    assert found.surprisal_error is not None
    assert found.bits_per_byte is not None
    distances = js_distance(fast.distributions, reference.distributions)
    errors = abs(fast.logprobs - reference.logprobs) / math.log(2)
    assert found.js_distance.value == approx(distances.mean(), rel=1e-6)
    assert found.surprisal_error.value == approx(errors.mean(), rel=1e-6)
    assert found.bits_per_byte.value == approx(fast.bits_per_byte, rel=1e-6)
    assert found.contexts_per_byte == approx(fast.contexts / len(TEXT))


def test_every_method_is_there_with_its_intervals(report: benches.Report):
    assert [result.method for result in report.results] == [
        "beam K=2",
        "beam K=4",
        "beam K=2 θ=0.01",
        "beam K=4 θ=0.01",
        "fast",
        "default",
        "token healing",
        "canonical",
        "beam K=8",
    ]
    for result in report.results:
        comparable = result.method not in ("canonical", report.reference)
        assert (result.js_distance is not None) == comparable
        assert (result.surprisal_error is not None) == comparable
        for mean in (result.js_distance, result.surprisal_error, result.bits_per_byte):
            if mean is not None:
                assert 0 < mean.low < mean.value < mean.high
        assert result.bytes_per_second is not None
        assert 0 < result.bytes_per_second.low <= result.bytes_per_second.high
    assert report.tokens == len(charwise.load().vocabulary.encode(TEXT))
    healed, wide = report.results[6], report.results[1]
    assert healed.js_distance is not None
    assert wide.js_distance is not None
    assert healed.js_distance.low > wide.js_distance.high, "healing is no competitor"


def test_the_seed_makes_the_intervals_again(report: benches.Report):
    lm, only = charwise.load(), [benches.beam(2)]
    again, other = (
        benches.bench(lm, TEXT, only, benches.beam(8), repeat=1, seed=seed).results[0]
        for seed in (0, 1)
    )
    assert again.js_distance == approx(report.results[0].js_distance, rel=1e-6)
    assert other.js_distance is not None
    assert again.js_distance is not None
    assert other.js_distance.value == approx(again.js_distance.value, rel=1e-6)
    assert other.js_distance.low != again.js_distance.low


def test_a_method_that_fails_says_why():
    """The token `ab` is canonical, and impossible: healing and the canonical tokens end there."""
    model = table([b"a", b"b", b"c", b"ab"], {(): [0.4, 0.3, 0.2, 0.0, 0.1]})
    assert prefix_probability(b"abc", model.p, model.vocabulary) == approx(0.4 * 0.3 * 0.2)
    candidates = benches.methods([1], [0.0], ["exact"])
    report = benches.bench(CharLM(model.lm), b"abc", candidates, benches.beam(4), repeat=1)
    beam, exact, healed, canonical, _ = report.results
    for result in (beam, exact):
        assert not result.failed
        assert result.bits_per_byte is not None
        assert result.bits_per_byte.value == approx(-math.log2(0.4 * 0.3 * 0.2) / 3)
    for result in (healed, canonical):
        assert "probability zero" in result.failed
        assert result.bits_per_byte is result.bytes_per_second is None
    rows = list(csv.DictReader(cli_bench._to_csv(report).splitlines()))
    assert rows[2]["bits_per_byte"] == ""
    assert "probability zero" in rows[2]["failed"]


def test_nothing_to_measure():
    model = by_hand()
    lm, reference = CharLM(model.lm), benches.beam(4)
    with pytest.raises(SettingError, match="empty"):
        benches.bench(lm, b"", [], reference)
    with pytest.raises(SettingError, match="repeat is 0"):
        benches.bench(lm, b"a", [], reference, repeat=0)


# --- the command --------------------------------------------------------------------------------


run = partial(commands.run, "bench")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "text.py"
    path.write_bytes(TEXT)
    return path


def value(cell: str) -> Any:
    """A CSV cell as JSON has it."""
    try:
        return float(cell)
    except ValueError:
        return cell or None


@pytest.mark.slow
def test_files(file: Path, tmp_path: Path):
    folder = tmp_path / "results" / "embedded"
    options = ("--K", "2,4", "--preset", "fast", "--reference-K", "8", "--repeat", "1")
    result = run("--text", str(file), *options, "--out", str(folder), "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed == json.loads((folder / "bench.json").read_text("utf-8"))
    assert printed["bytes"] == len(TEXT)
    with (folder / "bench.csv").open(encoding="utf-8", newline="") as stream:
        rows = [{name: value(cell) for name, cell in row.items()} for row in csv.DictReader(stream)]
    assert rows == [{**row, "failed": row["failed"] or None} for row in printed["results"]]
    lines = (folder / "bench.md").read_text("utf-8").splitlines()
    assert len(lines) == 2 + len(rows)
    assert lines[2].startswith("| beam K=2 | ")
    assert lines[-1].startswith("| beam K=8 (reference) |")
    for name in ("error", "surprisal"):
        png = (folder / f"{name}.png").read_bytes()
        assert png.startswith(b"\x89PNG")
        assert len(png) > 10_000
        svg = ElementTree.parse(folder / f"{name}.svg").getroot()
        shapes = [element for element in svg.iter() if element.tag.endswith("}path")]
        assert len(shapes) > 40


def test_the_table(file: Path):
    result = run("--text", str(file), "--K", "2,2", "--preset", "fast", "--reference-K", "4")
    assert result.exit_code == 0, result.output
    assert "beam K=2" in result.stdout
    assert result.stdout.count("beam K=2") == 1
    assert "(reference)" in result.stdout
    assert f"{len(TEXT)} bytes" in result.stdout


def test_text_ends_between_characters(file: Path):
    cut = TEXT.index(b"\xaf")
    options = ("--K", "2", "--preset", "fast", "--reference-K", "2", "--repeat", "1", "--json")
    result = run("--text", str(file), "--bytes", str(cut), *options)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["bytes"] == cut - 1


def test_an_interrupted_run_writes_nothing(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(benches, "walk_rounds", interrupted)
    folder = tmp_path / "results"
    result = run("--text", str(file), "--K", "2", "--reference-K", "4", "--out", str(folder))
    assert result.exit_code == 130
    assert "interrupted in walk 3 of" in result.stderr
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--text", "nowhere.txt"), "No such file"),
        (("--text", "."), "Is a directory"),
        (("--K", "a"), "--K a: 'a' is not a number"),
        (("--K", "0"), "--K 0: it must be at least 1"),
        (("--K", ","), "--K has no value"),
        (("--K", "200"), "wider than the reference"),
        (("--theta", "2"), "--theta 2: it must be in [0, 1]"),
        (("--theta", "nan"), "it must be in [0, 1]"),
        (("--preset", "best"), "unknown preset 'best'"),
        (("--repeat", "0"), "--repeat"),
    ],
)
def test_bad_input(file: Path, options: tuple[str, str], sentence: str):
    result = run(*(() if options[0] == "--text" else ("--text", str(file))), *options)
    assert result.exit_code == 2
    assert sentence in " ".join(result.output.replace("\n", " ").split())


def test_without_matplotlib(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Said before anything is walked; without figures it is not needed."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("--text", str(file), "--out", str(tmp_path / "results"))
    assert isinstance(result.exception, MissingExtraError)
    assert "pip install 'charwise[plots]'" in str(result.exception)
    assert not (tmp_path / "results").exists()


def test_an_empty_file_and_a_file_for_a_folder(file: Path, tmp_path: Path):
    empty = tmp_path / "empty"
    empty.touch()
    assert "no text in it" in run("--text", str(empty)).output
    result = run("--text", str(file), "--out", str(empty))
    assert result.exit_code == 2
    assert "File exists" in result.output
