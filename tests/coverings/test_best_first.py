"""Best-first coverings against the oracle: exact at tolerance 0, bounds that hold at any other."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from unittest.mock import patch

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

import charwise.coverings.best_first
from charwise.coverings.best_first import Covering, Interval, best_first
from charwise.coverings.members import _encodings_size, covering_size, members_in_order
from charwise.coverings.reference import (
    enum_cover,
    next_character_probability,
    prefix_probability,
    string_probability,
)
from charwise.coverings.rows import EvaluatedRows
from charwise.engines.ngram import NgramLM
from conftest import Data
from models import CLOSE, Case, by_hand, cases, close_logs, examples, log_of, table, two_ways
from near import approx

TOLERANCES = (0.0, 1e-6, 1e-3, 0.1, 1.0)

#: Rounding of sums in another order: what an interval may be short of the oracle, in nats.
_ROUNDING = 1e-11


def true_masses(case: Case) -> np.ndarray:
    """`[257]` →p(text · byte), and p(text) at 256, from the oracle."""
    model, text = case.model, case.text
    total = prefix_probability(text, model.p, model.vocabulary)
    if total == 0:
        return np.zeros(257)
    return next_character_probability(text, model.p, model.vocabulary) * total


def masses_of(covering: Covering) -> np.ndarray:
    """`next_byte_masses` as probabilities."""
    masses, scale = covering.next_byte_masses()
    assert np.isfinite(masses).all()
    assert not math.isnan(scale)
    return masses * math.exp(scale)


# --- tolerance 0 -------------------------------------------------------------------------------


#: [a] never goes on with b, which has an encoding nevertheless.
FORBIDDING = table([b"a", b"b"], {(2,): [0.5, 0.5, 0], (0,): [1, 0, 0], (1,): [0.5, 0, 0.5]}, 2)
TWINS = table([b"\x00", b"\x00", b"\x00\x00", b"\x00a"], {(): [0.3, 0.1, 0.2, 0.2, 0.2]})

SPECIAL = [
    *(Case(two_ways(), text) for text in (b"", b"z", b"az", b"abz", b"\x00")),
    Case(FORBIDDING, b"ab"),
    Case(TWINS, b"\x00\x00"),
]


def with_special_cases(test: Callable[..., None]) -> Callable[..., None]:
    """The empty text, what nothing spells, what the model forbids, NUL bytes and twins."""
    for case in SPECIAL:
        test = example(case)(test)
    return test


@given(cases())
@with_special_cases
@examples(500)
def test_tolerance_zero_is_the_oracle(case: Case):
    model, text = case.model, case.text
    expected = log_of(prefix_probability(text, model.p, model.vocabulary))
    plain = best_first(model.evaluated(), 0, text, tolerance=0)
    through = best_first(model.evaluated(), 0, text, tolerance=0, through=True)
    for covering in (plain, through):
        found = covering.prefix_logprob()
        assert found.lower == found.upper
        assert close_logs(found.lower, expected)
        assert covering.log_unvisited == covering.log_unvisited_end == -math.inf
    assert plain.contexts <= through.contexts

    ended = through.logprob()
    assert ended.lower == ended.upper
    assert close_logs(ended.lower, log_of(string_probability(text, model.p, model.vocabulary)))
    assert masses_of(through) == approx(true_masses(case), **CLOSE)


@given(cases())
@examples(200)
def test_the_chain_rule_in_logs(case: Case):
    """Σ log p(σ_t | σ_<t) + log p(EOS | σ) = log p(σ), with one tree for all of it."""
    evaluated, text = case.model.evaluated(), case.text
    total = 0.0
    for at in range(len(text) + 1):
        covering = best_first(evaluated, 0, text[:at], tolerance=0, through=True)
        masses, _ = covering.next_byte_masses()
        if not masses.any():
            total = -math.inf
            break
        total += log_of(masses[text[at] if at < len(text) else 256] / masses.sum())
    whole = best_first(evaluated, 0, text, tolerance=0, through=True).logprob()
    assert close_logs(whole.lower, total)


# --- bounds ------------------------------------------------------------------------------------


@given(cases(), st.integers(1, 12), st.sampled_from((1, 2, 32)), st.booleans())
@examples(500)
def test_intervals_contain_the_truth(case: Case, most: int, batch: int, through: bool):
    model, text = case.model, case.text
    prefix = log_of(prefix_probability(text, model.p, model.vocabulary))
    whole = log_of(string_probability(text, model.p, model.vocabulary))
    expected = true_masses(case) if through else None
    for max_contexts, tolerances in ((10_000, TOLERANCES), (most, (0.0, 0.1))):
        visited = []
        for tolerance in tolerances:
            with patch.object(charwise.coverings.best_first, "_BATCH", batch):
                covering = best_first(
                    model.evaluated(),
                    0,
                    text,
                    tolerance=tolerance,
                    through=through,
                    max_contexts=max_contexts,
                )
            visited.append(covering.contexts)
            assert covering.contexts <= max_contexts
            found = covering.prefix_logprob()
            assert_holds(found, prefix)
            if covering.contexts < max_contexts:
                # What the search promises, and more: the truth is at least what was visited.
                assert found.missing <= tolerance / (1 + tolerance) + _ROUNDING
            if through:
                assert_holds(covering.logprob(), whole)
                lost = expected - masses_of(covering)
                assert (lost >= -_ROUNDING * expected).all()
                unvisited = math.exp(covering.log_unvisited) + math.exp(covering.log_unvisited_end)
                assert lost.sum() <= unvisited + _ROUNDING
        assert visited == sorted(visited, reverse=True)


def assert_holds(interval: Interval, truth: float) -> None:
    assert not math.isnan(interval.lower)
    assert not math.isnan(interval.upper)
    assert interval.lower <= interval.upper <= 0
    assert interval.lower - _ROUNDING <= truth <= interval.upper + _ROUNDING
    assert 0 <= interval.missing <= 1


def test_bounds_are_not_vacuous():
    # A heavy way to spell the text and a light one; the light one is not visited.
    model = table([b"a", b"b", b"ab"], {(): [0.01, 0.09, 0.8, 0.1]})
    covering = best_first(model.evaluated(), 0, b"ab", tolerance=0.1)
    assert covering.contexts == 1
    found = covering.prefix_logprob()
    assert found.lower == approx(math.log(0.8))
    assert found.upper == approx(math.log(0.81))
    assert math.log(0.8 + 0.01 * 0.09) in found
    assert found.missing == approx(0.01 / 0.81)
    assert math.log(0.79) not in found


def test_by_hand():
    # docs/coverings.md goes through this example.
    model = by_hand()
    bounds = [(0.05, 0.65), (0.29, 0.59), (0.29, 0.44), (0.395, 0.395)]
    contexts = [(), (3,), (0,), (0, 1)]
    with patch.object(charwise.coverings.best_first, "_BATCH", 1):
        for visits, (lower, upper) in enumerate(bounds, start=1):
            evaluated = model.evaluated()
            covering = best_first(evaluated, 0, b"aba", tolerance=0, max_contexts=visits)
            found = covering.prefix_logprob()
            assert math.exp(found.lower) == approx(lower, rel=1e-12)
            assert math.exp(found.upper) == approx(upper, rel=1e-12)
            visited = [evaluated.tree.tokens(bundle.node) for bundle in covering.bundles]
            assert visited == contexts[:visits]
    assert best_first(model.evaluated(), 0, b"aba", tolerance=0).contexts == 4
    top = best_first(model.evaluated(), 0, b"aba").top(3)
    assert [member.token_ids for member in top] == [(3, 0), (0, 1, 0), (4,)]


def test_contexts_are_visited_in_falling_order_of_weight():
    model = table([b"a", b"b", b"aa", b"ab", b"ba"], {(): [0.3, 0.2, 0.2, 0.1, 0.1, 0.1]})
    with patch.object(charwise.coverings.best_first, "_BATCH", 1):
        bundles = best_first(model.evaluated(), 0, b"abaabab", tolerance=0).bundles
    weights = [bundle.log_weight for bundle in bundles]
    assert len(weights) > 10
    assert weights == sorted(weights, reverse=True)


# --- members -----------------------------------------------------------------------------------


@given(cases())
@with_special_cases
@examples(600)
def test_members_come_in_order(case: Case):
    model, text = case.model, case.text
    oracle = enum_cover(text, model.p, model.vocabulary)
    assert covering_size(model.index, text) == len(oracle)
    assert _encodings_size(model.index, text) == sum(m.raw == text for m in oracle)
    for exactly in (False, True):
        expected = {
            m.tokens: (m.raw, math.log(m.p))
            for m in oracle
            if m.p > 0 and (m.raw == text or not exactly)
        }
        found = list(members_in_order(model.evaluated(), 0, text, exactly=exactly))
        assert len(found) == len(expected)
        for member in found:
            decoded, logprob = expected[member.token_ids]
            assert member.raw == decoded
            assert close_logs(member.logprob, logprob)
        logprobs = [member.logprob for member in found]
        assert all(heavier >= lighter for heavier, lighter in pairwise(logprobs))


@given(cases(), st.integers(0, 4))
@examples(200)
def test_the_top_does_not_need_the_rest(case: Case, k: int):
    evaluated = case.model.evaluated()
    everything = list(members_in_order(case.model.evaluated(), 0, case.text))
    top = best_first(evaluated, 0, case.text, tolerance=1, max_contexts=1).top(k)
    assert top == everything[:k]


def test_few_contexts_are_evaluated_for_the_top():
    model = table([b"a", b"aa", b"aaa", b"aaaa"], {(): [0.1, 0.1, 0.1, 0.6, 0.1]})
    evaluated = model.evaluated()
    first = next(members_in_order(evaluated, 0, b"a" * 24))
    assert first.token_ids == (3,) * 6
    assert covering_size(model.index, b"a" * 24) > 1_000_000
    assert evaluated.tree.contexts < 500


def test_the_size_of_a_covering_is_bounded_by_the_paper():
    # Proposition 4: with tokens a and aa, coverings of a^n grow like Fibonacci numbers.
    index = table([b"a", b"aa"], {}).index
    sizes = [_encodings_size(index, b"a" * n) for n in range(8)]
    assert sizes == [1, 1, 2, 3, 5, 8, 13, 21]
    assert [covering_size(index, b"a" * n) for n in range(8)] == [1, 2, 3, 5, 8, 13, 21, 34]


# --- numbers -----------------------------------------------------------------------------------


def test_very_peaked_rows():
    # In float32 the second token would have probability 0 after the softmax.
    model = table([b"a", b"b"], {(): [1 - 1e-30, 1e-30, 1e-35]})
    for text in (b"ab", b"bbbb", b"ab" * 20):
        covering = best_first(model.evaluated(), 0, text, tolerance=0, through=True)
        expected = text.count(b"b") * math.log(1e-30)
        assert covering.prefix_logprob().lower == approx(expected, rel=1e-12)
        assert covering.logprob().lower == approx(expected + math.log(1e-35), rel=1e-12)
        masses, scale = covering.next_byte_masses()
        # Far below the least float64, the distribution of the next byte is still there.
        assert masses[:256].sum() > 0
        assert masses[ord("b")] / masses.sum() == approx(1e-30, rel=1e-9)
        assert masses[256] / masses.sum() == approx(1e-35, rel=1e-9)
        assert math.log(masses.sum()) + scale == approx(expected, rel=1e-12)
        [member] = members_in_order(model.evaluated(), 0, text)
        assert member.logprob == approx(expected, rel=1e-12)


def test_the_least_floats():
    model = table([b"a", b"ab"], {(): [1.0, 5e-324, 0.0]})
    covering = best_first(model.evaluated(), 0, b"ab", tolerance=0, through=True)
    assert covering.prefix_logprob().lower == approx(math.log(5e-324))
    masses, scale = covering.next_byte_masses()
    assert np.isfinite(masses).all()
    assert math.log(masses.sum()) + scale == approx(math.log(5e-324))
    assert masses[ord("a")] == approx(masses.sum())


# --- a real vocabulary -------------------------------------------------------------------------


def test_the_covering_of_hello_world(data: Data):
    """Vieira et al. 2025, Example 2: counted, and one by one."""
    index = data.index("gpt2")
    assert covering_size(index, b"Hello, worl") == 36_608
    assert _encodings_size(index, b"Hello, worl") == 176
    assert _encodings_size(index, b"Hello, world") == 352
    uniform = index.vocabulary.counted / index.vocabulary.counted.sum()
    lm = NgramLM(index.vocabulary, 1, {(): uniform})
    evaluated = EvaluatedRows(lm.tree(index.vocabulary.bos_ids), index)
    text = b"Hello, worl"
    covering = best_first(evaluated, 0, text, tolerance=0, through=True)
    inside = [bundle for bundle in covering.bundles if bundle.depth > 0]
    assert sum(bundle.hi - bundle.lo for bundle in inside) == 36_608
    assert len(covering.bundles) - len(inside) == 176
    members = list(members_in_order(evaluated, 0, text))
    assert len({member.token_ids for member in members}) == len(members) == 36_608
    assert all(member.raw.startswith(text) for member in members)
    assert sum(member.raw == text for member in members) == 176
    each = [math.exp(member.logprob) for member in members]
    assert math.fsum(each) == approx(math.exp(covering.prefix_logprob().lower), rel=1e-9)
    encodings = members_in_order(evaluated, 0, b"Hello, world", exactly=True)
    assert sum(1 for _ in encodings) == 352
