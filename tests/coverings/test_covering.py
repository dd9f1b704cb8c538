"""The covering, best first, against the oracle: exact at tolerance 0, bounds at any other."""

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import count, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from charwise.coverings.beam import Beam
from charwise.coverings.covering import Covering, covering_size
from charwise.engines.ngram import NgramLM
from charwise.errors import LimitError
from conftest import Data
from models import CLOSE, Case, Model, by_hand, cases, examples, log_of, model_of, table, two_ways

approx = pytest.approx

#: Rounding of sums in another order: what an interval may be short of the oracle, in nats.
_ROUNDING = 1e-11


def covering_of(model: Model, text: bytes, **settings: Any) -> Covering:
    """A covering that a model answers, not searched yet."""
    return Covering(model.evaluated(), text, **settings)


#: [a] never goes on with b, which has an encoding nevertheless.
FORBIDDING = table([b"a", b"b"], {(2,): [0.5, 0.5, 0], (0,): [1, 0, 0], (1,): [0.5, 0, 0.5]}, 2)
TWINS = table([b"\x00", b"\x00", b"\x00\x00", b"\x00a"], {(): [0.3, 0.1, 0.2, 0.2, 0.2]})

SPECIAL = [
    *(Case(two_ways(), text) for text in (b"", b"z", b"az", b"abz", b"\x00")),
    Case(FORBIDDING, b"ab"),
    Case(TWINS, b"\x00\x00"),
]


