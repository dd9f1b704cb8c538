"""`benchmarks/paper.py`: the baselines against tiny oracles, and its report."""

from __future__ import annotations

import csv
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

import charwise
from charwise import CharLM, Vocabulary
from charwise.coverings.bundles import next_byte_masses
from charwise.coverings.reference import enum_cover, next_character_probability, prefix_probability
from charwise.errors import VocabularyError, ZeroProbabilityError
from models import (
    CLOSE,
    Case,
    Model,
    cases,
    close_logs,
    examples,
    log_of,
    random_lm,
    spelled,
    table,
    two_ways,
)
from near import approx
from paper import (
    Result,
    healed_coverings,
    js_distance,
    measure,
    methods,
    walk_beam,
    walk_canonical,
    walk_healed,
    walk_rounds,
)

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
    walk = walk_healed(lm, text, rows=True)
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
    walk = walk_rounds(CharLM(model.lm), text, "exact", rows=True)
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
        walk_beam(lm, "ab", 50, rows=True),
        walk_rounds(lm, "ab", "exact", rows=True),
        walk_healed(lm, "ab", rows=True),
    ]
    score = lm.score("ab", preset="exact")
    for walk in walks:
        assert walk.distributions is not None
        assert walk.logprobs.shape == (2,)
        assert walk.distributions.shape == (2, 257)
    for walk in walks[:2]:
        assert walk.logprobs == approx(score.logprobs, rel=1e-9)


# --- token healing as a covering ----------------------------------------------------------------


@given(cases())
@examples(300)
def test_its_members_are_those_of_equation_43(case: Case) -> None:
    """All but the last canonical token, then whatever starts with the last."""
    model, text, rows = case.model, case.text, case.model.evaluated()
    try:
        canonical = tuple(model.vocabulary.encode(text))
    except VocabularyError:
        assert not spelled(text, model.index.sorted)
        return
    [healed] = healed_coverings(rows, [text])
    bundle = healed.bundles[0]
    if not text:
        assert healed.path == [0]
        assert bundle.log_p == 0
        return
    stem, last = canonical[:-1], model.vocabulary.tokens[canonical[-1]]
    assert last is not None
    assert len(healed.path) == len(canonical)
    weight = math.prod(float(model.p(stem[:n])[id]) for n, id in enumerate(stem))
    ids = model.index.ids[bundle.lo : bundle.hi].tolist()
    assert sorted(ids) == [
        id for id, t in enumerate(model.vocabulary.tokens) if t is not None and t.startswith(last)
    ]
    members = {(*stem, id): weight * float(model.p(stem)[id]) for id in ids}
    covering = {m.tokens: m.p for m in enum_cover(text, model.p, model.vocabulary)}
    assert members.keys() <= covering.keys()
    assert members == approx({tokens: covering[tokens] for tokens in members}, **CLOSE)
    total = math.fsum(members.values())
    assert total <= prefix_probability(text, model.p, model.vocabulary) * (1 + 1e-12)
    assert close_logs(bundle.log_p + log_of(weight), log_of(total))


def test_it_misses_the_other_spellings() -> None:
    model = two_ways()
    [healed] = healed_coverings(model.evaluated(), [b"ab"])
    assert math.exp(healed.bundles[0].log_p) == approx(0.3)
    assert prefix_probability(b"ab", model.p, model.vocabulary) == approx(0.3 + 0.08)


def test_a_text_that_nothing_can_follow() -> None:
    rows = {(3,): [0.5, 0.5, 0, 0], (0,): [0, 0, 0, 1], (1,): [0.5, 0, 0, 0.5], (2,): [0, 0, 0, 1]}
    model = table([b"a", b"b", b"ba"], rows, order=2)
    tree = model.evaluated()
    [healed] = healed_coverings(tree, [b"bab"])  # canonical: [ba, b]
    masses, scale = next_byte_masses(tree, healed.bundles)
    assert scale == -math.inf
    assert not masses.any()


