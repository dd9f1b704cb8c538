"""Beams that prune at random: their mean is →p(σ), whatever they forget."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from charwise.coverings.bundles import Bundle, next_byte_masses
from charwise.coverings.reference import prefix_probability
from charwise.coverings.stochastic_beam import Draws, _inclusion, _thinned, _walks, log_estimates
from charwise.surprisal.audit import mean_of_logs
from models import CLOSE, Case, Model, cases, examples, random_lm, table, two_ways
from near import approx


def estimates(model: Model, text: bytes, beams: int, k: int, seed: int) -> np.ndarray:
    """`[beams]` estimates of →p(text)."""
    rng = np.random.default_rng(seed)
    return np.exp(log_estimates(model.evaluated(), text, Draws(beams, k, rng)))


@given(cases())
@examples(300)
def test_with_room_for_all_it_is_the_oracle(case: Case):
    truth = prefix_probability(case.text, case.model.p, case.model.vocabulary)
    found = estimates(case.model, case.text, 2, 400, seed=1)
    assert found == approx([truth, truth], **CLOSE)


@given(cases())
@examples(200)
def test_on_the_way_it_knows_what_may_come_next(case: Case):
    model, text, p = case.model, case.text, case.model.p
    evaluated = model.evaluated()
    steps = _walks(evaluated, text, Draws(1, 400, np.random.default_rng(1)))
    for t, [bundles] in zip(range(len(text)), steps, strict=False):
        masses, scale = next_byte_masses(evaluated, bundles)
        for byte in {*text, *b"ab"}:
            truth = prefix_probability(text[:t] + bytes([byte]), p, model.vocabulary)
            assert masses[byte] * math.exp(scale) == approx(truth, **CLOSE)


@given(cases(), st.integers(1, 3), st.integers(0, 2**32 - 1))
@examples(60)
def test_the_mean_of_many_is_near_the_oracle(case: Case, k: int, seed: int):
    """Within five standard errors, estimated from 400 beams, or what rounding leaves."""
    truth = prefix_probability(case.text, case.model.p, case.model.vocabulary)
    found = estimates(case.model, case.text, 400, k, seed)
    error = found.std(ddof=1) / math.sqrt(len(found))
    # What one beam in 400 would see at most half of the time adds to the doubt.
    assert found.mean() == approx(truth, rel=0.05, abs=5 * error + 1e-290)


@pytest.mark.slow
def test_z_scores_are_standard():
    """Over 60 seeds of one model: no bias, and the spread of beams is the error that is."""
    vocabulary = two_ways().vocabulary
    model = Model(vocabulary, random_lm(vocabulary, 3, seed=5, power=3.0))
    text = b"abababababab"
    truth = prefix_probability(text, model.p, vocabulary)
    scores = []
    for seed in range(60):
        found = estimates(model, text, 200, 2, seed)
        scores.append((found.mean() - truth) / (found.std(ddof=1) / math.sqrt(200)))
    assert abs(np.mean(scores)) < 4 / math.sqrt(60)
    assert 60 * np.var(scores) == approx(60, abs=4 * math.sqrt(2 * 60))  # χ² of 60


@given(st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=20), st.integers(1, 19))
@examples(200)
def test_chances_add_up_and_fall_with_size(sizes: list[float], k: int):
    if k >= len(sizes):
        return
    chances = _inclusion(np.array(sizes), k)
    assert chances.sum() == approx(k)
    assert ((chances > 0) & (chances <= 1 + 1e-12)).all()
    uncertain = [(s, c) for s, c in zip(sizes, chances, strict=True) if c < 1 - 1e-9]
    for (size, chance), (other, others) in pairwise(uncertain):
        assert chance / size == approx(others / other)
    largest = max((s for s, _ in uncertain), default=0.0)
    assert all(s >= largest - 1e-12 for s, c in zip(sizes, chances, strict=True) if c > 1 - 1e-9)


def test_each_bundle_stays_as_often_as_its_chance_says():
    """Over 2,000 draws, within five standard deviations; and heavier by what that costs."""
    logs = np.array([-0.5, -3.0, -4.0, -4.0, -6.0, -9.0])
    bundles = [Bundle(node, 0.0, 1, 0, 1, log_p) for node, log_p in enumerate(logs.tolist())]
    chances = _inclusion(np.exp(logs / 2), 3)
    rng, draws = np.random.default_rng(2), 2000
    kept = [bundle for _ in range(draws) for bundle in _thinned(bundles, 3, rng)]
    counts = np.bincount([bundle.node for bundle in kept], minlength=len(logs))
    spread = np.sqrt(draws * chances * (1 - chances))
    assert (np.abs(counts - draws * chances) <= 5 * spread + 1e-9).all()
    for bundle in kept[:50]:
        assert bundle.log_p == approx(logs[bundle.node] - math.log(chances[bundle.node]))
        assert bundle.log_weight == approx(-math.log(chances[bundle.node]))


def test_a_split_that_pays_when_it_comes_again_is_found():
    """The first `ab` in two tokens has a hundredth, and is what makes the text likely."""

    def rows(context: tuple[int, ...]) -> list[float]:
        if context[-1:] == (0,):
            return [0.005, 0.98, 0.005, 0.01]
        split = any(pair == (0, 1) for pair in pairwise(context))
        return [0.98, 0.005, 0.005, 0.01] if split else [0.01, 0.005, 0.5, 0.485]

    model = table([b"a", b"b", b"ab"], rows, order=20)
    text = b"ab" * 8
    truth = math.log(prefix_probability(text, model.p, model.vocabulary))
    mean, error = mean_of_logs(np.log(estimates(model, text, 8, 4, seed=3)))
    assert abs(mean - truth) < 4 * error + 1e-3 < 0.5


def test_longer_contexts_than_the_window_are_no_members():
    """One token before the last: `abab` is [ab] and [ab], as nothing that follows [a] is bab."""
    rng = np.random.default_rng(1)
    found = log_estimates(two_ways().evaluated(), b"abab", Draws(2, 10, rng, deepest=1))
    assert np.exp(found) == approx([0.3 * 0.3] * 2)


def test_what_cannot_be_spelled_has_none():
    found = estimates(two_ways(), b"abz", 2, 4, seed=1)
    assert found.tolist() == [0.0, 0.0]
    assert mean_of_logs(np.log(np.array([0.5, 0.5]))) == (math.log(0.5), 0.0)
