"""States that sum over all tokenizations of a long text: `exact_from`."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import charwise
import charwise.cursor.shared_tree
import charwise.scoring.refinement
from charwise import CharLM, Vocabulary
from charwise.coverings.reference import next_character_probability, prefix_probability
from charwise.engines.ngram import NgramLM
from charwise.errors import SettingError, ZeroProbabilityError
from models import CLOSE, Case, cases, close_logs, examples, log_of, table
from near import approx

#: The model would rather split "bound" in two here, both times; that begins over 12 tokens back.
BOUND = (
    "        bound1 = Fraction(p0, q0)\n        bound2 = Fraction(p1, q1)\n"
    "        if abs(bound2 - self) <= abs("
)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text of over one token is a long one, and is taken a token at a time."""
    shorten(monkeypatch)


def shorten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(charwise.cursor.shared_tree, "WHOLE_TOKENS", 1)
    patch.setattr(charwise.cursor.shared_tree, "EXACT_TOKENS", 1)
    patch.setattr(charwise.scoring.refinement, "PORTION", 1)
    patch.setattr(charwise.scoring.refinement, "LOOKAHEAD", 1)


@given(cases(possible=True), st.integers(0, 8))
@examples(200)
def test_all_of_a_text_is_summed(case: Case, cut: int):
    """Against the oracle, however it is cut into a prompt and what is typed."""
    model, text = case.model, case.text
    lm = CharLM(model.lm, preset="exact")
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        state = lm.state(text[:cut], exact_from=0) + text[cut:]
        truth = next_character_probability(text, model.p, model.vocabulary)
        assert state.next().probs == approx(truth, **CLOSE)
        assert close_logs(
            state.logprob, log_of(prefix_probability(text, model.p, model.vocabulary))
        )
        assert (state.exact_from, state.missing) == (0, 0)


@given(cases())
@examples(100)
def test_a_later_offset_conditions_on_the_tokens_before_it(case: Case):
    model, text = case.model, case.text
    assume(len(text) > 1 and prefix_probability(text, model.p, model.vocabulary) > 0)
    lm = CharLM(model.lm, preset="exact")
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        for offset in range(len(text)):
            try:
                state = lm.state(text, exact_from=offset)
            except charwise.errors.ZeroProbabilityError:
                continue  # after these tokens nothing spells the rest
            assert state.exact_from <= offset
            other = lm.state([*state.shared.given, text[state.exact_from :]], exact_from=0)
            assert other.next().probs == approx(state.next().probs, **CLOSE)
            assert close_logs(other.logprob, state.logprob)


def test_a_word_that_was_split_otherwise_far_back():
    lm = charwise.load()
    truth = lm.score(BOUND + "x", preset="accurate", entropy="char").distributions
    assert truth is not None
    usual, summed = lm.next(BOUND), lm.next(BOUND, exact_from=0)
    assert np.abs(usual.probs - truth[-1]).sum() / 2 > 0.3  # its error says 0.003
    assert np.abs(summed.probs - truth[-1]).sum() / 2 < 0.005
    assert summed.error < 0.1
    chars = lm.next_chars(BOUND, exact_from=0)
    assert dict(chars.top(3)).keys() == {chr(b) for b in np.argsort(-truth[-1])[:3]}


def test_what_is_typed_and_deleted():
    lm = charwise.load()
    state = lm.state(BOUND, exact_from=0)
    typed = state + "b" + "ound1 -"
    at_once = lm.state(BOUND + "bound1 -", exact_from=0)
    off = np.abs(typed.next().probs - at_once.next().probs).sum() / 2
    assert off <= typed.error + at_once.error + 1e-3
    assert typed.exact_from == at_once.exact_from == 0
    assert (typed - 8).next().probs == approx(state.next().probs)
    fewer = state - 3  # of the prompt: made again
    assert fewer.text == BOUND[:-3]
    assert fewer.exact_from == 0
    again = lm.state(BOUND[:-3], exact_from=0)
    assert fewer.next().probs == approx(again.next().probs, abs=1e-5)


