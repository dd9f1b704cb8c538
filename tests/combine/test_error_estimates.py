"""What a combination says of its error, against members that are off by that much."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from charwise import CharLM, combine
from charwise.combine import Pool
from charwise.tokens.vocabulary import Vocabulary
from models import examples, random_lm

RULES = [
    Pool("mixture", (0.3, 0.7)),
    Pool("product", (0.5, 0.5)),
    Pool("product", (1.0, 1.0)),
    Pool("product", (1.5, -0.5)),
    Pool("product", (1.0, -1.0), plausibility=0.1),
    Pool("minimum", (1.0, 1.0)),
    Pool("maximum", (1.0, 1.0)),
]


def combined(rule: Pool, rows: np.ndarray, evidence: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.exp(rule.row(np.log(rows), evidence))


@given(st.sampled_from(RULES), st.integers(0, 2**30), st.sampled_from([1e-4, 0.01, 0.1]))
@examples(200)
def test_one_byte_that_is_off_is_covered(rule: Pool, seed: int, error: float) -> None:
    """Whichever byte has more in truth, by that much: the distribution is not further off."""
    rng = np.random.default_rng(seed)
    rows = rng.dirichlet(np.full(257, 0.05), size=2) + 1e-9
    rows /= rows.sum(axis=1, keepdims=True)
    before = np.log(rule.weights) if rule.kind == "mixture" else np.zeros(2)
    before += rng.normal(size=2)
    said = rule.next_error(np.log(rows), before, np.array([[error, 0.0], [0.0, 0.0]]))
    found = combined(rule, rows, before)
    for code in [*rng.integers(257, size=20), rows[0].argmax(), rows[1].argmax(), found.argmax()]:
        true = rows.copy()
        true[0] *= 1 - error
        true[0, code] += error
        apart = 0.5 * np.abs(combined(rule, true, before) - found).sum()
        # The greatest and the least also fall elsewhere, by what the others give up.
        slack = error if rule.kind in ("minimum", "maximum") else 1e-9
        if rule.plausibility:
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
    rule = Pool("mixture", (0.5, 0.5))
    said = rule.next_error(np.log(rows), before, np.stack([np.zeros(2), prefix_errors]))
    found = combined(rule, rows, before)
    for signs in ((1, -1), (-1, 1), (1, 1)):
        apart = 0.5 * np.abs(combined(rule, rows, before + signs * prefix_errors) - found).sum()
        assert apart <= said + 1e-9


def pair(preset: str) -> list[CharLM]:
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
        found.append(CharLM(random_lm(vocabulary, 3, seed, power=2.0), preset=preset))
    return found


def texts(n: int) -> list[str]:
    """So many of 24 letters, the same each time."""
    rng = random.Random(3)
    return ["abcabacabcbabcaabcabbcab", *("".join(rng.choices("abc", k=24)) for _ in range(n - 1))]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixture", "product", "minimum", "maximum", "contrast"])
def test_an_approximate_combination_is_within_what_it_says(name: str) -> None:
    maker = getattr(combine, name)
    settings = {"plausibility": 0.0} if name == "contrast" else {}
    exactly, lm = (
        maker(*pair(preset), **settings) if settings else maker(pair(preset))
        for preset in ("exact", "fast")
    )
    off, stated = list[float](), list[float]()
    for text in texts(8):
        exact, fast = exactly.score(text), lm.score(text)
        assert fast.error is not None
        assert exact.error is not None
        np.testing.assert_allclose(exact.error, 0, atol=1e-12)
        off.append(np.abs(exact.logprobs - fast.logprobs).mean())
        stated.append(fast.error.mean())
        assert stated[-1] > 0
        assert off[-1] <= 4 * stated[-1]  # of one text, an estimate is this near
    assert sum(off) <= sum(stated)
    text = texts(1)[0]
    found, truth = lm.state(text), exactly.state(text).next()
    assert truth.error <= 1e-9
    assert 0.5 * np.abs(found.next().probs - truth.probs).sum() <= 3 * found.error + 1e-6
