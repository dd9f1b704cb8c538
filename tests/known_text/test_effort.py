"""What is worth an evaluation: the rule, and what it is for."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import charwise.known_text.candidates
import charwise.known_text.effort
import charwise.known_text.lattice
from charwise import CharLM, Effort
from charwise.coverings.reference import next_character_probability, prefix_probability
from charwise.errors import EmptyBeamError, SettingError
from charwise.known_text.calls import evaluate
from charwise.known_text.effort import (
    HINDSIGHT,
    MEMORY,
    NATS_A_BYTE,
    PRESETS,
    Tail,
    agreement,
    at_cursor,
    effort_of,
    for_tolerance,
    hindsight,
    tail_after,
)
from charwise.known_text.ranges import KnownText
from charwise.known_text.rounds import Rounds
from models import Case, Model, cases, examples, table
from near import approx

logs = st.floats(-50, 0) | st.just(-math.inf)


def tail(tokens: list[int]) -> Tail:
    made: Tail = ()
    for token in tokens:
        made = tail_after(token, made)
    return made


@given(st.lists(logs, max_size=12))
def test_hindsight_is_its_definition(values: list[float]):
    expected = []
    for t, here in enumerate(values):
        rises = [
            here - later - ahead * NATS_A_BYTE
            for ahead, later in enumerate(values[t + 1 : t + 1 + HINDSIGHT], start=1)
            if math.isfinite(later)
        ]
        expected.append(math.exp(max([0.0, *rises])))
    assert hindsight(np.array(values)) == approx(expected)


@given(st.lists(st.integers(0, 1), max_size=20), st.lists(st.integers(0, 1), max_size=20))
def test_agreement_counts_equal_last_tokens(one: list[int], other: list[int]):
    equal = 0
    while equal < min(len(one), len(other)) and one[-1 - equal] == other[-1 - equal]:
        equal += 1
    assert agreement(tail(one), tail(other)) == min(equal, MEMORY)


def garden_path() -> Model:
    """After [o], which has little mass, "be" is likely; [ob], canonical, has hardly any."""
    tokens = [b"o", b"ob", b"oc", b"be", b"e", b"x"]
    rows = {(id,): [1 / 7] * 7 for id in range(1, 6)}
    rows[6,] = [1e-3, 1e-9, 0.9 - 1e-9, 1e-3, 1e-3, 0.096, 1e-3]
    rows[0,] = [0.01, 0.01, 0.01, 0.9, 0.01, 0.05, 0.01]
    return table(tokens, rows, order=2)


def test_a_surprise_brings_back_what_was_too_light(monkeypatch):
    model, text = garden_path(), b"obe"
    assert model.vocabulary.encode(text) == [1, 4]
    truth = prefix_probability(text, model.p, model.vocabulary)
    lm = CharLM(model.lm, preset=Effort(theta=1e-2, gamma=0.5))
    assert lm.score(text).logprobs.sum() == approx(math.log(truth), abs=1e-2)
    assert lm.prefix_logprob(text) == approx(math.log(truth), abs=1e-2)
    monkeypatch.setattr(charwise.known_text.effort, "NATS_A_BYTE", 100.0)
    assert lm.score(text).logprobs.sum() < math.log(truth) - 5


def positions_without_context(model: Model, text: bytes, effort: Effort) -> list[int]:
    """Where contexts of the text end, but none is evaluated."""
    rounds = Rounds(
        model.evaluated(),
        0,
        KnownText.of(text, model.index),
        model.vocabulary.encode_beginning(text),
        effort,
    )
    lattice = rounds.run()
    return [t for t in range(len(text)) if lattice.missing[t] > 0 and not lattice.at[t]]


@given(cases())
@examples(300)
def test_every_position_gets_a_first_context(case: Case):
    """However little is lent or spent elsewhere."""
    model, text = case.model, case.text
    if not text or prefix_probability(text, model.p, model.vocabulary) == 0:
        return
    assert not positions_without_context(model, text, Effort(0.5, 0.5, first=0.0))


def test_a_first_context_shows_bytes_that_no_other_does():
    """Without it, what follows "o" other than in [ob] and [oc] has no probability at all."""
    model = garden_path()
    text = b"oc"
    assert positions_without_context(model, text, Effort(0.1, 0.5)) == [1]
    assert positions_without_context(model, text, Effort(0.1, 0.5, first=1e-4)) == []
    assert next_character_probability(b"o", model.p, model.vocabulary)[ord("x")] > 0


def test_a_smaller_theta_evaluates_no_less():
    model, text = garden_path(), b"obeobex"
    lm = CharLM(model.lm)
    contexts = [
        lm.score(text, preset=Effort(theta, 0.5)).contexts for theta in (0.5, 1e-2, 1e-4, 0.0)
    ]
    assert all(few <= many for few, many in pairwise(contexts))
    assert contexts[0] < contexts[-1]


def test_what_weighs_little_and_decides_is_kept_by_its_rank():
    """Written a letter at a time, the text gains 2.8 nats a word on the canonical tokens."""
    beginning = [1e-7, 0.0, 0.9, 0.0999999]
    rows = {
        (): beginning,
        (3,): beginning,
        (0,): [0.0, 0.9, 0.0, 0.1],
        (1,): [0.9, 0.0, 0.0, 0.1],
        (2,): [0.0, 0.0, 0.05, 0.95],
    }
    model, text = table([b"a", b"b", b"ab"], rows, order=2), b"ab" * 10
    truth = math.log(prefix_probability(text, model.p, model.vocabulary))
    by_share = CharLM(model.lm, preset=Effort(1e-2, 1.0)).score(text).logprobs.sum()
    by_rank = CharLM(model.lm, preset=Effort(1e-2, 1.0, width=2)).score(text).logprobs.sum()
    assert by_share < truth - 5
    assert by_rank == approx(truth, abs=1e-6)


def test_with_a_tolerance_rank_counts_down_to_a_part_of_theta():
    """Where a context was evaluated; the first at a position has its rank whatever its share."""
    model = table([b"a", b"b", b"ab"], {(): [0.5, 0.2, 0.2, 0.1]}, order=1)
    known = KnownText.of(b"ab", model.index)
    canonical = model.vocabulary.encode_beginning(b"ab")
    for tolerance, least in ((None, 0.0), (0.1, 0.05 * charwise.known_text.candidates._RANKED)):
        effort = Effort(0.05, 0.1, tolerance=tolerance, width=100)
        rounds = Rounds(model.evaluated(), 0, known, canonical, effort, through=True)
        rounds.lattice.effort = effort
        rounds.lattice.sum(stop=3)
        rounds.candidates.wanted(stop=3)
        there = [bool(here) for here in rounds.lattice.at]
        assert there == [True, False, False]
        assert rounds.candidates.floor[0] == approx(max(least, 1e-9))
        assert rounds.candidates.floor[1] == approx(1e-9)


@given(cases(), st.integers(1, 4))
@examples(200)
def test_floors_are_those_of_a_pass_over_all(case: Case, width: int):
    """They are set from where a pass started again; what is before has not changed."""
    model, text = case.model, case.text
    if not text or prefix_probability(text, model.p, model.vocabulary) == 0:
        return
    known = KnownText.of(text, model.index)
    canonical = model.vocabulary.encode_beginning(text)
    rounds = Rounds(model.evaluated(), 0, known, canonical, Effort(0.3, 0.5, width=width))
    lattice, candidates = rounds.lattice, rounds.candidates
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(charwise.known_text.lattice, "_KEPT", 1)
        while branches := rounds.wants():
            found = candidates.floor.copy()
            lattice.renewed = 0
            candidates.rank(min(len(text) + 1, lattice._stop))
            assert (candidates.floor == found).all()
            evaluate([(rounds, branches)])


@given(cases())
@examples(200)
def test_a_width_makes_sums_no_smaller(case: Case):
    model, text = case.model, case.text
    truth = prefix_probability(text, model.p, model.vocabulary)
    if truth == 0:
        return
    found = []
    for width in (0, 1, 3, 10_000):
        try:
            score = CharLM(model.lm, preset=Effort(0.2, 1.0, width=width)).score(text)
        except EmptyBeamError:
            found.append(0.0)
        else:
            found.append(math.exp(score.logprobs.sum()))
    assert all(some <= truth * (1 + 1e-9) for some in found)
    assert found[-1] == approx(truth, rel=1e-6)


def test_the_cursor_has_tolerances_of_its_own():
    assert at_cursor(PRESETS["default"]).tolerance == 0.02
    assert at_cursor(PRESETS["exact"]) == PRESETS["exact"]
    assert at_cursor(for_tolerance(0.1)).tolerance == 0.1  # what is asked for, preset or not
    effort = at_cursor(for_tolerance(0.003))
    assert (effort.tolerance, effort.width) == (0.003, 0)
    assert at_cursor(effort) == effort
    with pytest.raises(SettingError, match="width"):
        effort_of(Effort(0.1, 0.1, width=-1))
    with pytest.raises(SettingError, match="tolerance"):
        effort_of(Effort(0.1, 0.1, variation=0.0))
