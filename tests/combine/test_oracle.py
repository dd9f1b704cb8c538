"""Every rule against its definition, on random models with different tokens."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from charwise import combine
from charwise.errors import ZeroProbabilityError
from models import examples
from teams import END, Oracle, asked, oracles

CLOSE = {"rtol": 1e-9, "atol": 1e-250}


def same(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, **CLOSE)


@given(asked())
@examples(250)
def test_the_next_byte(given_: tuple[Oracle, bytes]) -> None:
    oracle, text = given_
    alive = oracle.f(oracle.prefixes(text)) > 0
    expected = oracle.next(text) if alive else None
    if expected is None:
        with pytest.raises(ZeroProbabilityError):
            oracle.lm.next(text)
        return
    found = oracle.lm.next(text)
    same(found.probs, expected)
    assert found.error < 1e-12


@given(asked(), st.integers(0, 5))
@examples(250)
def test_a_text_is_scored(given_: tuple[Oracle, bytes], cut: int) -> None:
    oracle, whole = given_
    context, text = whole[:cut], whole[cut:]
    assume(oracle.f(oracle.prefixes(context)) > 0)
    expected = oracle.logprobs(text, context)
    if expected and expected[-1] == -math.inf:
        with pytest.raises(ZeroProbabilityError):
            oracle.lm.score(text, context=context)
        return
    after = oracle.next(whole)
    score = oracle.lm.score(text, context=context, end=True, entropy="byte")
    np.testing.assert_allclose(score.logprobs, expected, rtol=0, atol=1e-9)
    assert score.raw == text
    end = 0.0 if after is None else after[END]
    assert score.end_logprob is not None
    assert math.exp(score.end_logprob) == pytest.approx(end, rel=1e-9, abs=1e-250)
    for at in range(len(text)):
        row = oracle.next(context + text[:at])
        assert row is not None
        seen = row[row > 0]
        assert score.entropies is not None
        assert score.entropies[at] == pytest.approx(-(seen * np.log2(seen)).sum(), abs=1e-9)
    plain = oracle.lm.score(text, context=context)
    np.testing.assert_allclose(plain.logprobs, score.logprobs, rtol=0, atol=1e-9)
    np.testing.assert_allclose(plain.error, 0.0, atol=1e-12)


@given(asked(names=("mixture",)))
@examples(150)
def test_a_mixture_is_one_of_strings(given_: tuple[Oracle, bytes]) -> None:
    oracle, text = given_
    expected = oracle.f(oracle.prefixes(text))
    assume(expected > 0)
    assert math.exp(oracle.lm.prefix_logprob(text)) == pytest.approx(expected, rel=1e-9)
    string = oracle.f(oracle.prefixes(text, string=True))
    assert math.exp(oracle.lm.logprob(text)) == pytest.approx(string, rel=1e-9, abs=1e-250)
    weights = np.array(oracle.weights) / sum(oracle.weights)
    posterior = weights * oracle.prefixes(text) / expected
    np.testing.assert_allclose(combine.shares(oracle.lm, text), posterior, rtol=1e-9, atol=1e-12)
    # Never worse than the best member by more than what its weight costs.
    best = max(
        p and math.log(p) + math.log(w)
        for w, p in zip(weights, oracle.prefixes(text), strict=True)
        if p > 0
    )
    assert oracle.lm.prefix_logprob(text) >= best - 1e-9


@given(asked(longest=6), st.integers(0, 6), st.integers(0, 6), st.booleans())
@examples(200)
def test_typing_and_deleting_is_building_at_once(
    given_: tuple[Oracle, bytes], cut: int, back: int, at_once: bool
) -> None:
    oracle, text = given_
    assume(all(oracle.next(text[:at]) is not None for at in range(len(text) + 1)))
    assume(not oracle.logprobs(text) or oracle.logprobs(text)[-1] > -math.inf)
    lm = oracle.lm
    state = lm.state(text[:cut])
    rest = text[cut:]
    if at_once:
        state = state._continued(rest) if rest else state
    else:
        for byte in rest:
            state = state + bytes([byte])
    same(state.next().probs, oracle.next(text))
    shorter = state.without_bytes(min(back, len(text)))
    left = text[: len(text) - min(back, len(text))]
    assert shorter.raw == left
    same(shorter.next().probs, oracle.next(left))
    if len(rest) <= 4:
        assert (shorter + text[len(left) :]).raw == text


@given(oracles(zeros=(0.0,)), st.integers(0, 3), st.booleans())
@examples(120)
def test_choices(oracle: Oracle, size: int, ended: bool) -> None:
    letters = sorted(set(b"".join(oracle.models[0].index.sorted)))
    choices = [bytes([one, other]) for one in letters for other in letters][: size + 1]
    prompt = bytes(letters[:1])
    logs = []
    for choice in choices:
        steps = oracle.logprobs(choice, prompt)
        total = sum(steps) if len(steps) == len(choice) else -math.inf
        if ended and total > -math.inf:
            row = oracle.next(prompt + choice)
            p = 0.0 if row is None else float(row[END])
            total = total + math.log(p) if p > 0 else -math.inf
        logs.append(total)
    if oracle.next(prompt) is None or oracle.f(oracle.prefixes(prompt)) == 0:
        return
    if max(logs) == -math.inf:
        with pytest.raises(ZeroProbabilityError):
            oracle.lm.choose(prompt, choices, ended=ended)
        return
    chosen = oracle.lm.choose(prompt, choices, ended=ended)
    np.testing.assert_allclose(np.exp(chosen.logprobs), np.exp(logs), **CLOSE)
