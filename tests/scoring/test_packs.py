"""Many texts in common batches: the numbers of each are those it has alone."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import charwise
import charwise.scoring.score
from charwise import CharLM, Effort
from charwise.engine import Branches
from charwise.errors import SettingError, ZeroProbabilityError
from charwise.scoring.effort import PRESETS
from charwise.scoring.score import Scorer, Text
from models import Model, by_hand, examples, models, table, texts

approx = pytest.approx


@st.composite
def companies(draw: st.DrawFn) -> tuple[Model, list[bytes]]:
    """A model, and texts that it gives a positive probability."""
    model = draw(models())
    many = draw(st.lists(texts(model), min_size=2, max_size=5))
    possible = [text for text in many if model.prefix(text) > 0]
    return model, possible


@given(companies(), st.sampled_from((1, 4, 100)))
@examples(300)
def test_a_pack_gives_the_oracles_numbers(company: tuple[Model, list[bytes]], size: int):
    model, many = company
    lm = model.exact()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(charwise.scoring.score, "PORTION", size)
        scores = lm.scores(many, end=True)
    for text, score in zip(many, scores, strict=True):
        expected = model.prefix(text)
        assert np.exp(score.logprobs.sum()) == approx(expected, rel=1e-9)
        alone = lm.score(text, end=True)
        assert score.end_logprob == approx(alone.end_logprob, rel=1e-9, abs=1e-9)
        assert (score.contexts, score.text) == (alone.contexts, alone.text)


class Watched:
    """A `TokenLM` that writes down the contexts of every model call; the root is one of its own."""

    def __init__(self, lm: Any) -> None:
        self._lm = lm
        self.calls: list[list[tuple[int, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lm, name)

    def tree(self, ids: Sequence[int], branches: Branches = ()) -> Any:
        tree = self._lm.tree(ids)
        self.calls.append([()])

        def extend(branches: Branches, plain: Any = tree.extend) -> list[list[int]]:
            size, nodes = tree.size, plain(branches)
            if tree.size > size:
                self.calls.append([tree.tokens(node) for node in range(size, tree.size)])
            return nodes

        tree.extend = extend
        if branches:
            extend(branches)
        return tree


@given(companies(), st.sampled_from((PRESETS["exact"], Effort(2), Effort(4))))
@examples(200)
def test_contexts_and_calls_are_those_that_a_text_had_a_part_in(
    company: tuple[Model, list[bytes]], effort: Effort
):
    model, many = company
    watched = Watched(model.lm)
    lm = CharLM(watched, preset=effort)
    for text in many:
        watched.calls.clear()
        score = lm.score(text)
        assert score.calls == len(watched.calls)
        assert score.contexts == sum(map(len, watched.calls))
    # What a context spells says whose it is, if no two texts begin alike.
    apart = list({text[:1]: text for text in many if text}.values())
    watched.calls.clear()
    for text, score in zip(apart, lm.scores(apart), strict=True):
        mine = [
            [tokens for tokens in call if text.startswith(model.vocabulary.decode(tokens))]
            for call in watched.calls
        ]
        assert score.calls == sum(map(bool, mine))
        assert score.contexts == sum(map(len, mine))


def test_a_text_has_no_part_in_calls_after_it_is_done():
    model = table([b"a", b"b", b"aa"], {(): [0.4, 0.2, 0.3, 0.1]})
    lm = model.exact()
    short, long = lm.scores([b"b", b"aaaaa"])
    assert (short.calls, short.contexts) == (1, 1)  # the root says all
    assert long.calls > 3
    # [c, a], which "cab" asks for in the second round, was evaluated for "caccc" in the first.
    other = CharLM(table([b"a", b"ab", b"c", b"cc"], {(): [0.3, 0.2, 0.2, 0.2, 0.1]}).lm)
    first, second = other.scores([b"caccc", b"cab"], preset="exact")
    assert first.calls > 2
    assert (second.calls, second.contexts) == (2, 3)
    twins = lm.scores([b"aaaaa", b"aaaaa"])
    assert {(score.calls, score.contexts) for score in twins} == {(long.calls, long.contexts)}


@pytest.mark.slow
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
        assert packed.logprobs == approx(alone.logprobs, abs=5e-3)
        assert packed.token_ends.tolist() == alone.token_ends.tolist()


def test_what_texts_share_is_evaluated_once():
    lm = charwise.load()
    many = ["for index, value in enumerate(" + rest for rest in ("values):", "items):")]

    def contexts(company: list[str]) -> int:
        watched = Watched(lm.engine)
        CharLM(watched).scores(company)
        return sum(map(len, watched.calls))

    apart = [contexts([text]) for text in many]
    assert max(apart) < contexts(many) < 0.8 * sum(apart)


def test_packs_keep_openings_apart_and_long_texts_alone():
    lm = charwise.load()
    prompts = ["", [lm.vocabulary.bos_ids[0], 5, 0, ""]]
    openings = [lm.vocabulary.split_prompt(prompt)[0] for prompt in prompts]
    assert openings[0].ids != openings[1].ids
    made = [Text(openings[n % 2], b"x = 1\n" * (400 if n == 2 else 1)) for n in range(6)]
    packs = Scorer(lm.engine, lm.index, lm.effort).packs(made)
    assert [list(pack) for pack in packs] == [[2], [0, 4], [1, 3, 5]]


def test_what_is_impossible_in_a_pack_is_said():
    lm = by_hand().exact()
    with pytest.raises((ZeroProbabilityError, charwise.errors.VocabularyError)):
        lm.scores([b"a", b"\x00"])
    with pytest.raises(SettingError, match="2 contexts for 1 texts"):
        lm.scores(["a"], contexts=["b", "c"])


def test_scores_say_how_many_bytes_are_done():
    lm = charwise.load(preset="fast")
    texts = ["import os\n", "for i in range(3):\n    print(i)\n" * 12, "", "é\n" * 300]
    reports: list[tuple[int, int]] = []
    scores = lm.scores(texts, progress=lambda *state: reports.append(state))
    total = sum(len(text.encode()) for text in texts)
    assert len(reports) > 1
    assert reports == sorted(reports)
    assert reports[-1] == (total, total)
    assert {of for _, of in reports} == {total}
    for score, again in zip(scores, lm.scores(texts), strict=True):
        assert (score.logprobs == again.logprobs).all()
