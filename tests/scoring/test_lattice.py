"""The sums of a lattice, by hand and against all paths; recombination; selection."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import charwise.scoring.lattice
from charwise import CharLM, Effort
from charwise.scoring.contexts import Branch, Contexts
from charwise.scoring.lattice import UNKNOWN_BACKWARD, Lattice
from charwise.scoring.rounds import Refinement, refine
from charwise.tokens.known_text import KnownText
from models import Case, Model, cases, examples, table, two_ways

approx = pytest.approx


def lattice_of(model: Model, text: bytes, *paths: list[int]) -> Lattice:
    """The sums over some token strings and what they begin with."""
    rows = model.evaluated()
    contexts = Contexts(rows, KnownText.of(text, model.index))
    contexts.add([Branch(0, path) for path in paths], rows.extend([(0, path) for path in paths]))
    lattice = Lattice(contexts)
    lattice.enter(len(text), [0, *contexts.follow(0, paths[0] if paths else [])])
    lattice.sum_forward()
    lattice.sum_backward()
    return lattice


def refined(case: Case, effort: Effort, through: bool = False) -> Lattice:
    """The sums in the state in which a score ends."""
    model, text = case.model, case.text
    assume(text)
    canonical, known = model.vocabulary.encode_beginning(text), KnownText.of(text, model.index)
    work = Refinement(model.evaluated(), known, canonical, effort, through=through)
    refine([work])
    return work.lattice


def test_recombination_by_hand():
    """[a b] weighs 0.08 and is recombined with [ab], of 0.3; [a] weighs 0.4 of 0.7 at 1."""
    lattice = lattice_of(two_ways(), b"aba", [2], [0])
    assert np.exp(lattice.log_prefix) == approx([1, 0.7, 0.38, 0.38 * 0.7])
    assert not lattice.missing.any()
    # Without [a], there is nothing to recombine it with at 1: its share, and [a b], are left out.
    lattice = lattice_of(two_ways(), b"aba", [2])
    assert np.exp(lattice.log_prefix) == approx([1, 0.7, 0.3, 0.3 * 0.7])
    assert lattice.missing == approx([0, 0.4 / 0.7, 0, 0])
    # A twin of [a] may go on with the text, although that is less likely than after [ab].
    twins = table([b"a", b"a", b"b", b"ab"], {(): [0.2, 0.2, 0.2, 0.3, 0.1]})
    assert lattice_of(twins, b"aba", [3], [0]).first_candidate() == 1


def test_candidates_are_recombined_with_the_most_equal_tokens():
    tokens = [b"a", b"b", b"ab", b"ba", b"bb"]
    model = table(tokens, {(): [0.3, 0.2, 0.1, 0.1, 0.2, 0.1]})
    # At 4: [a b a b] evaluated, [ab a b] and [ab ab] too; the candidate [a ba b] ends in [b].
    lattice = lattice_of(model, b"ababa", [0, 1, 0, 1], [2, 0, 1], [2, 2], [0, 3])
    c = lattice.contexts
    *_, parent = c.follow(0, [0, 3])
    edge = next(e for e in range(len(c.source)) if c.source[e] == parent and c.token[e] == 1)
    assert (c.child[edge], c.end[edge]) == (-1, 4)
    partner = int(c.recombined_with[edge])
    assert c.position[partner] == 4
    # Both end in [b] alone like it, after another token; the likelier one is taken.
    rivals = [list(c.follow(0, path))[-1] for path in ([0, 1, 0, 1], [2, 0, 1])]
    assert partner == max(rivals, key=lambda context: c.log_p[context])


@given(cases(possible=True), st.sampled_from((Effort(1), Effort(2), Effort(5))), st.booleans())
@examples(200)
def test_sums_are_those_over_all_edges(case: Case, effort: Effort, through: bool):
    """Forward and backward against sums one edge at a time, in whatever state a score ends."""
    lattice = refined(case, effort, through)
    text, c = case.text, lattice.contexts
    lattice.sum_backward()
    n, order = len(text), np.argsort(c.position, kind="stable").tolist()
    weight, worth = np.zeros(len(c)), np.zeros(len(c))
    weight[0] = 1.0
    target = c.target.tolist()
    edges = [[e for e in range(len(c.source)) if c.source[e] == v] for v in range(len(c))]
    total = np.zeros(n + 1)
    total[0] = 1.0
    for v in order:
        for e in edges[v]:
            if target[e] >= 0:
                weight[target[e]] += weight[v] * c.mass[e]
        for mass in np.flatnonzero(c.held == v):
            total[c.at[mass]] += weight[v] * c.starting[mass]
    for v in reversed(order):
        worth[v] = c.starting[(c.held == v) & (c.at == n)].sum() + (c.position[v] == n)
        inside = [e for e in edges[v] if target[e] >= 0 and c.end[e] < n]
        worth[v] += sum(c.mass[e] * worth[target[e]] for e in inside)
    assert np.exp(lattice.log_prefix) == approx(total, rel=1e-9, abs=1e-300)
    scale = total[c.position]
    assert lattice.weight == approx(weight / scale, rel=1e-9, abs=1e-12)
    assert lattice.backward == approx(worth * scale / total[n], rel=1e-9, abs=1e-12)


@given(cases(order=st.just(1), possible=True), st.sampled_from((1, 2, 5)))
@examples(200)
def test_recombining_contexts_that_go_on_alike_is_exact(case: Case, rounds: int):
    """After every context a unigram model goes on in the same way."""
    lattice = refined(case, Effort(rounds))
    if not lattice.missing.any():
        exact = case.model.exact().score(case.text)
        assert np.diff(lattice.log_prefix) == approx(exact.logprobs, rel=1e-9, abs=1e-9)


# ---- selection ----------------------------------------------------------------------------------


def garden_path() -> Model:
    """After [o], which has little mass, "be" is likely; [ob], canonical, has hardly any."""
    tokens = [b"o", b"ob", b"oc", b"be", b"e", b"x"]
    rows = {(id,): [1 / 7] * 7 for id in range(1, 6)}
    rows[6,] = [1e-3, 1e-9, 0.9 - 1e-9, 1e-3, 1e-3, 0.096, 1e-3]
    rows[0,] = [0.01, 0.01, 0.01, 0.9, 0.01, 0.05, 0.01]
    return table(tokens, rows, order=2)


def test_a_surprise_brings_back_what_was_too_light():
    """[o] holds a thousandth of the mass at 1, and all that goes on with "be"."""
    model, text = garden_path(), b"obe"
    assert model.vocabulary.encode(text) == [1, 4]
    truth = math.log(model.prefix(text))
    lm = CharLM(model.lm)
    assert lm.score(text, preset="fast").logprobs.sum() == approx(truth, abs=1e-2)
    assert lm.prefix_logprob(text, preset="fast") == approx(truth, abs=1e-2)


def test_candidates_are_worth_the_threshold():
    lattice = lattice_of(garden_path(), b"oc")
    _, value = lattice.candidates(math.inf)
    [candidate] = value.tolist()
    assert candidate == approx(UNKNOWN_BACKWARD * 1e-3 / 0.902, rel=1e-2)
    assert lattice.select(candidate / 2, math.inf) == [Branch(0, [0])]
    assert lattice.select(candidate * 2, math.inf) == []


def test_the_width_bounds_the_contexts_at_a_position(monkeypatch: pytest.MonkeyPatch):
    model = table([b"a", b"b", b"ab", b"aba", b"ba"], {(): [0.3, 0.2, 0.2, 0.1, 0.1, 0.1]})
    for width in (1, 2, 3):
        monkeypatch.setattr(charwise.scoring.lattice, "WIDTH", width)
        lattice = lattice_of(model, b"ababababa", [2, 2, 2, 2])
        chosen = lattice.select(1e-9, math.inf)
        length = model.index.length
        at = [lattice.contexts.position[one.context] + length(one.tokens[0]) for one in chosen]
        ends = np.bincount(at, minlength=10)
        there = np.bincount(lattice.contexts.position, minlength=10)
        assert ((ends + there)[1:] <= np.maximum(width, there[1:])).all()
    assert lattice.select(1e-9, max_depth=0) == []


def test_a_candidate_is_followed_as_the_one_it_is_recombined_with_would_go_on():
    model = two_ways()
    lattice = lattice_of(model, b"ab" * 6, [2, 2, 2, 2, 2], [0])
    followed = {branch.context: branch.tokens for branch in lattice.select(0.01, math.inf)}
    *_, a = lattice.contexts.follow(0, [0])
    assert followed[a][:3] == [1, 2, 2]
    assert max(len(b.tokens) for b in lattice.select(0.01, max_depth=3)) <= 3
