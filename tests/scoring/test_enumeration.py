"""The limit of the exact preset: texts with more token strings than can be evaluated."""

from __future__ import annotations

import math

import pytest

import charwise
import charwise.scoring.rounds
from charwise import CharLM, Effort
from charwise.errors import LimitError, ModelError
from charwise.tables.measure import Measure
from charwise.tables.rows import Place, Stimulus
from models import table

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
    assert [(bad.place.number, "all token strings" in bad.reason) for bad in chunk.bad] == [
        (1, True)
    ]


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
    model = table([b"a", b"b", b"ab"], {(): [0.3, 0.3, 0.3, 0.1]})
    lm = model.exact()
    text = "ab" * 4 + "b" * 800
    score = lm.score(text)
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
