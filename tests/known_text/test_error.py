"""What a score and a state say about their error: against the oracle, and on what provokes it."""

from __future__ import annotations

import inspect
import math
import random

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
from charwise.known_text.disagreement import Disagreement
from charwise.known_text.effort import effort_of, for_tolerance
from charwise.known_text.estimate import at_least, byte_errors, changes, faded
from charwise.known_text.loans import on_loan
from charwise.known_text.ranges import KnownText
from charwise.known_text.rounds import Rounds
from charwise.known_text.runs import over_and_over
from charwise.tokens.index import SortedVocabulary
from models import MOST, Case, cases, examples

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


@pytest.mark.parametrize("text", REPEATS)
@pytest.mark.parametrize("preset", ["fast", "default", "accurate"])
def test_what_repeats_is_not_off_in_silence(text: str, preset: str):
    score = charwise.load().score(text, preset=preset)
    assert score.error is not None
    off = abs(score.logprobs.sum() - REPEATS[text])
    assert off < max(1.0, score.error.sum() * 3)
    assert off < 0.05 * len(text)


@pytest.mark.parametrize("preset", ["default", "accurate"])
@pytest.mark.parametrize(("text", "true"), [("x " * 40, -46.41), ("x y " * 20, -58.80)])
def test_letters_with_a_space_between_them(text: str, true: float, preset: str):
    """The canonical ` x` is respelled as two tokens; the truth is from `Score.audit`."""
    assert abs(charwise.load().score(text, preset=preset).logprobs.sum() - true) < 4


@pytest.mark.parametrize("preset", ["default", "accurate"])
@pytest.mark.parametrize(
    ("text", "true"),
    [
        ("   \n" * 12, -35.68),
        ((" " * 7 + "\n") * 15, -37.38),
        (" " * 10 + "\n\n   \n" * 8, -48.28),
    ],
)
def test_lines_of_blanks(text: str, true: float, preset: str):
    """`··|·` from the second line on, `··|·|····`: a beam of width 64 finds so much."""
    score = charwise.load().score(text, preset=preset)
    off = abs(true - score.logprobs.sum())
    assert off < max(1.0, 3 * score.error.sum())
    assert off < 10


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
    assert byte_errors(logs, none, none, 0.1).tolist() == [0, 0]
    # What is on loan at a byte errs there, by a part of what the byte surprises.
    lent = byte_errors(logs, np.array([0.0, 0.5, 0.5]), none, 0.1)
    assert lent[1] == pytest.approx(2 * lent[0])
    assert lent[0] == pytest.approx(0.013, rel=0.01)
    # More, where contexts that end alike disagree more.
    assert (byte_errors(logs, np.array([0.0, 0.5, 0.5]), none, 0.2) > lent).all()
    missing = byte_errors(logs, none, np.array([0.1, 0.0, 0.0]), 0.1)
    assert missing == pytest.approx(faded(np.array([0.1, 0.0, 0.0]))[:2])


def test_estimates_are_finite():
    """While nothing spells a byte, nothing is said of it."""
    impossible, none = np.array([0.0, -math.inf, -math.inf]), np.zeros(3)
    assert byte_errors(impossible, none, none, 0.1).tolist() == [0, 0]


@given(cases())
@examples(100)
def test_what_is_on_loan_is_what_no_path_has(case: Case):
    """Against the paths of the evaluated contexts, one by one; nothing is, if nobody lends."""
    model, text = case.model, case.text
    if not text or prefix_probability(text, model.p, model.vocabulary) == 0:
        return
    known = KnownText.of(text, SortedVocabulary(model.vocabulary))
    for gamma in (0.1, 1.0):
        evaluated = EvaluatedRows(model.lm.tree(model.vocabulary.bos_ids), known.index)
        canonical = model.vocabulary.encode_beginning(text)
        rounds = Rounds(evaluated, 0, known, canonical, Effort(0.05, gamma))
        lattice = rounds.run()
        lent = on_loan(lattice, 0, len(text) + 1)
        own = np.zeros(len(text) + 1)
        own[0] = 1.0
        paths = [(lattice.root, 1.0)]
        while paths:
            vertex, p = paths.pop()
            paths += [(child, p * vertex.mass(token)) for token, child in vertex.children.items()]
            for end, mass in enumerate(vertex.starting, vertex.position + 1):
                own[end] += p * mass
        sums = np.exp(lattice.log_prefix)
        assert lent * sums == pytest.approx(np.maximum(sums - own, 0), abs=1e-8)
        assert gamma < 1 or not lent.any()


def test_a_short_text_in_which_the_same_split_pays_again():
    """[e, a, x], and then [e, b, x]: the canonical tokens are 7.7 nats below."""
    lm, text = charwise.load(), "mov eax, 1\nmov ebx, 2\n"
    truth = lm.covering(text, tolerance=1e-2, max_contexts=8000).prefix_logprob()
    for preset in ("fast", "default", "accurate"):
        score = lm.score(text, preset=preset)
        assert abs(score.logprobs.sum() - truth.lower) < 0.05
        assert score.contexts < 400


