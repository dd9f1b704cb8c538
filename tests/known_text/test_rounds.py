"""Rounds in portions against the oracle, and what the evaluation package makes of them."""

from __future__ import annotations

import inspect
import shlex
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import charwise.known_text.calls
import charwise.known_text.portions
import charwise.known_text.rounds
from charwise import CharLM
from charwise.coverings.reference import next_character_probability, prefix_probability
from charwise.coverings.rows import EvaluatedRows
from charwise.errors import EngineError, SettingError
from charwise.evaluation.distance import bootstrap, js_distance
from charwise.evaluation.methods import walk_beam, walk_canonical, walk_rounds
from charwise.known_text.base_path import BasePath
from charwise.known_text.calls import evaluate
from charwise.known_text.candidates import Wanted
from charwise.known_text.effort import PRESETS, Effort
from charwise.known_text.portions import Portions
from charwise.known_text.ranges import KnownText
from charwise.known_text.rounds import Rounds
from charwise.known_text.vertex import Branch, Vertex, by_last_token, closest
from models import Case, cases, examples, table
from near import approx


@given(cases(), st.sampled_from((1, 2, 3)))
@examples(300)
def test_portions_change_no_number(case: Case, portion: int):
    """Nothing is lent, so the oracle's sums come out however the text is cut into portions."""
    model, text = case.model, case.text
    if prefix_probability(text, model.p, model.vocabulary) == 0:
        return
    lm = CharLM(model.lm, preset="exact")
    whole = lm.score(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(charwise.known_text.portions, "PORTION", portion)
        patch.setattr(charwise.known_text.calls, "PORTION", portion)
        patch.setattr(charwise.known_text.portions, "_ORDINARY", (portion, 1, 240))
        cut = lm.score(text)
        distributions = walk_rounds(lm, text, PRESETS["exact"], distributions=True).distributions
    assert cut.logprobs == approx(whole.logprobs, rel=1e-9, abs=1e-9)
    assert distributions is not None
    for t in range(len(text)):
        expected = next_character_probability(text[:t], model.p, model.vocabulary)
        assert distributions[t] == approx(expected, rel=1e-9, abs=1e-12)


@given(cases())
@examples(100)
def test_a_wide_beam_and_exact_rounds_walk_alike(case: Case):
    model, text = case.model, case.text
    if not text or prefix_probability(text, model.p, model.vocabulary) == 0:
        return
    lm = CharLM(model.lm, preset="exact")
    beam = walk_beam(lm, text, 10_000, distributions=True)
    rounds = walk_rounds(lm, text, PRESETS["exact"], distributions=True)
    assert beam.logprobs == approx(rounds.logprobs, rel=1e-9, abs=1e-9)
    assert beam.distributions is not None
    assert rounds.distributions is not None
    assert js_distance(beam.distributions, rounds.distributions) == approx(0, abs=1e-6)


# ---- what a round evaluates ---------------------------------------------------------------------


def started(effort: Effort, text: bytes = b"ababab") -> Rounds:
    """Rounds over unigrams in which the canonical tokens, [ab] again and again, are evaluated."""
    model = table([b"a", b"b", b"ab"], {(): [0.4, 0.2, 0.3, 0.1]})
    known = KnownText.of(text, model.index)
    rounds = Rounds(model.evaluated(), 0, known, model.vocabulary.encode(text), effort)
    evaluate([(rounds, rounds.base.branches(rounds.lattice, rounds.base.portion(0, 100)))])
    rounds.lattice.sum(len(text) + 1)
    return rounds


def candidate(rounds: Rounds, rho: float) -> Wanted:
    """[ab] after the first [ab], as if after tokens of another context: it ends at 4."""
    parent = Vertex(node=0, position=2, tail=(1, 0), depth=2)
    return Wanted(rho, parent, token=2, position=4, share=rho)


def test_a_share_goes_on_as_that_of_the_heaviest_context():
    rounds = started(Effort(1e-3, 0.5))
    at = np.exp(rounds.lattice.log_prefix)
    # Over the canonical contexts only: what starts with "a", and then [ab].
    assert at == approx([1, 0.7, 0.3, 0.21, 0.09, 0.063, 0.027])
    # After "ab" the text goes on with all of 0.3, of which [ab] is all: nothing is lost.
    assert rounds.batches._continued(0.5, 2, 2) == (approx(0.5), 4)
    # [a] leads into the middle of a canonical token: 0.4 of the mass, where 0.7 is.
    assert rounds.batches._continued(0.5, 2, 0) == (approx(0.5 * 0.4 / 0.7), 3)
    assert rounds.batches._continued(0.5, 3, 1) == (0.0, 4)  # no context ends at 3
    assert rounds.batches._continued(0.5, 6, 2) == (0.0, 8)  # beyond the text
    # A lighter context beside it, after which nothing follows, has no say.
    rounds.lattice.at[2].insert(0, Vertex(node=0, position=2, tail=(), depth=1))
    assert rounds.batches._continued(0.5, 2, 2) == (approx(0.5), 4)


def test_lookahead_goes_along_the_canonical_tokens():
    text = b"ab" * 6
    far = started(Effort(1e-3, 0.99), text)
    one = candidate(far, 0.5)
    assert far.batches.lookahead(one, {}) == [2, 2, 2]  # to 10; the text ends at 12
    assert [branch.tokens for branch in far.batches.plan([one])] == [[2, 2, 2, 2]]
    assert started(Effort(1e-3, 0.99, lookahead=2), text).batches.lookahead(one, {}) == [2, 2]
    # Not what has no room in the window to go on to the end, one token longer than the canonical
    # ones, nor what is not worth it, nor what is like what is there.
    far.base.deepest = 6
    assert far.batches.lookahead(one, {}) == [2, 2, 2]
    assert far.batches.lookahead(candidate(far, 1e-4), {}) == []
    far.base.deepest = 5
    assert far.batches.plan([one]) == []
    assert far.batches.lookahead(one, {}) == []
    far.base.deepest = 6
    # Agreement on the last token counts half: 0.25 is worth it, or not.
    assert started(Effort(0.2, 0.5), text).batches.lookahead(one, {}) == [2, 2, 2]
    assert started(Effort(0.3, 0.5), text).batches.lookahead(one, {}) == []
    # Nor what is like what was chosen before, though the model has evaluated nothing like it.
    far.lattice.effort = Effort(0.3, 0.5)
    far.lattice.at[6].clear()
    assert far.batches.lookahead(one, {6: {9}}) == [2]
    assert far.batches.lookahead(one, {6: {2}}) == []
    # From the middle of a canonical token nothing is followed.
    assert far.batches.lookahead(one._replace(position=3), {}) == []


def test_of_two_candidates_that_agree_the_heavier_is_evaluated():
    rounds = started(Effort(0.1, 0.5, lookahead=0))
    heavy, light = candidate(rounds, 0.3), candidate(rounds, 0.15)
    # They agree on their last tokens: 0.3 / 2 is worth it, and 0.15 / 2 is not.
    assert rounds.batches.plan([light, heavy]) == [Branch(heavy.parent, [2])]
    other = Vertex(node=0, position=2, tail=(9,), depth=1)
    both = [light._replace(parent=other, rho=0.25), heavy]
    assert [branch.parent for branch in rounds.batches.plan(both)] == [heavy.parent, other]
    both = [light._replace(parent=other), heavy]
    assert [branch.parent for branch in rounds.batches.plan(both)] == [heavy.parent]
    # Where nothing is lent, nothing stands for anything else.
    assert len(started(Effort(0.1, 1.0, lookahead=0)).batches.plan([light, heavy])) == 2


def test_without_foresight_a_share_counts_as_it_is():
    model = table([b"a", b"b", b"ab", b"aa"], {(): [0.6, 0.001, 0.01, 0.3, 0.089]})
    known = KnownText.of(b"aab", model.index)
    rounds = Rounds(model.evaluated(), 0, known, [0, 0, 1], Effort(0.5, 1.0))
    evaluate([(rounds, rounds.base.branches(rounds.lattice, rounds.base.portion(0, 100)))])
    rounds.lattice.sum(4)
    # [aa] holds a third of the mass at 2, and "b" comes as a surprise to all that is known there.
    [foreseen] = rounds.candidates.wanted(4)
    assert (foreseen.token, foreseen.position, foreseen.share) == (3, 2, 1.0)
    assert foreseen.rho == approx(0.3 / np.exp(rounds.lattice.log_prefix[2]), rel=1e-9)
    assert rounds.candidates.wanted(4, foreseeing=False) == []


def test_lookahead_saves_calls_and_changes_no_number():
    lm, text = charwise.load(), inspect.getsource(shlex)[:200]
    effort = Effort(1e-2, 0.5)
    few = lm.score(text, preset=effort)
    many = lm.score(text, preset=effort._replace(lookahead=0))
    assert few.calls < many.calls / 2
    assert few.logprobs == approx(many.logprobs, abs=1e-5)


def test_weight_is_lent_to_who_agrees_longest_and_of_those_to_the_heaviest():
    none, two, three, heavier = (
        Vertex(node=0, position=4, tail=tail, depth=3)
        for tail in (
            (9, 1, 0),
            (2, 1, 9),
            (2, 1, 0, 9),
            (2, 1, 0, 8),
        )
    )
    none.arrived, two.arrived, three.arrived, heavier.arrived = 0.9, 0.8, 0.1, 0.2
    like = by_last_token([none, heavier, three, two])
    assert like == {9: [none], 2: [two, heavier, three]}
    assert closest(like[2], (2, 1, 0, 7), 0.0, none) == (heavier, 3)
    assert closest(like[2], (2, 1, 5), 0.0, none) == (two, 2)
    # None that is lighter than what it would be lent: then the heaviest of all.
    assert closest(like[2], (2, 1, 0, 7), 0.5, none) == (two, 2)
    assert closest(like[2], (2, 1, 0, 7), 0.85, none) == (none, 0)


# ---- what is lent -------------------------------------------------------------------------------


def test_what_is_lent_by_hand():
    """[a b] weighs 0.08 where [ab] weighs 0.3, and lends it; [a] is the better part at 1."""
    model = table([b"a", b"b", b"ab"], {(): [0.4, 0.2, 0.3, 0.1]})
    score = CharLM(model.lm).score(b"aba", preset=Effort(0.5, 0.5))
    assert score.lent == approx([0, 0.08 / 0.38, 0])
    assert not score.missing.any()
    assert np.exp(score.logprobs) == approx([0.7, 0.38 / 0.7, 0.7])
    assert score.contexts == 3
    assert not CharLM(model.lm).score(b"aba", preset=Effort(0.1, 0.5)).lent.any()


@given(cases(order=st.just(1)), st.sampled_from((0.5, 0.1, 1e-2)))
@examples(200)
def test_lending_between_contexts_that_go_on_alike_is_exact(case: Case, theta: float):
    """After every context a unigram model goes on in the same way."""
    model, text = case.model, case.text
    truth = prefix_probability(text, model.p, model.vocabulary)
    if truth == 0:
        return
    lm = CharLM(model.lm)
    every = lm.score(text, preset="exact")
    some = lm.score(text, preset=Effort(theta, 0.5, 0, first=0.0))
    assert some.logprobs == approx(every.logprobs, rel=1e-9, abs=1e-9)
    assert not some.missing.any()
    assert some.lent.any() or some.contexts >= every.contexts
    assert (some.lent <= 1).all()
    assert not lm.score(text, preset=Effort(0.0, 0.5, 0)).lent.any()


# ---- what evaluates it --------------------------------------------------------------------------


class Renumbered:
    """A tree that numbers its new nodes from the end, against the contract of `TokenTree`."""

    def __init__(self, tree: Any) -> None:
        self._tree = tree

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tree, name)

    def extend(self, edges: Any) -> list[int]:
        return list(self._tree.extend(edges))[::-1]


