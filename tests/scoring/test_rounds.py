"""Rounds against the oracle: portions, calls, presets and bounds, and what they cost."""

import math
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import charwise
import charwise.scoring.lattice
import charwise.scoring.rounds
from charwise import CharLM, Effort
from charwise.errors import LimitError, ModelError, SettingError
from charwise.scoring.effort import MOST_ROUNDS, PRESETS
from charwise.tables.measure import Measure
from charwise.tables.rows import Place, Stimulus
from models import Case, Model, cases, examples, table, two_ways
from paper import js_distance, walk_beam, walk_canonical, walk_rounds

approx = pytest.approx

TEXT = "The frobnicator zumquandles: x = [i**2 for i in range(10) if i % 3]\n" * 2

#: A text of more token strings than can be evaluated.
LONG = "import numpy as np\nfrom collections import OrderedDict\n"


def small_portions(patch: pytest.MonkeyPatch, portion: int) -> None:
    patch.setattr(charwise.scoring.rounds, "PORTION", portion)
    patch.setattr(charwise.scoring.lattice, "LOOKAHEAD", 2)
    patch.setattr(charwise.scoring.rounds, "WARM_UP", 1)


@given(cases(possible=True), st.sampled_from((1, 2, 3)), st.sampled_from((1, 2, 5)))
@examples(300)
def test_portions_and_the_size_of_calls_change_no_number(case: Case, portion: int, room: int):
    """The oracle's sums come out, and those of a wide beam."""
    model, text = case.model, case.text
    lm = model.exact()
    whole = lm.score(text, end=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(charwise.scoring.rounds, "CALL_MEMORY", 4 * model.vocabulary.width * room)
        cut = lm.score(text, end=True)
        assert cut.logprobs == approx(whole.logprobs, rel=1e-9, abs=1e-9)
        assert cut.contexts == whole.contexts
        assert cut.calls >= (whole.contexts - 1) / room
    with pytest.MonkeyPatch.context() as patch:
        small_portions(patch, portion)
        cut = walk_rounds(lm, text, PRESETS["exact"], rows=True)
    beam = walk_beam(lm, text, 10_000, rows=True)
    for walk in (cut, beam):
        assert walk.logprobs == approx(whole.logprobs, rel=1e-9, abs=1e-9)
        for t in range(len(text)):
            assert walk.distributions[t] == approx(model.next(text[:t]), rel=1e-9, abs=1e-12)
    assert js_distance(beam.distributions, cut.distributions) == approx(0, abs=1e-6)


@given(cases(possible=True), st.sampled_from(("fast", "default", "accurate")))
@examples(300)
def test_distributions_have_the_probabilities_of_the_score(case: Case, preset: str):
    model, text = case.model, case.text
    score = CharLM(model.lm, preset=preset).score(text, entropy="char")
    assert score.distributions.sum(axis=1) == approx(1)
    came = score.distributions[np.arange(len(text)), np.frombuffer(text, np.uint8)]
    # What is missing is not in the distribution, so its bytes share it; the error is no less.
    assert (came >= np.exp(score.logprobs - score.error) - 1e-9).all()


def ab_is_last(share: float) -> Model:
    """After "ab", of a share, the model always ends: all but the last is spelled in two tokens."""
    row = [0.4, 0.4, share, 0.2 - share]
    rows = {(3,): row, (0,): row, (1,): row, (2,): [0, 0, 0, 1]}
    return table([b"a", b"b", b"ab"], rows, order=2)


@pytest.mark.parametrize(
    ("preset", "pairs", "portion"),
    [*product(["fast", "default", "accurate"], [40], [8, 192]), ("default", 200, 192)],
)
def test_a_long_text_whose_canonical_tokens_are_impossible(
    monkeypatch: pytest.MonkeyPatch, preset: str, pairs: int, portion: int
):
    small_portions(monkeypatch, portion)
    true = (2 * pairs - 2) * math.log(0.4) + math.log(0.4**2 + 0.1)
    score = CharLM(ab_is_last(0.1).lm, preset=preset).score("ab" * pairs)
    assert score.logprobs.sum() == approx(true, rel=1e-9)
    assert score.error.sum() < (1 if preset == "fast" else 1e-6)
    # Candidates from which the text cannot go on add nothing to the error of what repeats.
    assert CharLM(ab_is_last(1e-6).lm).score("ab" * pairs).error[4:].sum() < 1e-6


@pytest.mark.slow
def test_long_portions_carry_their_sums_over(monkeypatch: pytest.MonkeyPatch):
    """A text of many portions costs what its parts cost, and is no worse at the seams."""
    lm = charwise.load()
    text = "".join(f"def area_{n}(radius):\n    return {n} * radius ** 2\n\n\n" for n in range(60))
    cut = lm.score(text)
    monkeypatch.setattr(charwise.scoring.rounds, "PORTION", 10_000)
    whole = lm.score(text)
    assert cut.contexts != whole.contexts
    assert cut.logprobs.sum() == approx(whole.logprobs.sum(), abs=0.5)


def test_plain_perplexity_is_that_of_the_canonical_tokens():
    lm = charwise.load()
    text = "import os\nimport sys\n"
    walk = walk_canonical(lm, text)
    model, ids = lm.engine.model, [*lm.vocabulary.bos_ids, *lm.vocabulary.encode(text)]
    with torch.inference_mode():
        logs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = logs[range(len(ids) - 1), ids[1:]].sum().item()
    assert walk.logprobs.sum() == approx(expected, abs=1e-3)
    # Summing over all tokenizations can only add.
    assert lm.score(text, preset="accurate").logprobs.sum() >= walk.logprobs.sum() - 1e-3


# ---- presets and tolerances ---------------------------------------------------------------------


def test_presets_name_rounds_at_falling_thresholds():
    rounds = [PRESETS[name].rounds for name in ("fast", "default", "accurate", "exact")]
    assert rounds == sorted(rounds)
    assert Effort.of("default") == Effort() == charwise.load().effort
    assert repr(charwise.load(tolerance=0.01)).endswith("preset=Effort(rounds=10, tolerance=0.01))")
    thresholds = [Effort(6).threshold(number) for number in range(1, 7)]
    assert thresholds == sorted(thresholds, reverse=True)
    assert thresholds[-1] < Effort(6).typed_threshold < thresholds[0]
    assert Effort(math.inf).typed_threshold == 0


def test_methods_take_a_preset_or_a_tolerance():
    lm = charwise.load()
    one = ("state", "next", "next_chars", "prefix_logprob", "logprob", "score", "complete")
    asks = {name: ["import os"] for name in one}
    asks |= {"choose": ["import ", ["os", "re"]], "infill": ["import o", "\n"]}
    for name, values in (asks | {"score_infill": ["import ", "os", "\n"]}).items():
        ask = getattr(lm, name)
        ask(*values, preset="fast")
        ask(*values, tolerance=0.1)
        with pytest.raises(SettingError, match="give one of them"):
            ask(*values, preset="fast", tolerance=0.1)


def test_a_round_is_at_most_one_call_and_easy_text_takes_few_contexts():
    lm = charwise.load()
    scores = [lm.score(TEXT, preset=Effort(rounds)) for rounds in (1, 2, 4, 6)]
    assert [score.calls for score in scores] == [2, 3, 5, 7]
    assert all(a.contexts < b.contexts for a, b in pairwise(scores))
    text = "import os\n\n\nclass Node:\n    def __init__(self, value):\n        pass\n" * 3
    score = lm.score(text, preset="fast")
    assert score.contexts < 1.1 * len(text)
    assert score.calls <= 5


def test_a_tolerance_is_reached_or_ten_rounds_are_done():
    lm = charwise.load()
    loose, fine = (lm.score(TEXT, tolerance=tolerance) for tolerance in (0.1, 1e-6))
    assert loose.error.mean() / math.log(2) <= 0.1
    assert loose.calls < fine.calls <= MOST_ROUNDS + 1
    assert fine.error.mean() / math.log(2) <= 1e-6 or fine.calls == MOST_ROUNDS + 1


def test_a_text_that_no_threshold_of_the_preset_would_reach():
    """Only a share of 1e-14 goes on with c."""
    rows = {(4,): [1e-14, 0, 0, 1 - 1e-14, 0], (0,): [0, 1, 0, 0, 0], (1,): [0, 0, 1, 0, 0]}
    rows |= {(2,): [0, 0, 0, 0, 1], (3,): [0, 0, 0, 0, 1]}
    lm = CharLM(table([b"a", b"b", b"c", b"ab"], rows, order=2).lm, preset=Effort(1))
    assert lm.state("abc").logprob == approx(math.log(1e-14))
    assert lm.score("abc").logprobs.sum() == approx(math.log(1e-14))


# ---- bounds -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bound", "value"), [("MOST_CONTEXTS", 120), ("MEMORY", 2**21)])
def test_a_bound_ends_the_rounds(monkeypatch: pytest.MonkeyPatch, bound: str, value: int):
    free = charwise.load().score(TEXT, preset="accurate")
    monkeypatch.setattr(charwise.scoring.rounds, bound, value)
    score = charwise.load().score(TEXT, preset="accurate")
    assert np.isfinite(score.logprobs).all()
    assert score.contexts < free.contexts
    charwise.load().state(TEXT, preset="accurate").next()


@pytest.mark.parametrize("ask", ["score", "next", "next_chars", "complete", "prefix_logprob"])
def test_the_exact_preset_refuses_long_text_and_says_what_to_do(ask: str):
    lm = charwise.load(preset="exact")
    for text in (LONG, *(("a" * 4000,) if ask == "score" else ())):
        with pytest.raises(LimitError, match=r"all token strings of .* preset 'accurate'"):
            getattr(lm, ask)(text)
    assert getattr(lm, ask)("import") is not None


def test_a_row_that_is_too_long_for_it_does_not_end_a_table():
    rows = [Stimulus(Place("a.csv", n), text) for n, text in enumerate([b"import", LONG.encode()])]
    chunk = Measure(preset="exact").scored(charwise.load(), rows)
    assert {record["row"] for record in chunk.records} == {0}
    assert [bad.place.number for bad in chunk.bad] == [1]


def test_token_strings_that_a_model_rules_out_do_not_count():
    # After "a" nothing spells b: of 2^200 token strings one is possible.
    rows = {(3,): [0.2, 0.1, 0.6, 0.1], (0,): [0.9, 0, 0, 0.1], (1,): [0.2, 0.1, 0.6, 0.1]}
    model = table([b"a", b"b", b"ab"], rows | {(2,): [0.2, 0.1, 0.6, 0.1]}, order=2)
    score = model.exact().score("ab" * 200, end=True)
    assert score.logprobs.sum() == approx(200 * math.log(0.6))


@pytest.mark.slow
def test_the_bound_on_contexts_is_that_of_a_portion(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(charwise.scoring.rounds, "MOST_CONTEXTS", 5000)
    score = two_ways().exact().score("ab" * 4 + "b" * 800)
    assert score.contexts > 5000
    assert score.logprobs.size == 808


def test_a_pack_that_is_too_much_for_one_tree_is_scored_text_by_text(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(charwise.scoring.rounds, "MEMORY", 2**22)
    both = charwise.load().scores(["import", "if x"], preset="exact")
    alone = charwise.load().score("import", preset="exact")
    assert both[0].logprobs == approx(alone.logprobs, abs=1e-5)


def test_a_state_is_as_before_when_an_extension_is_refused(monkeypatch: pytest.MonkeyPatch):
    lm = charwise.load(preset="exact")
    state = lm.state("for i in ra")
    tree = state.shared.tree
    held = tree.nbytes
    with pytest.raises(LimitError):
        state.choose(["nge(", "ndom.choice(everything_that_there_is)"])
    assert tree.nbytes == held
    assert state.choose(["nge(", "ndom."]).top(1)[0][0] == "nge("
    monkeypatch.setattr(charwise.scoring.rounds, "MOST_CONTEXTS", 500)
    state = lm.state("import")
    probs, tree = state.next().probs, state.shared.tree
    held = tree.size
    with pytest.raises(LimitError):
        state + LONG
    for node in range(held, tree.size):
        with pytest.raises(ModelError, match="dropped"):
            tree.logprobs([node])
    assert (state.next().probs == probs).all()
    assert (state + " ").next().probs == approx(lm.next("import ").probs, abs=1e-6)
