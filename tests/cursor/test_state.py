"""States: stepping, deleting and building at once give the same, and none of it changes them."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import charwise
from charwise import CharLM
from charwise.cursor.distributions import NextBytes
from charwise.cursor.shared_tree import EXACT_TOKENS
from charwise.cursor.state import State
from charwise.errors import LimitError, VocabularyError, ZeroProbabilityError
from models import CLOSE, Case, cases, close_logs, examples, log_of, two_ways

approx = pytest.approx


def same(one: State, other: State) -> None:
    assert one.whole == other.whole
    assert close_logs(one.logprob, other.logprob)
    assert one.next().probs == approx(other.next().probs, **CLOSE)


def is_true(state: State, case: Case) -> None:
    """A state against the oracle."""
    assert close_logs(state.logprob, log_of(case.model.prefix(state.raw)))
    assert state.next().probs == approx(case.model.next(state.raw), **CLOSE)
    assert state.error == 0


@given(cases(largest=200), st.integers(0, 8))
@examples(120)
def test_stepping_is_building_at_once(case: Case, cut: int):
    lm, text = case.model.exact(), case.text
    prompt, rest = text[:cut], text[cut:]
    try:
        state = lm.state(prompt)
    except (ZeroProbabilityError, VocabularyError):
        assert case.model.prefix(prompt) == 0
        return
    is_true(state, case)
    states = [state]
    for at in range(len(rest)):
        try:
            states.append(states[-1] + rest[at : at + 1])
        except (ZeroProbabilityError, VocabularyError):
            longer = prompt + rest[: at + 1]
            assert case.model.prefix(longer) == 0
            with pytest.raises((ZeroProbabilityError, VocabularyError)):
                _ = state + rest
            return
        is_true(states[-1], case)
    same(state + rest, states[-1])  # in rounds, if it is long
    same(lm.state(text), states[-1])
    for n in range(len(text) + 1):  # back inside what was stepped, then into the prompt
        shorter = states[-1].without_bytes(n)
        is_true(shorter, case)
        same(shorter, lm.state(text[: len(text) - n]))
        if n <= len(rest):
            assert shorter is states[len(rest) - n]
    same(states[-1].without_bytes(len(text)) + text, states[-1])


def test_deleting_evaluates_nothing():
    lm = two_ways().exact()
    state = lm.state("abab") + "a" + "b"
    tree = state.shared.tree
    before = tree.contexts
    for n in range(7):
        state.without_bytes(n).next()
    assert tree.contexts == before


@pytest.mark.parametrize("text", ["naïve", "日本語", "🙂é", "e\u0301"])
def test_a_character_is_deleted_whole(text: str):
    state = charwise.load().state("# ") + text
    for size in range(len(text), -1, -1):
        assert (state - (len(text) - size)).text == "# " + text[:size]
    half = state.without_bytes(1)
    assert (half - 1).raw == (state - 1).raw if len(text[-1].encode()) > 1 else half.raw


def test_what_cannot_be_added():
    state = two_ways().exact().state("ab")
    for more in ("z", "az", "abababz"):
        with pytest.raises((ZeroProbabilityError, VocabularyError), match="z"):
            _ = state + more
    with pytest.raises(VocabularyError, match="surrogate"):
        _ = state + "\ud800"
    assert state.raw == b"ab"
    assert (state + "").raw == (state - 0).raw == b"ab"


def test_canonical_before_the_last_tokens():
    lm = CharLM(two_ways().lm, preset="default")
    text = b"ab" * 30
    tokens = len(lm.vocabulary.encode(text))
    state = lm.state(text)
    assert tokens == 30
    assert state.exact_from == 2 * (tokens - EXACT_TOKENS)
    assert state.raw == text
    # What is before it is conditioned on: only what comes after counts for logprob.
    after = lm.state(text[state.exact_from :])
    assert state.logprob == approx(after.logprob, rel=1e-12)
    assert state.next().probs == approx(after.next().probs, rel=1e-12)
    # Deleting further back than that begins anew.
    short = state - (len(text) - 4)
    assert short.exact_from == 0
    same(short, lm.state(text[:4]))


@pytest.mark.parametrize("window", [3, 4, 8, 12, 20, 28, 64])
def test_a_state_that_grows_beyond_the_window_takes_what_fits(window: int):
    """A model without memory forgets the rest, so that a typed state stays near the truth."""
    text = b"abba" * 60
    lm = CharLM(two_ways().windowed(window).lm)
    state = lm.state(text[:40]) if window < 20 else lm.state("")
    for byte in text[len(state.raw) :]:
        state = state + bytes([byte])
        assert state.shared.length(0) < window
    assert state.raw == text
    assert state.exact_from > 0
    assert state.next().probs == approx(two_ways().exact().next(text[-8:]).probs, abs=5e-3)
    back = state - 100
    assert back.raw == text[:-100]
    assert back.next().probs.sum() == approx(1)
    with pytest.raises(LimitError):
        lm.state([3] * window + ["a"])


def test_a_distribution_is_asked_by_byte():
    nxt = two_ways().exact().next("")
    assert nxt["a"] == nxt[b"a"] == nxt[97] == approx(0.7)
    assert nxt["<eos>"] == nxt.eos == nxt[256] == approx(0.1)
    assert nxt.logprobs[[97, 0]] == approx([math.log(0.7), -math.inf])
    assert math.copysign(1.0, NextBytes(np.eye(257)[97]).entropy) == 1.0


@pytest.mark.parametrize("unit", ["x = 1\n", "some words "])
def test_a_text_longer_than_the_window_begins_at_a_line_else_at_a_word(unit: str):
    text = unit * (2048 // len(unit)) * 8 + "import nump"
    state = charwise.load().state(text)
    cut = state.shared.left_out
    assert 0 < cut < len(text)
    assert text[cut - 1] == "\n" if "\n" in unit else text[cut] == " "


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ngram", "transformers"])
def test_two_threads_get_the_answers_of_one(engine: str):
    if engine == "ngram":
        lm, texts = two_ways().exact(), ["ab", "ba", "aab", "b", "a", "abab"]
    else:
        lm, texts = charwise.load(), ["y as np", "y\n", "ing(", "xx", "(self)", ".a"]
    prompt = "" if engine == "ngram" else "import nump"

    def ask(state: State, text: str) -> list[NextBytes]:
        out = []
        for character in text:
            state = state + character
            out.append(state.next())
            lm.complete(prompt, max_new_bytes=3)
            state.complete(max_new_bytes=4)
        return out

    fresh = [ask(lm.state(prompt), text) for text in texts]
    shared = lm.state(prompt)
    with ThreadPoolExecutor(4) as pool:
        result = list(pool.map(lambda text: ask(shared, text), texts * 2))
    for one, other in zip(fresh * 2, result, strict=True):
        for expected, nxt in zip(one, other, strict=True):
            # Batches of other shapes round differently in float32.
            close = 1e-12 if engine == "ngram" else 2e-4
            assert np.abs(nxt.probs - expected.probs).max() <= close


@pytest.mark.parametrize("kind", ["ngram", "transformers"])
def test_500_completions_leave_nothing_behind(kind: str):
    """A tree holds as much as after the first, and each asks the model for as much."""
    lm = CharLM(two_ways().lm) if kind == "ngram" else charwise.load()
    state = lm.state("ab" if kind == "ngram" else "import nump")
    tree, held, contexts = state.shared.tree, set(), list[int]()
    for seed in range(500 if kind == "ngram" else 12):
        before = tree.contexts
        state.complete(max_new_bytes=12, seed=seed)
        held.add((len(tree.live), tree.nbytes, len(tree._parent), len(tree._released)))
        contexts.append(tree.contexts - before)
    assert len(held) <= 2  # the first may have evaluated what a state has not yet
    assert max(contexts[1:]) <= contexts[0]


@pytest.mark.parametrize(
    "text", ["import os", "x = 1", "def f(s", "class Fo", "self._va", "ha ha ha ha "]
)
def test_the_stated_error_of_a_next_byte_is_a_third_of_the_true_one(text: str) -> None:
    lm = charwise.load("embedded", dtype="float64")
    exact = lm.next(text, preset="exact").probs
    for preset in ("fast", "default", "accurate"):
        following = lm.next(text, preset=preset)
        assert 3 * following.error >= np.abs(following.probs - exact).sum() / 2
