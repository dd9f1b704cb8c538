"""Settings: rounds, the tolerance, the bounds on memory, and the limit of the exact preset."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

import charwise
import charwise.scoring.rounds
from charwise import CharLM, Effort
from charwise.errors import LimitError, ModelError, SettingError
from charwise.scoring.effort import MOST_ROUNDS, PRESETS, effort_of
from charwise.tables.measure import Measure
from charwise.tables.rows import Place, Stimulus
from models import table, two_ways

TEXT = "The frobnicator zumquandles: x = [i**2 for i in range(10) if i % 3]\n" * 2


def test_presets_are_names():
    rounds = [PRESETS[name].rounds for name in ("fast", "default", "accurate", "exact")]
    assert rounds == sorted(rounds)
    assert effort_of("default") == Effort() == charwise.load().effort
    assert PRESETS["exact"].exact
    assert repr(charwise.load(tolerance=0.01)).endswith("preset=Effort(rounds=10, tolerance=0.01))")


@pytest.mark.parametrize("wrong", [{"rounds": 0}, {"rounds": 1.5}, {"tolerance": 0.0}])
def test_what_is_no_effort(wrong: dict[str, float]):
    with pytest.raises(SettingError):
        Effort(**wrong)


def test_the_threshold_falls_from_round_to_round():
    thresholds = [Effort(6).threshold(number) for number in range(1, 7)]
    assert thresholds == sorted(thresholds, reverse=True)
    assert thresholds[-1] < Effort(6).typed_threshold < thresholds[0]
    assert Effort(math.inf).typed_threshold == 0


def test_what_takes_a_preset_takes_a_tolerance():
    lm = charwise.load()
    one = ("state", "next", "next_chars", "prefix_logprob", "logprob", "score", "complete")
    asks = {name: (getattr(lm, name), ["import os"]) for name in one}
    asks["choose"] = lm.choose, ["import ", ["os", "re"]]
    asks["infill"] = lm.infill, ["import o", "\n"]
    asks["score_infill"] = lm.score_infill, ["import ", "os", "\n"]
    for ask, values in asks.values():
        ask(*values, preset="fast")
        ask(*values, tolerance=0.1)
        with pytest.raises(SettingError, match="give one of them"):
            ask(*values, preset="fast", tolerance=0.1)


# ---- what the rounds do -------------------------------------------------------------------------


def test_a_round_is_at_most_one_call():
    lm = charwise.load()
    scores = [lm.score(TEXT, preset=Effort(rounds)) for rounds in (1, 2, 4, 6)]
    assert [score.calls for score in scores] == [2, 3, 5, 7]
    assert all(a.contexts < b.contexts for a, b in pairwise(scores))


def test_a_tolerance_is_reached_or_ten_rounds_are_done():
    lm = charwise.load()
    loose, fine = (lm.score(TEXT, tolerance=tolerance) for tolerance in (0.1, 1e-6))
    assert loose.error.mean() / math.log(2) <= 0.1
    assert loose.calls < fine.calls <= MOST_ROUNDS + 1
    assert fine.error.mean() / math.log(2) <= 1e-6 or fine.calls == MOST_ROUNDS + 1


# ---- bounds -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bound", "value"), [("MOST_CONTEXTS", 120), ("MEMORY", 2**21)])
def test_a_bound_ends_the_work_and_the_error_shows_it(
    monkeypatch: pytest.MonkeyPatch, bound: str, value: int
):
    free = charwise.load().score(TEXT, preset="accurate")
    monkeypatch.setattr(charwise.scoring.rounds, bound, value)
    score = charwise.load().score(TEXT, preset="accurate")
    assert np.isfinite(score.logprobs).all()
    assert score.contexts < free.contexts
    charwise.load().state(TEXT, preset="accurate").next()


# ---- texts with more token strings than can be evaluated ----------------------------------------

LONG = "import numpy as np\nfrom collections import OrderedDict\n"


@pytest.mark.parametrize("ask", ["score", "next", "next_chars", "complete", "prefix_logprob"])
def test_the_exact_preset_refuses_long_text_and_says_what_to_do(ask: str):
    lm = charwise.load(preset="exact")
    with pytest.raises(LimitError, match=r"all token strings of .* preset 'accurate'"):
        getattr(lm, ask)(LONG)
    assert getattr(lm, ask)("import") is not None


def test_a_row_that_is_too_long_for_it_does_not_end_a_table():
    rows = [Stimulus(Place("a.csv", n), text) for n, text in enumerate([b"import", LONG.encode()])]
    chunk = Measure(preset="exact").scored(charwise.load(), rows)
    assert {record["row"] for record in chunk.records} == {0}
    [bad] = chunk.bad
    assert bad.place.number == 1
    assert "all token strings" in bad.reason


def test_what_a_model_rules_out_does_not_count():
    # After "a" nothing spells b: of 2^200 token strings one is possible.
    rows = {(3,): [0.2, 0.1, 0.6, 0.1], (0,): [0.9, 0, 0, 0.1], (1,): [0.2, 0.1, 0.6, 0.1]}
    model = table([b"a", b"b", b"ab"], rows | {(2,): [0.2, 0.1, 0.6, 0.1]}, order=2)
    lm = model.exact()
    assert lm.score("ab" * 200, end=True).logprobs.sum() == pytest.approx(200 * math.log(0.6))


def test_text_of_any_length_is_refused():
    lm = charwise.load()
    for text in (LONG * 30, "a" * 4000):
        with pytest.raises(LimitError, match="sum over all token strings of the"):
            lm.score(text, preset="exact")


def test_a_pack_that_is_too_much_for_one_tree_is_scored_text_by_text(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(charwise.scoring.rounds, "MEMORY", 2**22)
    both = charwise.load().scores(["import", "if x"], preset="exact")
    alone = charwise.load().score("import", preset="exact")
    assert both[0].logprobs == pytest.approx(alone.logprobs, abs=1e-5)


@pytest.mark.slow
def test_a_text_whose_portions_have_few_contexts_each(monkeypatch: pytest.MonkeyPatch):
    """Over 10,000 in all, of which each portion has a part."""
    monkeypatch.setattr(charwise.scoring.rounds, "MOST_CONTEXTS", 5000)
    text = "ab" * 4 + "b" * 800
    score = two_ways().exact().score(text)
    assert score.contexts > 5000
    assert score.logprobs.size == len(text)


def test_a_state_is_as_before_when_what_was_typed_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(charwise.scoring.rounds, "MOST_CONTEXTS", 500)
    state = charwise.load().state("import", preset="exact")
    probs = state.next().probs
    tree = state.shared.tree
    held = tree.size
    with pytest.raises(LimitError):
        state + LONG
    for node in range(held, tree.size):
        with pytest.raises(ModelError, match="dropped"):
            tree.logprobs([node])
    assert (state.next().probs == probs).all()
    assert (state + " ").next().probs == pytest.approx(
        charwise.load().next("import ", preset="exact").probs, abs=1e-6
    )


def test_choices_that_are_refused_leave_nothing_behind():
    state = charwise.load().state("for i in ra", preset="exact")
    held = state.shared.tree.nbytes
    with pytest.raises(LimitError):
        state.choose(["nge(", "ndom.choice(everything_that_there_is)"])
    assert state.shared.tree.nbytes == held
    assert state.choose(["nge(", "ndom."]).top(1)[0][0] == "nge("


def test_a_text_that_no_threshold_of_the_preset_would_reach():
    """Only a share of 1e-14 goes on with c."""
    rows = {(4,): [1e-14, 0, 0, 1 - 1e-14, 0], (0,): [0, 1, 0, 0, 0], (1,): [0, 0, 1, 0, 0]}
    rows |= {(2,): [0, 0, 0, 0, 1], (3,): [0, 0, 0, 0, 1]}
    model = table([b"a", b"b", b"c", b"ab"], rows, order=2)
    lm = CharLM(model.lm, preset=Effort(1))
    assert lm.state("abc").logprob == pytest.approx(math.log(1e-14))
    assert lm.score("abc").logprobs.sum() == pytest.approx(math.log(1e-14))
