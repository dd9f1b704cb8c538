"""Windows of a long text, and packs of short ones: the numbers are those of one text alone."""

import math
from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import charwise
import charwise.coverings.windows
import charwise.scoring.rounds
from charwise import CharLM, Effort, Vocabulary
from charwise.coverings.reference import conditional, prefix_probability, string_probability
from charwise.coverings.windows import Window
from charwise.engine import Branches
from charwise.engines.transformers import TransformersLM
from charwise.errors import LimitError
from charwise.scoring.effort import PRESETS
from charwise.scoring.score import Scorer, Text
from models import Case, Model, cases, examples, model_of, models, table, texts, two_ways
from tiny import random_model

approx = pytest.approx


@given(cases(possible=True), st.booleans())
@examples(300)
def test_a_text_all_of_whose_encodings_fit_is_exact(case: Case, end: bool):
    """With room for the start and a token a byte, the last byte's only for the end of the text."""
    model, text = case.model, case.text
    lm = model.windowed(max(1, len(text) + end)).exact()
    score = lm.score(text, end=end)
    assert score.logprobs.sum() == approx(math.log(model.prefix(text)), abs=1e-9)
    assert not score.error.any()
    [packed, _] = lm.scores([text, text], end=end)
    assert packed.logprobs == approx(score.logprobs, rel=1e-9, abs=1e-9)
    if end:
        whole = model.string(text)
        assert lm.logprob(text) == approx(math.log(whole) if whole else -math.inf, abs=1e-9)


def truth_of(model: Model, window_: Window, text: bytes, window: int) -> np.ndarray:
    """log →p of each prefix of a stretch after its prompt, over contexts that fit the window."""
    prompt = tuple(window_.prompt_ids)

    def p(tokens: tuple[int, ...]) -> np.ndarray:
        if len(prompt) + len(tokens) > window:
            return np.zeros(model.vocabulary.width)
        return model.lm.row((*prompt, *tokens))

    ends = range(window_.begin, window_.stop + 1)
    sums = [prefix_probability(text[window_.begin : t], p, model.vocabulary) for t in ends]
    return np.log(sums)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize(("window", "warm_up"), [(6, 1), (8, 1), (12, 2)])
def test_sliding_over_a_tiny_window(
    monkeypatch: pytest.MonkeyPatch, window: int, warm_up: int, order: int
):
    monkeypatch.setattr(charwise.coverings.windows, "WARM_UP", warm_up)
    model = model_of([b"a", b"b", b"ab", b"ba", b"bb"], order, 3)
    text = b"abbaababbbabaababbaabbbab"
    engine = model.windowed(window).lm
    opening, _ = model.vocabulary.split_prompt("")
    index, vocabulary = model.index, model.vocabulary
    canonical = vocabulary.encode(text)
    parts = list(Window.plan(engine, index, opening, text))
    assert len(parts) > 1
    # The stretches that count tile the text, after canonical tokens, and all of it fits.
    assert (parts[0].scored, parts[-1].stop) == (0, len(text))
    assert all(one.stop == other.scored for one, other in pairwise(parts))
    for n, part in enumerate(parts):
        ids = [*part.prompt_ids[1:], *part.canonical]
        assert len(opening.ids) + len(ids) <= window
        at = len(vocabulary.encode(text[: part.stop])) if n else len(ids)
        assert ids == canonical[at - len(ids) : at]
        assert vocabulary.decode(part.canonical) == text[part.begin : part.stop]
        assert n == 0 or len(ids) > len(vocabulary.encode(text[part.scored : part.stop]))
    score = CharLM(engine, preset="exact").score(text)
    for part in parts:
        truth = np.diff(truth_of(model, part, text, window))[part.scored - part.begin :]
        assert score.logprobs[part.scored : part.stop] == approx(truth, abs=1e-9)


def test_a_prompt_that_leaves_too_little_room_is_refused():
    model = two_ways()
    end = model.vocabulary.end_ids[0]
    lm = model.windowed(6).exact()
    # One token after a prompt that fills the window, but not its end.
    assert np.exp(lm.score([*[end] * 6, "a"]).logprobs) == approx([0.7])
    with pytest.raises(LimitError, match=r"6 tokens.* leaves room for 0 tokens.* of 6"):
        lm.score([*[end] * 6, "a"], end=True)
    assert lm.score([*[end] * 5, "a"], end=True).end_logprob == approx(math.log(0.1 * 4 / 7))
    # A text that ends inside a token needs the context of all its canonical tokens.
    partial = table([b"a", b"bc"], {(): [0.5, 0.3, 0.2]})
    exact = partial.windowed(3).exact().score("aab")
    assert np.exp(exact.logprobs) == approx([0.5, 0.5, 0.3])
    with pytest.raises(LimitError, match=r"leaves room for 1 tokens"):
        CharLM(partial.windowed(2).lm).score("aab")
    with pytest.raises(LimitError, match=r"leaves room for 1 tokens"):
        lm.score([*[end] * 5, "ab" * 9])


