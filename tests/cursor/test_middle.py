"""The exact way to fill in the middle, against sums over all token strings.

What the two sides give up, and how the prompt is laid out, is in tests/healing.
"""

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import charwise
from charwise import CharLM
from charwise.coverings.covering import covering_size
from charwise.coverings.reference import conditional, prefix_probability, string_probability
from charwise.cursor.generation import whole_characters
from charwise.cursor.middle import opening_of
from charwise.cursor.shared_tree import EXACT_TOKENS
from charwise.cursor.state import begin
from charwise.errors import VocabularyError, ZeroProbabilityError
from charwise.healing.fim import Template
from charwise.scoring.effort import Effort
from models import (
    CLOSE,
    Model,
    close_logs,
    examples,
    log_of,
    model_of,
    models,
    texts,
    with_sentinels,
)


@st.composite
def tasks(draw: st.DrawFn) -> tuple[Model, Template, bytes, bytes, bytes, str]:
    """A model with sentinels, a prefix, a middle, a suffix and an order."""
    model = with_sentinels(draw(models()))
    whole = draw(texts(model, 7))  # and 3 bytes more, so that sums are exact
    rng = random.Random(draw(st.integers(0, 2**32 - 1)))
    a, b = sorted(rng.choices(range(len(whole) + 1), k=2))
    order = draw(st.sampled_from(("psm", "spm")))
    return model, Template.of(model.vocabulary), whole[:a], whole[a:b], whole[b:], order


@given(tasks())
@examples(120)
def test_scores_are_sums_over_all_token_strings(parts: tuple[Any, ...]) -> None:
    model, template, prefix, middle, suffix, order = parts
    lm, settings, vocabulary = (
        model.exact(),
        {"order": order, "template": template},
        model.vocabulary,
    )
    try:
        task = lm.infill_request(prefix, suffix, **settings)
    except VocabularyError:
        return  # no prompt can hold such a text
    if order == "psm":
        assert task.forced == vocabulary.decode(vocabulary.encode(prefix)[-EXACT_TOKENS:])
    opening, before = opening_of(task, lm.index)
    text = before + middle + task.ending
    if covering_size(model.index, text) > 400:
        return
    p = conditional(model.lm, opening.ids)
    condition = prefix_probability(before, p, vocabulary)
    if condition == 0:
        with pytest.raises(ZeroProbabilityError):
            lm.infill(prefix, suffix, **settings)
        return
    expected = log_of(string_probability(text, p, vocabulary)) - math.log(condition)
    assert close_logs(lm.score_infill(prefix, middle, suffix, **settings), expected)


@given(tasks())
@examples(60)
def test_middles_come_by_falling_probability_and_end_where_their_sum_is_greatest(
    task: tuple[Any, ...],
) -> None:
    """Of all places where a candidate may end, and of none; the sums are those of the oracle."""
    model, template, prefix, _, suffix, order = task
    lm, settings = model.exact(), {"order": order, "template": template}
    try:
        [best] = lm.infill(prefix, suffix, max_new_bytes=3, **settings)
        result = lm.infill(prefix, suffix, n=4, max_new_bytes=3, **settings)
    except (VocabularyError, ZeroProbabilityError):
        return
    assert len({one.raw for one in result}) == len(result)
    assert [one.logprob for one in result] == sorted((one.logprob for one in result), reverse=True)
    opening, text = opening_of(lm.infill_request(prefix, suffix, **settings), lm.index)
    p, ending = conditional(model.lm, opening.ids), best.ending

    def total(middle: bytes) -> float:
        return string_probability(text + middle + ending, p, model.vocabulary)

    for one in result:
        assert len(one.raw) <= 3
        assert prefix.endswith(one.forced)
        assert suffix.startswith(one.ending)
        if covering_size(model.index, text + one.raw + ending) <= 400:
            before = math.log(prefix_probability(text, p, model.vocabulary))
            assert close_logs(one.logprob, log_of(total(one.raw)) - before)
    state, middles = begin(lm.engine, opening, text, lm.effort), {b""}
    for candidate in state.complete(max_new_bytes=3 + len(ending), n=3):
        raw, whole = candidate.raw, len(candidate.raw)
        # Where the ending is written; at the end of a text that the model ended, a part of it.
        places = [at for at in range(whole) if ending and raw[at:].startswith(ending)] + [whole]
        if candidate.finish == "end":
            places += [at for at in range(whole + 1) if ending.startswith(raw[at:])]
        middles |= {raw[:at] for at in places if at <= 3} or {whole_characters(prefix, raw[:3])}
    assert best.raw in middles
    if all(covering_size(model.index, text + one + ending) <= 400 for one in middles):
        assert total(best.raw) == pytest.approx(max(map(total, middles)), **CLOSE)


def test_one_middle_is_the_first_of_three() -> None:
    lm = charwise.load()
    for suffix in ("e(3):", "nge(10):\n    print(i)\n"):
        [one] = lm.infill("for i in ra", suffix, max_new_bytes=16)
        assert one == lm.infill("for i in ra", suffix, max_new_bytes=16, n=3)[0]
        assert one.logprob >= lm.score_infill("for i in ra", "", suffix) - 1e-6


def test_what_does_not_fit_the_window_is_cut_and_the_answer_says_so() -> None:
    lm = with_sentinels(model_of([bytes([c]) for c in b"abcdefghij"], 2, 3)).windowed(64).exact()
    before, after = "abcdefghij" * 9, "j" * 100
    for order in ("psm", "spm"):
        settings: Any = {"max_new_bytes": 2, "order": order}
        [short] = lm.infill("abc", "defg", **settings)
        assert (short.prefix_cut, short.suffix_cut) == (0, 0)
        [long] = lm.infill(before, after, **settings)
        assert long.prefix_cut + long.suffix_cut == 190 - (64 - 64 // 4 - 4)
        # The far ends are what is lost: the same texts without them are asked the same.
        again = lm.infill(before[long.prefix_cut :], after[long.suffix_cut :], **settings)
        assert [(one.raw, one.logprob) for one in again] == [(long.raw, long.logprob)]


@pytest.mark.parametrize("limit", range(8))
def test_a_middle_at_its_limit_ends_with_a_whole_character(limit: int) -> None:
    """With tokens of whole characters alone, half of one could not be scored."""
    tokens = [word.encode() for word in ("漢", "字", "漢字", "x")]
    lm = with_sentinels(model_of(tokens, 2, 5)).exact()
    for temperature in (0.0, 1.0):
        for one in lm.infill("x漢", "x", max_new_bytes=limit, n=3, temperature=temperature, seed=1):
            assert one.raw.decode() == one.text
            assert len(one.raw) <= limit
            assert one.logprob > -math.inf
    assert lm.score_infill("x漢", "字".encode()[:1], "x") == -math.inf


@given(tasks(), st.sampled_from([Effort(1), Effort(2)]))
@examples(60)
def test_a_coarse_effort_drops_no_middle(task: tuple[Any, ...], effort: Effort) -> None:
    """A middle that the model writes has a probability, however little is spent on the sum."""
    model, template, prefix, _, suffix, order = task
    lm = CharLM(model.lm, preset=effort)
    try:
        middles = lm.infill(prefix, suffix, max_new_bytes=4, order=order, template=template)
    except (VocabularyError, ZeroProbabilityError):
        return
    exact = model.exact()
    for one in middles:
        if one.logprob == -math.inf:
            true = exact.score_infill(prefix, one.raw, suffix, order=order, template=template)
            assert true == -math.inf