def test_many_texts_in_one_call() -> None:
    model = two_ways()
    rows = model.evaluated()
    calls = rows.calls
    together = healed_coverings(rows, [b"a", b"ab", b"aba"])
    assert rows.calls == calls + 1
    for text, healed in zip([b"a", b"ab", b"aba"], together, strict=True):
        alone = model.evaluated()
        masses = [next_byte_masses(*each)[0] for each in ((rows, healed.bundles),)]
        [expected] = healed_coverings(alone, [text])
        assert masses[0] == approx(next_byte_masses(alone, expected.bundles)[0])


# --- the report ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report() -> dict[str, Result]:
    chosen = methods([2, 4, 8], [0.0], ["fast"])
    results = measure(charwise.load(), TEXT, chosen, "beam K=8", repeat=2)
    assert results[-1].method == "beam K=8"
    return {result.method: result for result in results}


def test_what_is_averaged(report: dict[str, Result]):
    """The definitions of the module, from the walks themselves."""
    lm = charwise.load()
    reference = walk_beam(lm, TEXT, 8, rows=True)
    fast = walk_rounds(lm, TEXT, "fast", rows=True)
    found = report["fast"]
    assert fast.distributions is not None
    assert reference.distributions is not None
    assert found.js_distance is not None
    assert found.surprisal_error is not None
    assert found.bits_per_byte is not None
    distances = js_distance(fast.distributions, reference.distributions)
    errors = abs(fast.logprobs - reference.logprobs) / math.log(2)
    assert found.js_distance.value == approx(distances.mean(), rel=1e-6)
    assert found.surprisal_error.value == approx(errors.mean(), rel=1e-6)
    assert found.bits_per_byte.value == approx(fast.bits.mean(), rel=1e-6)
    assert found.contexts_per_byte == approx(lm.score(TEXT, preset="fast").contexts / len(TEXT))


def test_every_method_has_its_intervals(report: dict[str, Result]):
    for result in report.values():
        comparable = result.method not in ("canonical", "beam K=8")
        assert (result.js_distance is not None) == comparable
        assert (result.surprisal_error is not None) == comparable
        for mean in (result.js_distance, result.surprisal_error, result.bits_per_byte):
            if mean is not None:
                assert 0 < mean.low < mean.value < mean.high
        assert result.bytes_per_second is not None
        assert 0 < result.bytes_per_second.low <= result.bytes_per_second.high
    healed, wide = report["token healing"].js_distance, report["beam K=4"].js_distance
    assert healed is not None
    assert wide is not None
    assert healed.low > wide.high, "healing is no competitor"


def test_a_method_that_fails_says_why():
    """The token `ab` is canonical, and impossible: healing and the canonical tokens end there."""
    model = table([b"a", b"b", b"c", b"ab"], {(): [0.4, 0.3, 0.2, 0.0, 0.1]})
    assert prefix_probability(b"abc", model.p, model.vocabulary) == approx(0.4 * 0.3 * 0.2)
    chosen = methods([1, 4], [0.0], ["exact"])
    beam, exact, healed, canonical, _ = measure(CharLM(model.lm), b"abc", chosen, "beam K=4", 1)
    for result in (beam, exact):
        assert not result.failed
        assert result.bits_per_byte is not None
        assert result.bits_per_byte.value == approx(-math.log2(0.4 * 0.3 * 0.2) / 3)
    for result in (healed, canonical):
        assert "probability zero" in result.failed
        assert result.bits_per_byte is result.bytes_per_second is None


@pytest.mark.slow
def test_the_script_writes_tables_and_figures(tmp_path: Path):
    (tmp_path / "text.py").write_bytes(TEXT)
    script = Path(__file__).parents[2] / "benchmarks" / "paper.py"
    options = ["--K", "2", "--theta", "0,0.01", "--preset", "fast", "--reference-K", "4"]
    command = [sys.executable, script, tmp_path / "text.py", *options, "--repeat", "1"]
    done = subprocess.run(
        [*command, "--out", tmp_path / "out"], check=True, capture_output=True, text=True
    )
    with (tmp_path / "out" / "paper.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    names = ["beam K=2", "beam K=2 θ=0.01", "fast", "token healing", "canonical", "beam K=4"]
    assert [row["method"] for row in rows] == names
    assert [line for line in done.stdout.splitlines() if line.startswith("| beam K=4 | ")]
    for name in ("error", "surprisal"):
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
