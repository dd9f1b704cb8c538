"""Settings: the width, the threshold, the tolerance, and limits."""

from __future__ import annotations

import inspect
import math

import pytest

import charwise
from charwise import Effort, Limits
from charwise.cli import complete, demo, infill, next_and_cover
from charwise.cli.score import score as score_command
from charwise.errors import SearchLimitError, SettingError
from charwise.scoring.effort import PRESETS, effort_of


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16.0, 32])
def test_one_number_gives_the_other(width: int):
    effort = Effort(width)
    assert effort.threshold == pytest.approx(min(1.0, 0.32 / width**2))
    assert not effort.exact
    assert effort == Effort(width, effort.threshold)
    assert len({effort, Effort(width, tolerance=0.1)}) == 2


def test_presets_are_names():
    assert [PRESETS[name].width for name in ("fast", "default", "accurate")] == [4, 8, 16]
    assert effort_of("default") == Effort() == charwise.load().effort
    assert PRESETS["exact"].exact
    assert repr(charwise.load(tolerance=0.01)).endswith("tolerance=0.01)")


def test_what_takes_a_preset_takes_a_tolerance():
    lm = charwise.load()
    one = ("state", "next", "next_chars", "prefix_logprob", "logprob", "score", "complete")
    asks = {name: (getattr(lm, name), ["import os"]) for name in one}
    asks["choose"] = lm.choose, ["import ", ["os", "re"]]
    asks["infill"] = lm.infill, ["import o", "\n"]
    asks["score_infill"] = lm.score_infill, ["import ", "os", "\n"]
    for ask, given in asks.values():
        ask(*given, preset="fast")
        ask(*given, tolerance=0.1)
        with pytest.raises(SettingError, match="give one of them"):
            ask(*given, preset="fast", tolerance=0.1)
        with pytest.raises(TypeError, match="presett"):
            ask(*given, presett="fast")
    for command in (
        complete.complete,
        demo.demo,
        infill.infill,
        next_and_cover.next_bytes,
        score_command,
    ):
        assert {"preset", "tolerance"} <= set(inspect.signature(command).parameters)


# ---- what limits do -----------------------------------------------------------------------------

TEXT = "The frobnicator zumquandles: x = [i**2 for i in range(10) if i % 3]\n" * 4


def test_limits_end_the_work_and_the_error_says_so():
    free = charwise.load().score(TEXT, preset="accurate")
    for limits in (Limits(calls=1), Limits(contexts=120), Limits(memory=2**21)):
        score = charwise.load(limits=limits).score(TEXT, preset="accurate")
        assert math.isfinite(score.logprobs.sum())
        assert score.contexts < free.contexts
        assert score.calls <= limits.calls + 1  # that of the canonical tokens
        # Fewer contexts: more is on loan, and the stated error is larger.
        assert score.error.sum() > free.error.sum()


def test_limits_hold_for_states_too():
    free = charwise.load().state(TEXT)
    state = charwise.load(limits=Limits(calls=1)).state(TEXT)
    assert state.next().limited
    assert not free.next().limited


def test_an_exact_sum_names_the_limit_that_it_met():
    for limits, name in ((Limits(calls=1), "1 model calls"), (Limits(memory=1), "1 bytes")):
        with pytest.raises(SearchLimitError, match=name):
            charwise.load(limits=limits).score("naïve zz", preset="exact")


def test_memory_bounds_the_contexts_of_a_call():
    """The numbers are the same; only the calls differ."""
    whole = charwise.load().score(TEXT)
    width = charwise.load().vocabulary.width
    cut = charwise.load(limits=Limits(memory=32 * 4 * width * 20))
    score = cut.score(TEXT)
    assert score.calls > whole.calls
    assert score.contexts <= whole.contexts
