"""Settings: the number of rounds, the tolerance, and the bounds on memory."""

from __future__ import annotations

import inspect
import math
from itertools import pairwise

import numpy as np
import pytest

import charwise
import charwise.scoring.rounds
from charwise import Effort
from charwise.cli import side_by_side
from charwise.cli.inspect import next_bytes
from charwise.cli.score import score as score_command
from charwise.errors import SettingError
from charwise.scoring.effort import MOST_ROUNDS, PRESETS, effort_of

TEXT = "The frobnicator zumquandles: x = [i**2 for i in range(10) if i % 3]\n" * 4


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
    for command in (
        side_by_side.complete,
        side_by_side.demo,
        side_by_side.infill,
        next_bytes,
        score_command,
    ):
        assert {"preset", "tolerance"} <= set(inspect.signature(command).parameters)


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