def test_it_is_a_state_like_others():
    lm = charwise.load()
    state = lm.state(BOUND, exact_from=0)
    elsewhere = pickle.loads(pickle.dumps(state))
    assert elsewhere.exact_from == 0
    assert elsewhere.next().probs == approx(state.next().probs, abs=1e-5)
    assert copy.copy(state) is state
    [one] = state.complete(max_new_bytes=8, seed=1)
    assert (one.exact_from, len(one.text)) == (0, 8)
    with pytest.raises(SettingError, match="cannot choose"):
        state.choose(["bound1", "bound2"])
    # Of all that was evaluated, little is held.
    state.shared.evaluated.shed()
    assert state.next().probs == approx(elsewhere.next().probs, abs=1e-5)
    tree = state.shared.evaluated.tree
    assert tree.size > 200
    assert state.shared.evaluated.nbytes < 2**26
    assert not state.shared.outgrown(state.bundles)


def test_a_new_sum_leaves_the_states_before_it_alone():
    """Of 25 to 48 tokens, which another state would sum on the same tree."""
    lm = charwise.load()
    state = lm.state(BOUND[:86], exact_from=0)
    assert 24 < len(lm.vocabulary.encode(BOUND[:86])) <= 48
    before = state.next().probs
    stream = state.stream(max_new_bytes=12)
    first = next(stream)
    typed = state
    for character in "ZqZ§Xx":
        typed = typed + character
    typed = typed._anew(typed.whole)
    assert typed.shared is not state.shared
    assert typed.exact_from == 0
    assert first + "".join(stream) == state.complete(max_new_bytes=12)[0].text
    state.shared.evaluated.shed()
    assert state.next().probs == approx(before)
    assert (typed - 6).next().probs == approx(before, abs=1e-2)


def test_an_implied_space_that_is_a_token_of_its_own(short: None):
    tokens = [b" ", b"a", b"b", b" a", b"ab"]
    model = table(tokens, {(): [0.2, 0.2, 0.2, 0.2, 0.1, 0.1]})
    vocabulary = Vocabulary([*tokens, None], end_ids=[5], bos_ids=[5], lead=b" ")
    lm = CharLM(NgramLM(vocabulary, 1, {(): [0.2, 0.2, 0.2, 0.2, 0.1, 0.1]}), preset="exact")
    state = lm.state("abab", exact_from=0)
    assert (state.exact_from, state.shared.given) == (0, [])
    assert state.logprob == approx(lm.prefix_logprob("abab"))
    truth = next_character_probability(b" abab", model.p, model.vocabulary)
    assert state.next().probs == approx(truth, **CLOSE)


def test_special_tokens_come_before_the_offset():
    lm = charwise.load()
    ids = lm.vocabulary.encode("import os\n")
    one = lm.state([*ids, BOUND], exact_from=0)
    assert one.exact_from == 0
    assert one.raw == BOUND.encode()
    truth = lm.score(BOUND + "x", context="import os\n", preset="accurate", entropy="char")
    assert truth.distributions is not None
    assert np.abs(one.next().probs - truth.distributions[-1]).sum() / 2 < 0.01


def test_what_would_need_more_room_than_the_window_has(short: None):
    model = table([b"a", b"b", b"ab"], {(): [0.4, 0.2, 0.3, 0.1]})
    lm = CharLM(NgramLM(model.vocabulary, 1, {(): [0.4, 0.2, 0.3, 0.1]}, window=16))
    state = lm.state("ab" * 20, exact_from=0)
    assert 0 < state.exact_from < 40
    assert state.next().probs[ord("a")] == approx(lm.state("ab").next().probs[ord("a")], abs=0.2)


@pytest.mark.parametrize("offset", [-1, 6, True, 1.5, "0", np.nan])
def test_no_offset_in_the_text(offset: object):
    with pytest.raises(SettingError, match="exact_from"):
        charwise.load().next("hello", exact_from=offset)  # type: ignore[arg-type]


def test_a_short_text_is_summed_as_a_whole_anyway():
    lm = charwise.load()
    assert lm.next("import nump", exact_from=11).probs == approx(lm.next("import nump").probs)


def test_a_prompt_whose_canonical_beginning_is_impossible():
    """After "ab" the model always ends, so all but the last is spelled in two tokens."""
    row = [0.4, 0.4, 0.1, 0.1]
    rows = {(3,): row, (0,): row, (1,): row, (2,): [0, 0, 0, 1]}
    lm = CharLM(table([b"a", b"b", b"ab"], rows, order=2).lm)
    with pytest.raises(ZeroProbabilityError, match="ask with exact_from=0"):
        lm.state("ab" * 40)
    # The last two bytes are "ab" with a share of 0.1 against 0.4².
    ends = (0.1 + 0.4**2 * 0.1) / (0.1 + 0.4**2)
    assert lm.next("ab" * 40, exact_from=0).probs[256] == approx(ends)
