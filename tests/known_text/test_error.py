"""What a score and a state say about their error: against the oracle, and on what provokes it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import charwise
from charwise import CharLM, Effort
from charwise.cli import complete, demo, infill, next_and_cover
from charwise.cli.score import score as score_command
from charwise.coverings.reference import prefix_probability
from charwise.coverings.rows import EvaluatedRows
from charwise.errors import SettingError
from charwise.known_text.calls import evaluate
from charwise.known_text.effort import effort_of, for_tolerance
from charwise.known_text.estimate import byte_errors, faded
from charwise.known_text.lattice import Lattice
from charwise.known_text.ranges import KnownText
from charwise.known_text.repeats import Repeats
from charwise.known_text.respellings import occurrences, respellings
from charwise.known_text.rounds import Rounds
from models import MOST, Case, cases, examples, table

#: log →p of texts that repeat themselves, from `CharLM.covering`, or the widest beams.
REPEATS = {
    "foo " * 8: -22.331,
    "foo " * 7: -21.538,
    "foo_bar " * 7: -35.569,
    "ValueErr " * 7: -43.318,
    "ValueEr" * 4: -38.089,
    "heap " * 7: -23.883,
    "qwxz " * 7: -52.767,
}


# ---- tiny models --------------------------------------------------------------------------------


def test_the_error_of_a_score_is_within_its_tolerance_and_what_it_says():
    """On nineteen of twenty models; no byte of any is off in silence."""
    over, tried = 0, 0

    @given(cases(), st.sampled_from((0.1, 0.01, 0.003)))
    @examples(900)
    def check(case: Case, tolerance: float) -> None:
        nonlocal over, tried
        model, text = case.model, case.text
        if not text or prefix_probability(text, model.p, model.vocabulary) == 0:
            return
        prefixes = [text[:t] for t in range(len(text) + 1)]
        sums = [math.log(prefix_probability(p, model.p, model.vocabulary)) for p in prefixes]
        score = CharLM(model.lm).score(text, tolerance=tolerance)
        off = np.abs(score.logprobs - np.diff(sums))
        assert score.error is not None
        assert (score.error >= 0).all()
        assert not ((off > 1) & (score.error < 0.1)).any()
        over, tried = over + (off.mean() > tolerance * math.log(2)), tried + 1

    check()
    assert tried > min(900, MOST) * 5 / 9
    assert over <= tried / 20


@given(cases())
@examples(200)
def test_the_error_of_the_next_byte_is_what_it_says(case: Case):
    model, text = case.model, case.text
    if prefix_probability(text, model.p, model.vocabulary) == 0:
        return
    exact = CharLM(model.lm, preset="exact").next(text)
    found = CharLM(model.lm, tolerance=0.01).next(text)
    assert exact.error == 0
    assert np.abs(found.probs - exact.probs).sum() / 2 <= found.error + 0.02


# ---- what repeats -------------------------------------------------------------------------------


@pytest.mark.parametrize(("times", "places"), [(2, 1), (3, 1), (4, 2)])
def test_what_repeats_is_tried_at_a_place_or_two_before_all(times: int, places: int):
    """Of what occurs seldom, the way to the second place is paid for if the first is worth it."""
    lm, between = charwise.load(), b" and then something else, "
    text = between.join([b"frobnicate"] * times) + b"."
    known, canonical = KnownText.of(text, lm.index), lm.vocabulary.encode(text)
    evaluated = EvaluatedRows.of(lm.engine, lm.vocabulary.bos_ids)
    rounds = Rounds(evaluated, 0, known, canonical, Effort(0.05, 0.1))
    evaluate([(rounds, rounds.wants())])
    rounds.lattice.sum(len(text) + 1)
    found = respellings(text, canonical, lm.index)
    repeats = Repeats(
        found, canonical, lm.index, 0, len(text), 1e-6, 512, lambda depth, position: False
    )
    branches = repeats.branches(rounds.lattice)
    sizes = [sum(map(lm.index.length, branch.tokens)) for branch in branches]
    apart = len(b"frobnicate" + between)
    assert branches
    assert all(size <= (places - 1) * apart + len(b"frobnicate") for size in sizes)
    assert (max(sizes) >= apart) == (places == 2)


def trying(
    text: bytes,
    most: int = 512,
    deepest: Callable[[int, int], bool] = lambda depth, position: False,
) -> tuple[Repeats, Lattice]:
    """What tries the other splits of a text, and the canonical tokens, all evaluated."""
    model = table([b"a", b"b", b" ", b"ab", b"ba"], {(): [0.1, 0.2, 0.2, 0.2, 0.2, 0.1]})
    known, canonical = KnownText.of(text, model.index), model.vocabulary.encode(text)
    rounds = Rounds(model.evaluated(), 0, known, canonical, Effort(0.05, 0.1))
    evaluate([(rounds, rounds.wants())])
    rounds.lattice.sum(len(text) + 1)
    found = respellings(text, canonical, model.index)
    repeats = Repeats(found, canonical, model.index, 0, len(text), 1e-6, most, deepest)
    return repeats, rounds.lattice


@pytest.mark.parametrize(("most", "tried"), [(14, [b"ba", b"ab"]), (13, [b"ba"]), (6, [])])
def test_the_likeliest_respelling_is_tried_first_while_there_is_room(most: int, tried: list[bytes]):
    """[b a] is twice as likely as [a b], so it gets the room, though it comes later in the text."""
    repeats, lattice = trying(b"ab ba " * 4, most)
    tokens = {b"ba": [1, 0, 2, 3, 2, 1, 0], b"ab": [0, 1, 2, 4, 2, 0, 1]}  # to the second place
    assert [branch.tokens for branch in repeats.branches(lattice)] == [tokens[t] for t in tried]
    assert repeats.left == most - 7 * len(tried)
    assert [one.stretch for one in repeats.untried] == [s for s in tokens if s not in tried]


@pytest.mark.parametrize(("times", "untried"), [(4, {b"ab", b"ba"}), (3, set())])
def test_a_respelling_that_leaves_no_room_in_the_window_is_not_tried(
    times: int, untried: set[bytes]
):
    """It is asked how deep the last context is, and where; of what is seldom no doubt is left."""
    asked = []
    repeats, lattice = trying(b"ab ba " * times, deepest=lambda *at: bool(asked.append(at)) or True)
    assert repeats.branches(lattice) == []
    assert {one.stretch for one in repeats.untried} == untried
    assert asked == ([(9, 11), (7, 8)] if times == 4 else [(4, 5), (2, 2)])
    assert repeats.left == 512


def test_what_there_was_no_room_to_try_is_doubted_from_its_second_place_on():
    text = b"ab ba ab ba ab ba ab ba"  # the last place ends where the text does
    repeats, lattice = trying(text, most=6)
    assert repeats.branches(lattice) == []
    surprisals = -np.diff(lattice.log_prefix)
    expected = np.zeros(len(text))
    for place in (6, 9, 12, 15, 18, 21):  # all but the first of b"ab" and of b"ba"
        expected[place : place + 2] = 0.1 * surprisals[place : place + 2]
    assert expected[21:].any()
    for start in (0, 3):
        doubts = repeats.doubts(start, lattice.log_prefix[start:])
        assert doubts == pytest.approx(expected[start:])


@pytest.mark.parametrize("text", REPEATS)
@pytest.mark.parametrize("preset", ["fast", "default", "accurate"])
def test_what_repeats_is_not_off_in_silence(text: str, preset: str):
    score = charwise.load().score(text, preset=preset)
    assert score.error is not None
    off = abs(score.logprobs.sum() - REPEATS[text])
    assert off < max(1.0, score.error.sum() * 3)
    assert off < 0.05 * len(text)


def test_the_next_byte_after_what_repeats():
    lm = charwise.load()
    nxt = lm.next("ValueEr" * 4)
    assert nxt.top(1)[0][0] == "V"
    assert nxt["V"] == pytest.approx(0.853, abs=0.01)  # a beam of width 128 says so
    assert [name for name, _ in nxt.top(4)] == ["V", "A", "r", "D"]


def test_a_run_of_one_letter():
    lm = charwise.load()
    exact = lm.next("aaaaaa", preset="exact").probs
    for preset in ("fast", "default", "accurate"):
        nxt = lm.next("aaaaaa", preset=preset)
        typed = lm.state("", preset=preset)
        for letter in "aaaaaa":
            typed = typed + letter
        for found in (nxt, typed.next()):
            off = np.abs(found.probs - exact).sum() / 2
            assert off <= max(0.02, 5 * found.error)


def test_occurrences_and_their_other_splits():
    model = table([b"a", b"b", b" ", b"ab", b"ba"], {(): [0.2, 0.1, 0.2, 0.2, 0.2, 0.1]})
    text, canonical = b"ab ab abab", [3, 2, 3, 2, 3, 3]
    starts = np.cumsum([0, *map(model.index.length, canonical)]).tolist()
    assert occurrences(text, starts) == {b"ab": [(0, 1), (2, 3), (4, 5), (5, 6)]}
    [found] = respellings(text, canonical, model.index)
    assert found.stretch == b"ab"
    assert [place.start for place in found.places] == [0, 3, 6, 8]
    assert {place.tokens for place in found.places} == {(0, 1)}


# ---- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("tolerance", [0, -0.1, -(10**400), math.nan, math.inf, "x", True])
def test_bad_tolerances(tolerance: float):
    lm = charwise.load()
    with pytest.raises(SettingError, match="tolerance"):
        lm.score("a", tolerance=tolerance)
    with pytest.raises(SettingError, match="tolerance"):
        charwise.load(tolerance=tolerance)
    with pytest.raises(SettingError, match="tolerance"):
        lm.score("a", preset=Effort(1e-2, 0.1, tolerance=tolerance))


def test_a_preset_and_a_tolerance():
    lm = charwise.load()
    with pytest.raises(SettingError, match="give one of them"):
        lm.next("a", preset="fast", tolerance=0.1)
    with pytest.raises(SettingError, match="give one of them"):
        effort_of("fast", 0.1)


def test_what_takes_a_preset_takes_a_tolerance():
    methods = {
        name: set(inspect.signature(method).parameters)
        for name, method in vars(CharLM).items()
        if inspect.isfunction(method) and not name.startswith("_")
    }
    taking = {name for name, parameters in methods.items() if "preset" in parameters}
    assert {"score", "next", "complete", "choose", "infill", "score_infill"} <= taking
    assert all("tolerance" in methods[name] for name in taking)
    others = (complete.complete, demo.demo, infill.infill, next_and_cover.next_bytes)
    for command in (*others, score_command):
        assert {"preset", "tolerance"} <= set(inspect.signature(command).parameters)


def test_presets_are_tolerances():
    assert effort_of("default") == for_tolerance(0.1, variation=0.02)
    lm = charwise.load(tolerance=0.003)
    assert lm.effort == for_tolerance(0.003)


# ---- how it is estimated ------------------------------------------------------------------------


def test_estimates_by_hand():
    logs, none = np.array([0.0, -1.0, -3.0]), np.zeros(3)
    assert byte_errors(logs, logs, none, none).tolist() == [0, 0]
    changed = byte_errors(logs, logs - [0.0, 0.1, 0.1], none, none)
    assert changed == pytest.approx([0.04, 0.0])
    lent = byte_errors(logs, logs, np.array([0.1, 0.0, 0.0]), none)
    assert lent == pytest.approx(faded(np.array([0.1, 0.0, 0.0]))[:2])
    # Without a step before, a byte that surprises may be what was lent alone allows.
    alone = byte_errors(None, logs, none, np.array([0.1, 0.1, 0.1]))
    assert (alone > byte_errors(logs, logs, none, np.array([0.1, 0.1, 0.1]))).all()


def test_estimates_are_finite_and_where_the_shares_are():
    logs, none = np.array([0.0, -1.0, -3.0]), np.zeros(3)
    later = byte_errors(logs, logs, none, np.array([0.0, 0.1, 0.0]))
    assert later[0] == 0 < later[1]
    assert (byte_errors(logs, logs, np.array([0.0, 0.1, 0.0]), none)[:2] > 0).tolist() == [
        False,
        True,
    ]
    # A step that found the first way changed what was no number: that says nothing.
    impossible = np.array([0.0, -math.inf, -math.inf])
    for before, after in ((impossible, logs), (logs, impossible)):
        assert byte_errors(before, after, none, none).tolist() == [0, 0]


def test_a_limit_is_said():
    lm = charwise.load()
    assert not lm.score("import os").limited
    assert lm.score("import os", preset=Effort(0.05, 0.1, rounds=1, tolerance=1e-6)).limited


@given(cases())
@examples(200)
def test_contexts_are_counted(case: Case):
    model, text = case.model, case.text
    known = KnownText.of(text, model.index)
    ways = [1] + [0] * len(text)
    for at in range(len(text)):
        for token in model.vocabulary.tokens:
            if token and text.startswith(token, at):
                ways[at + len(token)] += ways[at]
    assert known.contexts(10**6) == sum(ways)
