"""What a combination says of its error, against members that are off by that much."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from charwise import CharLM, combine
from charwise.combine.rules import (
    Extreme,
    Mixture,
    Product,
    Rule,
    error_of_next,
    errors_of_bytes,
    normalised,
)
from charwise.tokens.vocabulary import Vocabulary
from models import examples, random_lm

RULES: list[Rule] = [
    Mixture((0.3, 0.7)),
    Product((0.5, 0.5)),
    Product((1.0, 1.0)),
    Product((1.5, -0.5)),
    Product((1.0, -1.0), plausibility=0.1),
    Extreme(greatest=False),
    Extreme(greatest=True),
]


def combined(rule: Rule, rows: np.ndarray, before: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return normalised(rule.next(np.log(rows), before, False))[0]


@given(st.sampled_from(RULES), st.integers(0, 2**30), st.sampled_from([1e-4, 0.01, 0.1]))
@examples(200)
def test_one_byte_that_is_off_is_covered(rule: Rule, seed: int, error: float) -> None:
    """Whichever byte has more in truth, by that much: the distribution is not further off."""
    rng = np.random.default_rng(seed)
    rows = rng.dirichlet(np.full(257, 0.05), size=2) + 1e-9
    rows /= rows.sum(axis=1, keepdims=True)
    before = rng.normal(size=2)
    errors, none = np.array([error, 0.0]), np.zeros(2)
    said = error_of_next(rule, np.log(rows), before, False, errors, none)
    found = combined(rule, rows, before)
    for code in [*rng.integers(257, size=20), rows[0].argmax(), rows[1].argmax(), found.argmax()]:
        true = rows.copy()
        true[0] *= 1 - error
        true[0, code] += error
        apart = 0.5 * np.abs(combined(rule, true, before) - found).sum()
        # The greatest and the least also fall elsewhere, by what the others give up.
        slack = error if isinstance(rule, Extreme) else 1e-9
        if isinstance(rule, Product) and rule.plausibility:
            slack = 1.0 if plausible(true) != plausible(rows) else 1e-9
        assert apart <= said + slack


def plausible(rows: np.ndarray) -> set[int]:
    return set(np.flatnonzero(rows[0] >= 0.1 * rows[0].max()).tolist())


@given(st.integers(0, 2**30), st.floats(0.0, 5.0), st.floats(0.0, 5.0))
@examples(100)
def test_weights_of_a_mixture_that_are_off(seed: int, one: float, other: float) -> None:
    rng = np.random.default_rng(seed)
    rows, before = rng.dirichlet(np.full(257, 0.05), size=2), rng.normal(size=2) * 5
    rows = (rows + 1e-12) / (1 + 257e-12)
    prefix_errors = np.array([one, other])
    rule = Mixture((0.5, 0.5))
    said = error_of_next(rule, np.log(rows), before, False, np.zeros(2), prefix_errors)
    found = combined(rule, rows, before)
    for signs in ((1, -1), (-1, 1), (1, 1)):
        apart = 0.5 * np.abs(combined(rule, rows, before + signs * prefix_errors) - found).sum()
        assert apart <= said + 1e-9


def test_no_error_is_none() -> None:
    rows = np.full((2, 257), 1 / 257)
    for rule in RULES:
        assert error_of_next(rule, np.log(rows), np.zeros(2), False, np.zeros(2), np.zeros(2)) == 0


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_of_the_only_plausible_byte_the_error_is_a_number(share: float) -> None:
    """It was NaN where that byte, lowered, was no longer as likely as it had been."""
    rows = np.full((2, 257), 0.1 / 256)
    rows[:, 97] = 0.9
    rule, none = Product((1.0, -1.0), plausibility=share), np.zeros(2)
    said = error_of_next(rule, np.log(rows), none, False, np.array([0.01, 0.01]), none)
    assert said == pytest.approx(0.0, abs=1e-12)  # no change as small makes another one plausible
    more = error_of_next(rule, np.log(rows), none, False, np.array([0.9, 0.0]), none)
    assert more == pytest.approx(1.0, abs=1e-3)


def test_what_only_a_member_of_weight_zero_can_write_has_no_error() -> None:
    found = errors_of_bytes(
        Mixture((1.0, 0.0)),
        np.zeros(1),
        np.array([[0.0, -np.inf], [0.0, -1.0]]),
        np.array([[0.1], [0.1]]),
        np.zeros(2),
    )
    assert found.tolist() == [0.0]


def test_a_sure_byte_has_no_error_in_a_product() -> None:
    rule, before = Product((0.5, 0.5)), np.zeros((2, 2))
    errors = np.full((2, 1), 0.1)
    assert errors_of_bytes(rule, np.ones(1), before, errors, np.zeros(2)).tolist() == [0.0]
    assert errors_of_bytes(rule, np.zeros(1), before, errors, np.zeros(2)) == pytest.approx(0.2)


def pair() -> list[CharLM]:
    """Two models of several thousand ways to read a text, so that something is left out."""
    letters: list[bytes | None] = [bytes([code]) for code in b"abc"]
    found = []
    for seed, more in (
        (1, [b"ab", b"bc", b"ca", b"abc"]),
        (2, [b"aa", b"ba", b"cab", b"cb", b"ac"]),
    ):
        tokens = [*letters, *more, None]
        end = len(tokens) - 1
        vocabulary = Vocabulary.from_bytes(tokens, end_ids=[end], bos_ids=[end])
        found.append(CharLM(random_lm(vocabulary, 3, seed, power=2.0), preset="fast"))
    return found


def texts(n: int) -> list[str]:
    """So many of 24 letters, the same each time."""
    rng = random.Random(3)
    return ["abcabacabcbabcaabcabbcab", *("".join(rng.choices("abc", k=24)) for _ in range(n - 1))]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixture", "product", "minimum", "maximum", "contrast"])
def test_an_approximate_combination_is_within_what_it_says(name: str) -> None:
    lms = pair()
    maker = getattr(combine, name)
    lm = maker(*lms, plausibility=0.0) if name == "contrast" else maker(lms)
    off, stated = list[float](), list[float]()
    for text in texts(8):
        exact, fast = lm.score(text, preset="exact"), lm.score(text)
        assert fast.error is not None
        assert exact.error is not None
        assert (exact.error == 0).all()
        off.append(np.abs(exact.logprobs - fast.logprobs).mean())
        stated.append(fast.error.mean())
        assert stated[-1] > 0
        assert off[-1] <= 4 * stated[-1]  # of one text, an estimate is this near
    assert sum(off) <= sum(stated)
    text = texts(1)[0]
    state = lm.state(text)
    exactly = lm.state(text, preset="exact").next()
    assert exactly.error <= 1e-9 or name == "mixture"
    assert 0.5 * np.abs(state.next().probs - exactly.probs).sum() <= state.error + 1e-6


def test_errors_of_whole_texts_count_by_the_weights() -> None:
    lms, text = pair(), "abcabacabcbab"
    first, second = (lm.score(text).error for lm in lms)
    assert first is not None
    assert second is not None
    state = combine.product(lms, weights=[3.0, -2.0]).state("").by_the_global_rule()
    found = state.choose([text])
    assert found.error[0] == pytest.approx(3 * first.sum() + 2 * second.sum())
    assert found.error[0] > 0