@pytest.mark.parametrize("window", [8, 16, 81])
def test_a_transformer_with_a_tiny_window(window: int):
    vocabulary = Vocabulary.from_bytes([b"a", b"b", b"ab", b"ba", None], end_ids=[4], bos_ids=[4])
    engine = TransformersLM(random_model("gpt2", 5, window=window), vocabulary)
    lm, text = CharLM(engine, preset="exact"), b"abbaaba"
    score = lm.score(text, end=True)
    p = conditional(engine)
    truth = [prefix_probability(text[:t], p, vocabulary) for t in range(len(text) + 1)]
    assert score.logprobs == approx(np.diff(np.log(truth)), abs=1e-4)
    whole = string_probability(text, p, vocabulary)
    assert lm.logprob(text) == approx(math.log(whole), abs=1e-4)
    # Longer than the window: slid over, window by window.
    for preset, unit in product(("fast", "default", "accurate"), ("abb", "abab", "aaa")):
        long = unit * window
        if window < 81:
            with pytest.raises(LimitError, match="too few to slide"):
                lm.score(long, preset=preset)
        else:
            assert np.isfinite(lm.score(long, preset=preset).logprobs).all()


# ---- packs --------------------------------------------------------------------------------------


@st.composite
def packs(draw: st.DrawFn) -> tuple[Model, list[bytes]]:
    """A model, and texts that it gives a positive probability."""
    model = draw(models())
    many = draw(st.lists(texts(model), min_size=2, max_size=5))
    possible = [text for text in many if model.prefix(text) > 0]
    return model, possible


@given(packs(), st.sampled_from((1, 4, 100)))
@examples(300)
def test_a_pack_gives_the_oracles_numbers(pack: tuple[Model, list[bytes]], size: int):
    model, many = pack
    lm = model.exact()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(charwise.scoring.rounds, "PORTION", size)
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


@given(packs(), st.sampled_from((PRESETS["exact"], Effort(2), Effort(4))))
@examples(200)
def test_contexts_and_calls_count_those_that_a_text_had_a_part_in(
    pack: tuple[Model, list[bytes]], effort: Effort
):
    model, many = pack
    watched = Watched(model.lm)
    lm = CharLM(watched, preset=effort)
    for text in many:
        watched.calls.clear()
        score = lm.score(text)
        assert score.calls == len(watched.calls)
        assert score.contexts == sum(map(len, watched.calls))
    # What texts share is evaluated once.
    watched.calls.clear()
    lm.scores(many)
    evaluated = [tokens for call in watched.calls for tokens in call]
    assert len(evaluated) == len(set(evaluated))
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
    lm = table([b"a", b"b", b"aa"], {(): [0.4, 0.2, 0.3, 0.1]}).exact()
    short, long = lm.scores([b"b", b"aaaaa"])
    assert (short.calls, short.contexts) == (1, 1)  # the root says all
    assert long.calls > 3
    twins = lm.scores([b"aaaaa", b"aaaaa"])
    assert {(score.calls, score.contexts) for score in twins} == {(long.calls, long.contexts)}
    # [c, a], which "cab" asks for in the second round, was evaluated for "caccc" in the first.
    other = CharLM(table([b"a", b"ab", b"c", b"cc"], {(): [0.3, 0.2, 0.2, 0.2, 0.1]}).lm)
    first, second = other.scores([b"caccc", b"cab"], preset="exact")
    assert first.calls > 2
    assert (second.calls, second.contexts) == (2, 3)


def test_packs_keep_openings_apart_and_long_texts_alone():
    lm = charwise.load()
    prompts = ["", [lm.vocabulary.bos_ids[0], 5, 0, ""]]
    openings = [lm.vocabulary.split_prompt(prompt)[0] for prompt in prompts]
    assert openings[0].ids != openings[1].ids
    made = [Text(openings[n % 2], b"x = 1\n" * (400 if n == 2 else 1)) for n in range(6)]
    packs = Scorer(lm.engine, lm.index, lm.effort).packs(made)
    assert [list(pack) for pack in packs] == [[2], [0, 4], [1, 3, 5]]


def test_progress_counts_the_bytes_that_are_scored():
    lm = charwise.load(preset="fast")
    many = ["import os\n", "for i in range(3):\n    print(i)\n" * 12, "", "é\n" * 300]
    reports: list[tuple[int, int]] = []
    lm.scores(many, progress=lambda *state: reports.append(state))
    total = sum(len(text.encode()) for text in many)
    assert len(reports) > 1
    assert reports == sorted(reports)
    assert reports[-1] == (total, total)
    assert {of for _, of in reports} == {total}