def test_a_tree_with_other_numbers_is_noticed():
    model = table([b"a", b"b", b"ab"], {(): [0.4, 0.2, 0.3, 0.1]})
    evaluated = EvaluatedRows(Renumbered(model.evaluated().tree), model.index)
    with pytest.raises(EngineError, match="numbered"):
        evaluated.follow([(0, [0, 1])])


def test_nothing_is_known_of_a_call_that_failed():
    model = table([b"a", b"b", b"ab"], {(): [0.4, 0.2, 0.3, 0.1]})
    evaluated = model.evaluated()
    with pytest.raises(EngineError):
        evaluated.follow([(0, [0]), (0, [1, 99])])
    assert (evaluated.tree.size, evaluated.extend([(0, 1)])) == (1, [1])
    assert evaluated.follow([(0, [1, 0]), (0, [0]), (1, [0])]) == [[1, 2], [3], [2]]
    assert [evaluated.tree.tokens(node) for node in range(4)] == [(), (1,), (1, 0), (0,)]


@given(cases(), st.sampled_from((1, 2, 5)))
@examples(100)
def test_the_size_of_calls_changes_no_number(case: Case, contexts: int):
    model, text = case.model, case.text
    if prefix_probability(text, model.p, model.vocabulary) == 0:
        return
    lm = CharLM(model.lm, preset="exact")
    whole = lm.score(text, end=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(charwise.known_text.calls, "_LOGITS", 4 * model.vocabulary.width * contexts)
        cut = lm.score(text, end=True)
    assert cut.logprobs == approx(whole.logprobs, rel=1e-9, abs=1e-9)
    assert cut.contexts == whole.contexts
    assert cut.calls >= (whole.contexts - 1) / contexts


@pytest.mark.parametrize("most", [5, 20])
def test_what_branches_share_takes_room_in_a_call_once(monkeypatch: pytest.MonkeyPatch, most: int):
    lm = charwise.load()
    monkeypatch.setattr(charwise.known_text.calls, "_LOGITS", 4 * lm.vocabulary.width * most)
    score = lm.score("import", end=True)
    # The call of the root takes that of the one canonical token, too.
    assert score.calls == 1 + -(-(score.contexts - 2) // most)


@given(cases())
@examples(100)
def test_a_text_of_few_contexts_takes_one_call(case: Case):
    model, text = case.model, case.text
    index = model.index
    few = KnownText.of(text, index).contexts(64) <= 64
    if not (text and few) or prefix_probability(text, model.p, model.vocabulary) == 0:
        return
    lm = CharLM(model.lm)
    score, exact = lm.score(text, end=True), lm.score(text, end=True, preset="exact")
    assert score.calls <= 3  # the root, the canonical tokens, and all others
    assert score.contexts <= KnownText.of(text, index).contexts(64)
    assert score.logprobs == approx(exact.logprobs, rel=1e-9, abs=1e-12)
    assert score.end_logprob == approx(exact.end_logprob, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("prompt", ["import", "return", "if x"])
def test_a_few_characters_before_a_cursor_take_one_call_beside_that_of_the_prompt(prompt: str):
    lm = charwise.load()
    state = lm.state(prompt)
    assert state.shared.evaluated.tree.calls == 2
    exact = lm.state(prompt, preset="exact")
    assert state.next().probs == approx(exact.next().probs, abs=1e-6)


# ---- whole texts --------------------------------------------------------------------------------


def test_plain_perplexity_is_that_of_the_canonical_tokens():
    lm = charwise.load()
    text = "import os\nimport sys\n"
    walk = walk_canonical(lm, text)
    model, ids = lm.engine.model, [*lm.vocabulary.bos_ids, *lm.vocabulary.encode(text)]
    import torch

    with torch.inference_mode():
        logs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = logs[range(len(ids) - 1), ids[1:]].sum().item()
    assert walk.logprobs.sum() == approx(expected, abs=1e-3)
    # Summing over all tokenizations can only add.
    assert lm.score(text, preset="accurate").logprobs.sum() >= walk.logprobs.sum() - 1e-3


def test_distances():
    p = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    q = np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    assert js_distance(p, q).tolist() == [0.0, 1.0]
    assert js_distance(p, q).tolist() == js_distance(q, p).tolist()
    with pytest.raises(SettingError, match="shapes"):
        js_distance(p, q[:1])


def test_bootstrap():
    mean = bootstrap(np.arange(100.0))
    assert mean.low < mean.value == 49.5 < mean.high
    assert bootstrap(np.arange(100.0)) == mean
    with pytest.raises(SettingError, match="nothing"):
        bootstrap(np.array([]))


@pytest.mark.parametrize("pairs", [40, 200])
@pytest.mark.parametrize("preset", ["fast", "default", "accurate"])
def test_a_long_text_whose_canonical_tokens_are_impossible(preset: str, pairs: int):
    """After "ab" the model always ends, so all but the last is spelled in two tokens."""
    row = [0.4, 0.4, 0.1, 0.1]
    rows = {(3,): row, (0,): row, (1,): row, (2,): [0, 0, 0, 1]}
    lm = CharLM(table([b"a", b"b", b"ab"], rows, order=2).lm, preset=preset)
    true = (2 * pairs - 2) * np.log(0.4) + np.log(0.4**2 + 0.1)
    score = lm.score("ab" * pairs)
    assert score.logprobs.sum() == pytest.approx(true, rel=1e-9)
    assert score.error.sum() < 1e-6


def test_portions_are_short_in_long_runs_and_end_where_these_begin():
    """Of one byte that is no letter, 25 times or more; each token brings three contexts here."""
    lm = CharLM(table([b"a", b"-"], {(): [0.4, 0.4, 0.2]}).lm)
    text = b"a" * 12 + b"-" * 50 + b"a" * 200
    known, canonical = KnownText.of(text, lm.index), lm.vocabulary.encode(text)
    found = {}
    for runs in (False, True):
        base = BasePath(known, canonical, through=False, deepest=None, to_end=True)
        portions, done, sizes = Portions(base, runs=runs), 0, list[int]()
        while done < len(canonical):
            portion = portions.after(done)
            sizes.append(portion.tokens - done)
            assert portions.tokens == sizes[-1]
            portions.brought(3 * sizes[-1])
            done = portion.tokens
        found[runs] = sizes
    assert found == {False: [32, 80, 80, 70], True: [12, 8, 20, 20, 20, 80, 80, 22]}


@pytest.mark.parametrize("rounds", [10, 11])
def test_few_rounds_do_not_look_ahead(rounds: int, monkeypatch: pytest.MonkeyPatch):
    """Nor do those of an effort without a tolerance."""

    def refuse(*_: object) -> None:
        raise AssertionError("it looks ahead")

    monkeypatch.setattr(charwise.known_text.rounds.Scout, "__init__", refuse)
    lm, text = charwise.load(), "def area(radius):\n    return math.pi * radius**2\n"
    effort = PRESETS["default"]._replace(rounds=rounds)
    lm.score(text, preset=effort._replace(tolerance=None))
    if rounds == 10:
        lm.score(text, preset=effort)
    else:
        with pytest.raises(AssertionError, match="looks ahead"):
            lm.score(text, preset=effort)