def with_special_cases(*more: Any) -> Callable[..., Any]:
    """The empty text, what nothing spells, what the model forbids, NUL bytes and twins."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        for case in SPECIAL:
            test = example(case, *more)(test)
        return test

    return decorate


def assert_holds(interval: Any, truth: float) -> None:
    assert not math.isnan(interval.lower)
    assert not math.isnan(interval.upper)
    assert interval.lower <= interval.upper <= 0
    assert interval.lower - _ROUNDING <= truth <= interval.upper + _ROUNDING
    assert 0 <= interval.missing <= 1


@given(cases(), st.integers(1, 12), st.sampled_from((1, 2, 32)), st.booleans())
@with_special_cases(1, 32, True)
@examples(500)
def test_intervals_contain_the_truth_and_are_exact_at_tolerance_zero(
    case: Case, most: int, batch: int, through: bool
):
    model, text = case.model, case.text
    total, whole = model.prefix(text), log_of(model.string(text))
    after = model.next(text) * total if total else np.zeros(257)
    for max_contexts, tolerances in ((10_000, (0.0, 1e-6, 1e-3, 0.1, 1.0)), (most, (0.0, 0.1))):
        visited = []
        for tolerance in tolerances:
            covering = covering_of(model, text, through=through)
            covering.search(tolerance, max_contexts, batch=batch)
            visited.append(covering.contexts)
            assert covering.contexts <= max_contexts
            bounds, everything = covering.prefix_logprob(), covering.contexts < max_contexts
            assert_holds(bounds, log_of(total))
            if everything:
                # What the search promises, and more: the truth is at least what was visited.
                assert bounds.missing <= tolerance / (1 + tolerance) + _ROUNDING
            exact = everything and tolerance == 0
            if exact:
                assert bounds.lower == bounds.upper
                assert bounds.lower == approx(log_of(total), abs=1e-9)
            if through:
                ended = covering.logprob()
                assert_holds(ended, whole)
                masses, scale = covering.next_byte_masses()
                assert np.isfinite(masses).all()
                assert not math.isnan(scale)
                lost = after - masses * math.exp(scale)
                assert (lost >= -_ROUNDING).all()
                assert lost.sum() <= math.exp(ended.upper) - math.exp(ended.lower) + _ROUNDING
                if exact:
                    assert ended.lower == ended.upper
                    assert ended.lower == approx(whole, abs=1e-9)
                    assert masses * math.exp(scale) == approx(after, **CLOSE)
        assert visited == sorted(visited, reverse=True)


def test_by_hand():
    # docs/coverings.md goes through this example.
    model = by_hand()
    bounds = [(0.05, 0.65), (0.29, 0.59), (0.29, 0.44), (0.395, 0.395)]
    contexts = [(), (3,), (0,), (0, 1)]
    for visits, (lower, upper) in enumerate(bounds, start=1):
        covering = covering_of(model, b"aba").search(0, visits, batch=1)
        interval = covering.prefix_logprob()
        assert math.exp(interval.lower) == approx(lower, rel=1e-12)
        assert math.exp(interval.upper) == approx(upper, rel=1e-12)
        assert [visited.context for visited in covering.visited] == contexts[:visits]
    assert covering_of(model, b"aba").search(0).contexts == 4
    top = covering_of(model, b"aba").top(3)
    assert [member.token_ids for member in top] == [(3, 0), (0, 1, 0), (4,)]


def test_a_batch_visits_hardly_more_contexts_than_one_by_one():
    counts = {1: 0, 32: 0}
    for seed in range(5):
        model = model_of([b"a", b"b", b"aa", b"ab", b"ba", b"aba", b"bab"], 2, seed, power=4)
        for batch in counts:
            covering = covering_of(model, b"abaababaab").search(1e-2, batch=batch)
            counts[batch] += covering.contexts
    assert 25 < counts[1] <= counts[32] <= 1.3 * counts[1]


def test_an_interrupted_search_goes_on():
    model = model_of([b"a", b"b", b"aa", b"ab", b"ba"], 2, 0)
    truth = covering_of(model, b"abaab").search(0).prefix_logprob().lower
    tree = model.evaluated()
    covering, guard = Covering(tree, b"abaab"), tree.guard
    for calls in range(4):
        rest = count(calls, -1)

        def interrupt(rest: Iterator[int] = rest) -> Any:
            if next(rest) <= 0:
                raise KeyboardInterrupt
            return nullcontext()

        tree.guard = interrupt
        with pytest.raises(KeyboardInterrupt):
            covering.search(0, batch=1)
        tree.guard = guard
        assert_holds(covering.prefix_logprob(), truth)
    assert covering.search(0).prefix_logprob().lower == approx(truth, abs=1e-9)


# --- members -----------------------------------------------------------------------------------


@given(cases(), st.integers(0, 4))
@with_special_cases(1)
@examples(600)
def test_members_come_in_order_and_the_first_do_not_need_the_rest(case: Case, k: int):
    model, text = case.model, case.text
    oracle = model.cover(text)
    lm, lazy = model.exact(), covering_of(model, text)
    all_members = [(lazy, False), (lm.covering(text, tolerance=0), False)]
    for covering, exactly in (*all_members, (lm.encodings(text), True)):
        among = [m for m in oracle if m.raw == text or not exactly]
        expected = {m.tokens: (m.raw, math.log(m.p)) for m in among if m.p > 0}
        assert covering.size == len(among)
        members = covering.top(10**6)
        assert len(members) == len(expected)
        for member in members:
            decoded, logprob = expected[member.token_ids]
            assert member.raw == decoded
            assert member.logprob == approx(logprob, abs=1e-9)
        assert all(one.logprob >= other.logprob for one, other in pairwise(members))
        if text:
            total = log_of(math.fsum(math.exp(logprob) for _, logprob in expected.values()))
            assert covering.prefix_logprob().lower == approx(total, abs=1e-9)
    everything = [m.logprob for m in lazy.top(10**6)]
    top = covering_of(model, text).search(1, 1).top(k)
    assert [m.logprob for m in top] == approx(everything[:k], rel=1e-12)
    for most in (1, 2, 4):
        try:
            members = covering_of(model, text).top(10**6, max_contexts=most)
        except LimitError as error:
            members = list(error.found)
        else:
            assert len(members) == len(everything)
        assert [m.logprob for m in members] == approx(everything[: len(members)], rel=1e-12)


def test_few_contexts_are_evaluated_for_the_top():
    model = table([b"a", b"aa", b"aaa", b"aaaa"], {(): [0.1, 0.1, 0.1, 0.6, 0.1]})
    covering = covering_of(model, b"a" * 24)
    [first] = covering.top(1)
    assert first.token_ids == (3,) * 6
    assert covering.size > 1_000_000
    assert covering.contexts < 500


def test_sizes_of_coverings_are_fibonacci_numbers():
    # With the tokens a and aa of Proposition 4, encodings of a^n are those of Corollary 2.
    index = table([b"a", b"aa"], {}).index
    sizes = [covering_size(index, b"a" * n, exactly=True) for n in range(8)]
    assert sizes == [1, 1, 2, 3, 5, 8, 13, 21]
    assert [covering_size(index, b"a" * n) for n in range(8)] == [1, 2, 3, 5, 8, 13, 21, 34]


# --- numbers and a real vocabulary -------------------------------------------------------------


def test_masses_below_the_least_float_are_summed():
    # In float32 the second token would have probability 0 after the softmax.
    model = table([b"a", b"b"], {(): [1 - 1e-30, 1e-30, 1e-35]})
    for text in (b"ab", b"bbbb", b"ab" * 20):
        covering = covering_of(model, text, through=True).search(0)
        expected = text.count(b"b") * math.log(1e-30)
        assert covering.prefix_logprob().lower == approx(expected, rel=1e-12)
        assert covering.logprob().lower == approx(expected + math.log(1e-35), rel=1e-12)
        beam = Beam.start(model.evaluated(), 0, 2, 0.0).advance(text)
        assert beam.prefix_logprob == approx(expected, rel=1e-12)
        for masses, scale in (covering.next_byte_masses(), beam.next_byte_masses()):
            assert masses[ord("b")] / masses.sum() == approx(1e-30, rel=1e-9)
            assert masses[256] / masses.sum() == approx(1e-35, rel=1e-9)
            assert math.log(masses.sum()) + scale == approx(expected, rel=1e-12)
        [member] = covering.top(10)
        assert member.logprob == approx(expected, rel=1e-12)
    least = table([b"a", b"ab"], {(): [1.0, 5e-324, 0.0]})
    covering = covering_of(least, b"ab", through=True).search(0)
    masses, scale = covering.next_byte_masses()
    assert math.log(masses[ord("a")]) + scale == approx(math.log(5e-324))


def test_the_covering_of_hello_world(data: Data):
    """Vieira et al. 2025, Example 2: counted, and one by one."""
    index, text = data.index("gpt2"), b"Hello, worl"
    assert covering_size(index, text) == 36_608
    assert covering_size(index, text, exactly=True) == 176
    uniform = index.vocabulary.counted / index.vocabulary.counted.sum()
    lm = NgramLM(index.vocabulary, 1, {(): uniform})

    def covering(raw: bytes, **settings: Any) -> Covering:
        return Covering(lm.tree(index.vocabulary.bos_ids), raw, **settings)

    through = covering(text, through=True).search(0)
    inside = [visited for visited in through.visited if visited.position < len(text)]
    assert sum(len(visited.logs) for visited in inside) == 36_608
    assert len(through.visited) - len(inside) == 176
    members = covering(text).top(10**6)
    assert len({member.token_ids for member in members}) == len(members) == 36_608
    assert all(member.raw.startswith(text) for member in members)
    assert sum(member.raw == text for member in members) == 176
    total = math.fsum(math.exp(member.logprob) for member in members)
    assert total == approx(math.exp(through.prefix_logprob().lower), rel=1e-9)
    assert len(covering(b"Hello, world", exactly=True).top(10**6)) == 352
