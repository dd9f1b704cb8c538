"""Many texts in common batches: the numbers of each are those it has alone."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import charwise
import charwise.known_text.packs
from charwise import CharLM
from charwise.coverings.reference import prefix_probability
from charwise.coverings.rows import EvaluatedRows
from charwise.errors import SettingError, ZeroProbabilityError
from charwise.known_text.packs import packs
from charwise.known_text.ranges import KnownText
from charwise.known_text.rounds import PORTION, Rounds, work
from charwise.known_text.windows import Text
from charwise.tokens.prompts import split
from models import Model, examples, models, texts


@st.composite
def companies(draw: st.DrawFn) -> tuple[Model, list[bytes]]:
    """A model, and texts that it gives a positive probability."""
    model = draw(models())
    found = draw(st.lists(texts(model), min_size=2, max_size=5))
    possible = [text for text in found if prefix_probability(text, model.p, model.vocabulary) > 0]
    return model, possible


@given(companies(), st.sampled_from((1, 4, 100)))
@examples(300)
def test_a_pack_gives_the_oracles_numbers(company: tuple[Model, list[bytes]], size: int):
    model, found = company
    lm = CharLM(model.lm, preset="exact")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(charwise.known_text.packs, "PACK", size)
        scores = lm.scores(found, end=True)
    for text, score in zip(found, scores, strict=True):
        expected = prefix_probability(text, model.p, model.vocabulary)
        assert np.exp(score.logprobs.sum()) == pytest.approx(expected, rel=1e-9)
        alone = lm.score(text, end=True)
        assert score.end_logprob == pytest.approx(alone.end_logprob, rel=1e-9, abs=1e-9)
        assert (score.contexts, score.text) == (alone.contexts, alone.text)


def test_real_texts_after_contexts_and_special_tokens():
    lm = charwise.load()
    lines = [line for line in inspect.getsource(inspect).splitlines() if line.strip()][:60]
    bos = lm.vocabulary.bos_ids[0]
    prompts = [*lines, [bos, lines[0]], "", b"\xff\xfe", inspect.getsource(inspect.getdoc)]
    contexts = [*lines[1:], *lines[:1], "import os", "x", "", "# a long one\n"]
    together = lm.scores(prompts, contexts=contexts)
    for prompt, context, packed in zip(prompts, contexts, together, strict=True):
        alone = lm.score(prompt, context=context)
        assert packed.text == alone.text
        assert packed.logprobs == pytest.approx(alone.logprobs, abs=1e-3)
        assert packed.token_ends.tolist() == alone.token_ends.tolist()


def test_what_texts_share_is_evaluated_once():
    lm = charwise.load()
    opening = split(lm.vocabulary, "")[0]
    found = [b"for index, value in enumerate(" + rest for rest in (b"values):", b"items):")]

    def contexts(company: list[bytes]) -> int:
        evaluated = EvaluatedRows(lm.engine.tree(opening.ids), lm.index, retain=True)
        all_rounds = [
            Rounds(
                evaluated,
                0,
                KnownText.of(text, lm.index),
                lm.vocabulary.encode(text),
                lm.effort,
            )
            for text in company
        ]
        work([(rounds, rounds.portion(0, PORTION)) for rounds in all_rounds])
        return evaluated.tree.contexts

    apart = [contexts([text]) for text in found]
    assert max(apart) < contexts(found) < 0.8 * sum(apart)


def test_packs_keep_openings_apart_and_long_texts_alone():
    lm = charwise.load()
    openings = [
        split(lm.vocabulary, "")[0],
        split(lm.vocabulary, [lm.vocabulary.bos_ids[0], 5, 0, ""])[0],
    ]
    assert openings[0].ids != openings[1].ids
    made = [Text(openings[n % 2], b"x = 1\n" * (400 if n == 2 else 1)) for n in range(6)]
    assert [list(pack) for pack in packs(lm.engine, lm.index, made)] == [[2], [0, 4], [1, 3, 5]]


def test_what_is_impossible_in_a_pack_is_said():
    from models import by_hand

    lm = CharLM(by_hand().lm, preset="exact")
    with pytest.raises((ZeroProbabilityError, charwise.errors.TokenizationError)):
        lm.scores([b"a", b"\x00"])
    with pytest.raises(SettingError, match="2 contexts for 1 texts"):
        lm.scores(["a"], contexts=["b", "c"])
