"""Tokenizations drawn at random: what they add up to on average is →p(σ)."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from charwise.coverings.importance import POWERS, log_weights, rest_by_position, ways
from charwise.coverings.reference import enum_cover, prefix_probability
from charwise.surprisal.audit import mean_weight
from models import Case, Model, cases, examples, random_lm, table, two_ways

Tokens = tuple[int, ...]


def chances(model: Model, text: bytes) -> dict[Tokens, float]:
    """How likely each way to spell a text is drawn, named by its tokens but the last.

    Written anew from what the module says, by recursion.
    """
    evaluated = model.evaluated()
    guess = rest_by_position(evaluated, 0, text, None)
    found: dict[Tokens, float] = {}

    def go(tokens: Tokens, node: int, at: int, so_far: list[float]) -> None:
        here = ways(evaluated, node, text, at, last=False)
        good = [math.exp(p) * math.exp(guess[end]) for _, end, p in zip(*here, strict=True)]
        if not any(good):
            return
        for token, end, value in zip(here.tokens.tolist(), here.ends.tolist(), good, strict=True):
            after = [
                chance * (value**power / sum(other**power for other in good if other > 0))
                for chance, power in zip(so_far, POWERS, strict=True)
            ]
            if token < 0:
                found[tokens] = sum(after) / len(POWERS)
            elif value > 0:
                go((*tokens, token), evaluated.extend([(node, token)])[0], end, after)

    go((), 0, 0, [1.0] * len(POWERS))
    return found


def masses(case: Case) -> Counter[Tokens]:
    """The oracle's members by their tokens but the last: what a draw that ends so stands for."""
    found: Counter[Tokens] = Counter()
    for member in enum_cover(case.text, case.model.p, case.model.vocabulary):
        found[member.tokens[:-1]] += member.p
    return found


@given(cases(), st.integers(0, 2**32 - 1))
@examples(200)
def test_the_expectation_is_the_oracle(case: Case, seed: int):
    """Every member with mass can be drawn; each draw weighs p / q of what it stands for."""
    truth = prefix_probability(case.text, case.model.p, case.model.vocabulary)
    if not case.text or truth == 0:
        return
    q, p = chances(case.model, case.text), masses(case)
    assert {tokens for tokens in p if p[tokens] > 0} <= {tokens for tokens in q if q[tokens] > 0}
    assert sum(q.values()) <= 1 + 1e-9  # the rest are dead ends, which weigh nothing
    possible = np.array([p[tokens] / q[tokens] for tokens in q if q[tokens] > 0 and p[tokens] > 0])
    drawn = np.exp(
        log_weights(case.model.evaluated(), 0, case.text, 8, np.random.default_rng(seed))
    )
    for weight in drawn[drawn > 0]:
        assert np.isclose(possible, weight, rtol=1e-9, atol=0).any()


@given(cases(), st.integers(0, 2**32 - 1))
@examples(60)
def test_the_mean_of_many_draws_is_near_the_oracle(case: Case, seed: int):
    """Within five standard deviations of the mean, which are known from all members."""
    truth = prefix_probability(case.text, case.model.p, case.model.vocabulary)
    if not case.text or truth == 0:
        return
    q, p, draws = chances(case.model, case.text), masses(case), 600
    second = sum(p[tokens] ** 2 / q[tokens] for tokens in q if p[tokens] > 0)
    spread = math.sqrt(max(0.0, second - truth**2) / draws)
    logs = log_weights(case.model.evaluated(), 0, case.text, draws, np.random.default_rng(seed))
    mean, _, _ = mean_weight(logs)
    assert math.exp(mean) == pytest.approx(truth, rel=1e-9, abs=5 * spread)


def test_z_scores_are_standard():
    """Over 60 seeds of one model: no bias, and the error that is stated is the error that is."""
    text = b"abababab"
    model = two_ways()
    lm = random_lm(model.vocabulary, 3, seed=5, power=3.0)
    model = Model(model.vocabulary, lm)
    truth = prefix_probability(text, model.p, model.vocabulary)
    scores = []
    for seed in range(60):
        logs = log_weights(model.evaluated(), 0, text, 200, np.random.default_rng(seed))
        mean, error, _ = mean_weight(logs)
        scores.append((math.exp(mean) / truth - 1) / error)
    assert abs(np.mean(scores)) < 4 / math.sqrt(60)
    assert 60 * np.var(scores) == pytest.approx(60, abs=4 * math.sqrt(2 * 60))  # χ² of 60


def test_a_split_that_pays_when_it_comes_again_is_found():
    """The first `ab` in two tokens has a hundredth, and is what makes the text likely."""

    def rows(context: Tokens) -> list[float]:
        split = any(pair == (0, 1) for pair in pairwise(context))
        a, b, ab = (0.98, 0.005, 0.005) if split else (0.01, 0.005, 0.975)
        return [0.005, 0.98, 0.005, 0.01] if context[-1:] == (0,) else [a, b, ab, 0.01]

    model = table([b"a", b"b", b"ab"], rows, order=20)
    text = b"ab" + b"ab" * 7
    truth = math.log(prefix_probability(text, model.p, model.vocabulary))
    logs = log_weights(model.evaluated(), 0, text, 400, np.random.default_rng(3))
    mean, error, _ = mean_weight(logs)
    assert abs(mean - truth) < 4 * error < 0.5


def test_longer_contexts_than_the_window_are_no_members():
    """One token before the last: `abab` is [ab] and [ab], as nothing that follows [a] is bab."""
    draw = np.random.default_rng(1)
    drawn = log_weights(two_ways().evaluated(), 0, b"abab", 400, draw, deepest=1)
    assert math.exp(mean_weight(drawn)[0]) == pytest.approx(0.3 * 0.3, rel=1e-3)
    unbounded = log_weights(two_ways().evaluated(), 0, b"abab", 400, draw)
    assert math.exp(mean_weight(unbounded)[0]) > 0.3 * 0.3 * 1.1