@pytest.mark.parametrize(
    "prompt", ["Nodde(self, nodde", "let eax = ebx;\nlet ebx ", "import matplotib.pyp"]
)
def test_a_prompt_that_is_summed_as_a_whole(prompt: str):
    lm = charwise.load()
    truth = lm.next(prompt, preset=Effort(1e-5, 1.0, lookahead=0)).probs
    for preset in ("default", "accurate"):
        assert np.abs(lm.next(prompt, preset=preset).probs - truth).sum() / 2 < 0.02


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


@pytest.mark.parametrize(
    ("text", "bits"),  # of a path that is known: `audit`, and finer tolerances
    [("a" * 200, 94.8), ("x" * 160, 144.8), ("e" * 160, 294.7), ("b" * 160, 125.4)],
)
def test_long_runs_of_a_letter_are_stated_to_be_far_off(text: str, bits: float) -> None:
    lm = charwise.load()
    for preset in ("default", "accurate"):
        score = lm.score(text, preset=preset)
        assert score.error is not None
        off, stated = score.bits - bits, score.error.sum() / math.log(2)
        assert off / 3 < stated < 3 * off
        assert score.limited


@pytest.mark.parametrize("preset", ["default", "accurate"])
@pytest.mark.parametrize(
    ("text", "true"),
    [
        ("\n" * 60, -119.27),
        ("." * 90, -17.06),
        ("import os\nimport sys\nimport re\n" + "\n" * 80, -194.47),
    ],
)
def test_long_runs_of_a_byte(text: str, true: float, preset: str) -> None:
    """The truth: 1,024 bundles that prune at random. It takes short portions to find it."""
    score = charwise.load().score(text, preset=preset)
    off = abs(score.logprobs.sum() - true)
    assert off < {"default": 1.5, "accurate": 1.0}[preset]
    assert off < max(0.2, 3 * score.error.sum())


def test_what_stands_over_and_over() -> None:
    text = b"x = " + b"the " * 12 + b"." * 30 + b"a" * 9 + b"0" * 40
    found = bytes(byte for byte, there in zip(text, over_and_over(text), strict=True) if there)
    assert found == b" the" * 12 + b"." * 30


def test_what_a_step_changed_is_stated_where_it_is_more() -> None:
    """Of 80 spaces 0.14 nats are off; what is on loan says 0.01."""
    before, after = np.array([0.0, -1.0, -3.0]), np.array([0.0, -1.0, -2.0])
    stated = at_least(np.array([0.0, 0.5]), changes(before, after))
    assert stated.tolist() == pytest.approx([0.0, 0.65])
    assert at_least(np.array([0.5, 0.5]), changes(before, after)).tolist() == [0.5, 0.5]
    assert 0.05 < charwise.load().score(" " * 80).error.sum() < 0.45


def test_each_byte_of_hard_text_may_be_off_and_what_follows_need_not() -> None:
    hard = (
        "Der Zug nach Bremen hielt heute zwanzig Minuten lang auf freier Strecke, weil eine Weiche "
        "klemmte. Niemand wunderte sich, aber alle schauten verstohlen auf ihre Uhren und seufzten."
    )
    easy = "\nimport os\nimport sys\n\n\ndef main():\n    return 0\n" * 12
    error = charwise.load().score(hard + easy).error
    assert error is not None
    assert error[: len(hard) - 10].min() >= 0.1
    assert error[-250:].mean() < 0.03


@given(cases(), st.randoms(use_true_random=False))
@examples(100)
def test_disagreement_whatever_comes_first(case: Case, draw: random.Random):
    """Contexts that come one by one, in any order, say what they say together."""
    model, text = case.model, case.text
    if not text or prefix_probability(text, model.p, model.vocabulary) == 0:
        return
    known = KnownText.of(text, SortedVocabulary(model.vocabulary))
    evaluated = EvaluatedRows(model.lm.tree(model.vocabulary.bos_ids), known.index)
    canonical = model.vocabulary.encode_beginning(text)
    lattice = Rounds(evaluated, 0, known, canonical, Effort(0.01, 0.1)).run()
    size = len(text) + 1
    together = Disagreement(lattice)
    together.compare(0, size)
    everything = [list(here) for here in lattice.at]
    for here in lattice.at:
        here.clear()
    one_by_one, coming = Disagreement(lattice), [v for here in everything for v in here]
    draw.shuffle(coming)
    for vertex in coming:
        lattice.at[vertex.position].append(vertex)
        one_by_one.compare(0, size)
    assert one_by_one.nats == pytest.approx(together.nats)
