"""Completions between two sides, by models that fill in: typing goes on from what is known."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from charwise import CharLM
from charwise.cursor.middle import opening_of, score_middles
from charwise.cursor.options import GenerationOptions, Limit
from charwise.errors import CharwiseError, VocabularyError, ZeroProbabilityError
from charwise.scoring.score import Scorer
from charwise.serve.completions import Completions
from charwise.serve.memory import Memory
from charwise.serve.prompts import sides_of
from charwise.serve.task import CompletionTask
from models import examples, models, texts, with_sentinels


@st.composite
def typed(draw: st.DrawFn) -> tuple[CharLM, list[bytes], bytes]:
    """A model, a prefix and what becomes of it key by key, and a suffix."""
    model = draw(models())
    whole, suffix = draw(texts(model, 8)), draw(texts(model, 4))
    sizes = draw(st.lists(st.integers(0, len(whole)), min_size=1, max_size=5))
    lm = CharLM(with_sentinels(model).lm, preset="exact")
    return lm, [whole[:size] for size in sizes], suffix


@given(typed())
@examples(60)
def test_what_is_typed_begins_the_middle(case: tuple[CharLM, list[bytes], bytes]) -> None:
    lm, prefixes, suffix = case
    memory = Memory(lm)
    for prefix in prefixes:
        try:
            known = memory.between(prefix, suffix)
            found = known.state.next().probs
        except (ZeroProbabilityError, VocabularyError):  # random models often cannot write it
            continue
        assert known.text == prefix
        assert known.request is not None
        opening = known.state.shared.opening
        expected = lm.next([*opening.ids, known.state.raw]).probs
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
        read = len(known.request.forced)
        assert known.state.raw[:read] == known.request.forced[: len(known.state.raw)]
        assert prefix.endswith(known.state.raw[read:])


@given(typed())
@examples(60)
def test_completions_between_two_sides_end(case: tuple[CharLM, list[bytes], bytes]) -> None:
    lm, prefixes, suffix = case
    completions = Completions(lm)
    for prefix in prefixes:
        asked = CompletionTask(prefix, suffix, options=GenerationOptions(n=2), max_bytes=6)
        try:
            answer = completions.answer(asked, Limit())
        except CharwiseError:
            continue
        for one in answer.candidates:
            assert len(one.raw) <= 6 + len(suffix)
            assert 0 <= one.probability <= 1


@given(typed())
@examples(20)
def test_middles_are_ranked_by_their_sums(case: tuple[CharLM, list[bytes], bytes]) -> None:
    """Among several that ended by themselves the most probable string comes first."""
    lm, prefixes, suffix = case
    completions = Completions(lm)
    for prefix in prefixes:
        asked = CompletionTask(prefix, suffix, options=GenerationOptions(n=3), max_bytes=8)
        try:
            found = completions.answer(asked, Limit()).candidates
            known = completions.memory.between(prefix, suffix)
        except CharwiseError:  # random models often cannot write it
            continue
        between = sides_of(asked, lm.vocabulary).between  # not where nothing follows
        if not between or len(found) < 2 or any(one.finish != "end" for one in found):
            continue
        assert known.request is not None
        lead = opening_of(known.request, lm.index)[1]
        typed_since = known.state.whole[len(lead) :]
        if not known.state.whole.startswith(lead):  # deleted into what the prefix gave back
            continue
        sums = [
            score_middles(
                Scorer(lm.engine, lm.index, lm.effort, lm.limits),
                known.request,
                [typed_since + one.raw],
            )[0]
            for one in found
        ]
        assert sums == sorted(sums, reverse=True)
