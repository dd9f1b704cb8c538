"""Bounds from the k best tokens against brute force: the truth is inside, whatever is not told."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from charwise.bounded.covering import BoundedCovering
from charwise.bounded.lm import BoundedLM
from charwise.bounded.rows import PartialRow
from charwise.coverings.reference import (
    next_character_probability,
    prefix_probability,
    string_probability,
)
from charwise.errors import BoundsError, EngineError, SettingError
from charwise.partial_lm import Best, PartialLM
from models import Case, Model, cases, examples, log_of, model_of, two_ways
from top_k_lm import TopK

#: What float64 may lose, of a probability.
ROUNDING = 1e-12

KS = (1, 2, 3, 5, 20)


class Told:
    """A `PartialLM` that tells the k best of a model's rows, some of which is not counted.

    `leak` of the probability goes to ids that the vocabulary does not count, where there are any;
    `noise` is by how much each log-probability may be off, before and after it is told.
    """

    window = None

    def __init__(
        self, model: Model, k: int, *, prices: bool = True, leak: float = 0.0, noise: float = 0.0
    ) -> None:
        self.model, self.k, self.prices, self.leak = model, k, prices, leak
        self.vocabulary = model.vocabulary
        self.noise, self.rounding = noise, noise + 1e-15
        self.asked: set[tuple[int, ...]] = set()

    def row(self, context: tuple[int, ...]) -> np.ndarray:
        row = self.model.p(context[len(self.vocabulary.bos_ids) :]).copy()
        uncounted = np.flatnonzero(~self.vocabulary.counted)
        if self.leak and len(uncounted):
            rng = np.random.default_rng([9, *context])
            row *= 1 - self.leak
            row[uncounted] = self.leak * rng.dirichlet(np.ones(len(uncounted)))
        return row

    def logs(self, context: tuple[int, ...]) -> np.ndarray:
        with np.errstate(divide="ignore"):
            logs = np.log(self.row(context))
        return logs + self.noise * np.random.default_rng([8, *context]).uniform(-1, 1, len(logs))

    def best(self, contexts: Sequence[tuple[int, ...]], priced: Sequence[bool]) -> list[Best]:
        found = []
        for context, price in zip(contexts, priced, strict=True):
            self.asked.add(context)
            logs = self.logs(context)
            ids = np.argsort(-logs, kind="stable")[: self.k]
            most = float(logs[ids[-1]]) if self.k < len(logs) else -math.inf
            ids = ids[logs[ids] > -math.inf]
            last = float(self.logs(context[:-1])[context[-1]]) if price and self.prices else None
            found.append(Best(ids, logs[ids], most, last))
        return found

    def info(self) -> dict[str, str]:
        return {}


def covering_of(engine: PartialLM, text: bytes, max_contexts: int = 400) -> BoundedCovering:
    return BoundedLM(engine).covering(text, tolerance=0.0, max_contexts=max_contexts)


def inside(bounds: tuple[np.ndarray, np.ndarray], truth: np.ndarray) -> None:
    lower, upper = bounds
    assert (lower >= 0).all()
    assert (upper <= 1 + ROUNDING).all()
    assert (lower <= truth + ROUNDING).all(), (lower - truth).max()
    assert (truth <= upper + ROUNDING).all(), (truth - upper).max()


def check(engine: PartialLM, case: Case, max_contexts: int) -> BoundedCovering | None:
    """All bounds of a text hold; None where it has no token string."""
    model, text = case.model, case.text
    truth = prefix_probability(text, model.p, model.vocabulary)
    try:
        covering = covering_of(engine, text, max_contexts)
    except ValueError:  # no tokens at all
        assert truth == 0
        return None
    for size in range(len(text) + 1):
        bounds = covering.prefix_logprob(size)
        part = prefix_probability(text[:size], model.p, model.vocabulary)
        assert math.exp(bounds.lower) <= part * (1 + ROUNDING)
        assert part <= math.exp(bounds.upper) * (1 + ROUNDING)
        if part > 0:
            nxt = next_character_probability(text[:size], model.p, model.vocabulary)
            inside(covering.next_bytes(size), nxt)
            masses = covering.masses(size)
            scale = math.exp(masses.log_scale)
            assert (masses.least * scale <= nxt * part + ROUNDING * part).all()
            assert (nxt * part <= masses.most * scale * (1 + ROUNDING)).all()
    ended = string_probability(text, model.p, model.vocabulary)
    bounds = covering.logprob()
    assert math.exp(bounds.lower) <= ended * (1 + ROUNDING)
    assert ended <= math.exp(bounds.upper) * (1 + ROUNDING)
    return covering


@given(cases(), st.sampled_from(KS), st.booleans(), st.sampled_from((1, 3, 10, 400)))
@examples(120)
def test_the_truth_is_inside(case: Case, k: int, prices: bool, max_contexts: int):
    check(TopK(case.model.lm, k, prices=prices), case, max_contexts)


@given(
    cases(),
    st.sampled_from(KS),
    st.booleans(),
    st.sampled_from((3, 400)),
    st.floats(0, 0.9),
    st.sampled_from((0.0, 1e-9, 1e-3, 0.3)),
)
@examples(240)
def test_what_is_told_is_off_and_some_is_not_counted(
    case: Case, k: int, prices: bool, max_contexts: int, leak: float, noise: float
):
    check(Told(case.model, k, prices=prices, leak=leak, noise=noise), case, max_contexts)


@given(cases())
@examples(120)
def test_all_told_is_all_known(case: Case):
    model, text = case.model, case.text
    covering = check(TopK(model.lm, model.vocabulary.width), case, 10**6)
    if covering is None:
        return
    bounds = covering.prefix_logprob()
    truth = prefix_probability(text, model.p, model.vocabulary)
    assert math.exp(bounds.upper) - math.exp(bounds.lower) <= ROUNDING * truth
    if truth > 0:
        lower, upper = covering.next_bytes()
        assert (upper - lower).max() <= ROUNDING


@given(cases(), st.booleans())
@examples(120)
@pytest.mark.slow
def test_more_told_is_closer(case: Case, prices: bool):
    """With all contexts visited, each token more that is told moves every bound inwards."""
    before = None
    for k in KS:
        try:
            covering = covering_of(TopK(case.model.lm, k, prices=prices), case.text, 10**6)
        except ValueError:
            return
        bounds, (lower, upper) = covering.prefix_logprob(), covering.next_bytes()
        if before is not None:
            assert math.exp(bounds.lower) >= math.exp(before[0].lower) - ROUNDING
            assert math.exp(bounds.upper) <= math.exp(before[0].upper) + ROUNDING
            assert (lower >= before[1] - ROUNDING).all()
            assert (upper <= before[2] + ROUNDING).all()
        before = bounds, lower, upper


@given(cases(), st.sampled_from(KS))
@examples(80)
def test_prices_do_not_widen(case: Case, k: int):
    try:
        without = covering_of(TopK(case.model.lm, k, prices=False), case.text, 10**6)
        priced = covering_of(TopK(case.model.lm, k), case.text, 10**6)
    except ValueError:
        return
    wide, close = without.prefix_logprob(), priced.prefix_logprob()
    assert math.exp(close.lower) >= math.exp(wide.lower) - ROUNDING
    assert math.exp(close.upper) <= math.exp(wide.upper) + ROUNDING


# --- one row -----------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.sampled_from((1, 2, 4, 7)), st.sampled_from((0.0, 0.4)))
@examples(300)
def test_bounds_of_a_set_are_reached(seed: int, k: int, leak: float):
    """No closer bounds: some distribution that tells the same has the least, and one the most."""
    rng = np.random.default_rng(seed)
    model = model_of([b"a", b"b", b"ab", b"ba", b"bb"], 1, seed, extra=2)
    engine = Told(model, k, leak=leak)
    context = model.vocabulary.bos_ids
    [best] = engine.best([context], [False])
    row = PartialRow(best, model.index, 0.0)
    chosen = rng.random(5) < 0.5
    ranks = np.flatnonzero(chosen)
    told = np.isin(row.ranks, ranks)
    lower, upper = row.bounds(row.masses[told].sum(), int(chosen.sum() - told.sum()))
    wanted = np.zeros(model.vocabulary.width, dtype=bool)
    wanted[model.index.ids[ranks]] = True
    for sign, bound in ((1, upper), (-1, lower)):
        assert extreme(best, wanted, model, sign) == pytest.approx(bound, abs=1e-12)


def extreme(best: Best, wanted: np.ndarray, model: Model, sign: int) -> float:
    """The most (least) of a share that a distribution reaches, filling tokens in each order."""
    counted = model.vocabulary.counted
    row = np.zeros(len(wanted))
    row[best.ids] = np.exp(best.logprobs)
    free = np.ones(len(row), dtype=bool)
    free[best.ids] = False
    # 1: those wanted, then what is not counted, then the others; −1: the other way round.
    order = np.where(wanted, 0, np.where(counted, 2, 1))
    left = 1 - row.sum()
    for id in sorted(np.flatnonzero(free), key=lambda id: sign * order[id]):
        row[id] = min(left, math.exp(best.most))
        left -= row[id]
    assert abs(row.sum() - 1) < 1e-9
    return float(row[wanted].sum() / row[counted].sum()) if wanted.any() else 0.0


@pytest.mark.parametrize(
    ("ids", "masses", "most", "why"),
    [
        ([0, 1], [0.7, 0.5], 0.5, "sum to 1.2"),
        ([0, 1], [0.2, 0.1], 0.1, "sum to 0.3"),
        ([0, 9], [0.7, 0.2], 0.2, "width is 4"),
        ([], [], 0.5, "tells of 0 tokens"),
    ],
)
def test_numbers_that_are_no_part_of_a_distribution(ids, masses, most, why):
    best = Best(np.array(ids, dtype=np.int64), np.log(masses), math.log(most), None)
    with pytest.raises(EngineError, match=why):
        PartialRow(best, two_ways().index, 0.0)


# --- what users hold ---------------------------------------------------------------------------


@given(cases(), st.sampled_from((1, 2, 4)))
@examples(80)
def test_next_and_score_condition_on_the_canonical_tokens_before(case: Case, k: int):
    """The truth of both is a sum over the tokenizations of what is after `exact_from`."""
    model, text = case.model, case.text
    lm = BoundedLM(TopK(model.lm, k))
    try:
        nxt, score = lm.next(text, tolerance=0), lm.score(text, tolerance=0, max_contexts=400)
    except ValueError:
        return

    def conditional(at: int, start: int) -> np.ndarray | None:
        given = tuple(canonical_before(model, text, start))
        p = lambda tokens: model.p((*given, *tokens))  # noqa: E731
        if prefix_probability(text[start:at], p, model.vocabulary) == 0:
            return None
        return next_character_probability(text[start:at], p, model.vocabulary)

    truth = conditional(len(text), nxt.exact_from)
    if truth is not None:
        inside((nxt.lower, nxt.upper), truth)
        inside((nxt.lower, nxt.upper), nxt.probs)
        assert 0.5 * np.abs(nxt.probs - truth).sum() <= nxt.error + ROUNDING
        assert nxt.probs.sum() == pytest.approx(1)
    total: float | None = 0.0
    for at, start in enumerate(score.exact_from.tolist()):
        truth = conditional(at, start)
        if truth is not None:
            assert math.exp(score.lower[at]) <= truth[text[at]] + ROUNDING
            assert truth[text[at]] <= math.exp(score.upper[at]) + ROUNDING
            total = total if total is None else total + log_of(truth[text[at]])
        else:
            total = None
    if total is not None:
        assert score.logprob.lower - 1e-9 <= total <= score.logprob.upper + 1e-9


def canonical_before(model: Model, text: bytes, start: int) -> list[int]:
    """The canonical tokens of a text up to one of their ends."""
    ids, size = list[int](), 0
    for id in model.vocabulary.encode_beginning(text):
        if size == start:
            return ids
        ids.append(id)
        size += model.index.length(id)
    assert size == start
    return ids


def test_a_context_is_not_scored():
    lm = BoundedLM(TopK(two_ways().lm, 2))
    whole, part = lm.score("abab"), lm.score("ab", context="ab")
    assert part.raw == b"ab"
    assert part.lower.tolist() == whole.lower[2:].tolist()
    assert part.upper.tolist() == whole.upper[2:].tolist()
    assert part.exact_from.tolist() == whole.exact_from[2:].tolist()
    assert lm.score("").bits_per_byte == (0.0, 0.0)


def test_fewer_contexts_than_there_are():
    engine = Told(two_ways(), 2)
    BoundedLM(engine).covering("abababab", max_contexts=5, tolerance=0)
    assert len(engine.asked) == 5


def test_greedy_and_drawn_completions():
    model = two_ways()
    lm = BoundedLM(TopK(model.lm, 4))
    greedy = lm.complete("a", max_new_bytes=6)
    assert greedy.raw == b"a" * 6  # a has 0.4 everywhere, the end 0.1
    assert greedy.missing == pytest.approx(0, abs=1e-12)
    assert lm.complete("a", max_new_bytes=6, stop="aaa").raw == b""
    drawn = [lm.complete("a", temperature=1, seed=seed, max_new_bytes=1) for seed in range(200)]
    shares = [sum(each.raw == raw for each in drawn) / 200 for raw in (b"a", b"b", b"")]
    # p(a | a) = 4/7 · 0.7, p(b | a) = 3/7 + 4/7 · 0.2, and the end 4/7 · 0.1
    for share, truth in zip(shares, (0.4, 0.542857, 0.057143), strict=True):
        assert abs(share - truth) < 0.12
    assert lm.complete("a", temperature=1, seed=3) == lm.complete("a", temperature=1, seed=3)
    cut = BoundedLM(TopK(model.lm, 2)).complete("a", temperature=1, seed=1, max_new_bytes=9)
    assert cut.missing == pytest.approx(0.3)  # of 0.4, 0.3, 0.2 and 0.1
    with pytest.raises(SettingError, match="temperature"):
        lm.complete("a", temperature=0.5)
    with pytest.raises(SettingError, match="temperature"):
        lm.complete("a", temperature=np.zeros(2))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["state", "infill", "choose", "next_chars", "stream", "scores"])
def test_what_has_no_bounds_says_so(name: str):
    lm = BoundedLM(TopK(two_ways().lm, 2))
    with pytest.raises(BoundsError, match=f"^{name} has no bounds .* use "):
        getattr(lm, name)
    assert not hasattr(lm, name)
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        lm.other  # noqa: B018
    with pytest.raises(BoundsError, match="constraint"):
        lm.next("a").under(None)
