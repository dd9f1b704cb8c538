"""Windows: what fits is scored whole, and what does not is slid over, or refused."""

from __future__ import annotations

import math
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import charwise.coverings.windows
from charwise import CharLM, SortedVocabulary, Vocabulary
from charwise.coverings.reference import conditional, prefix_probability, string_probability
from charwise.coverings.windows import Window
from charwise.engines.transformers import TransformersLM
from charwise.errors import LimitError
from charwise.scoring.effort import PRESETS
from charwise.scoring.score import Scorer, Text
from models import Case, Model, cases, close_logs, examples, model_of, table, two_ways
from tiny import random_model

approx = pytest.approx


@given(cases(), st.booleans())
@examples(300)
def test_a_text_all_of_whose_encodings_fit_is_exact(case: Case, end: bool):
    """With room for the start and a token a byte, the last byte's only for the end of the text."""
    model, text = case.model, case.text
    truth = model.prefix(text)
    if truth == 0:
        return
    lm = model.windowed(max(1, len(text) + end)).exact()
    score = lm.score(text, end=end)
    assert close_logs(score.logprobs.sum(), math.log(truth))
    assert not score.error.any()
    [packed, _] = lm.scores([text, text], end=end)
    assert packed.logprobs == approx(score.logprobs, rel=1e-9, abs=1e-9)
    if end:
        whole = model.string(text)
        assert close_logs(lm.logprob(text), math.log(whole) if whole else -math.inf)


def truth_of(model: Model, window_: Window, text: bytes, window: int) -> np.ndarray:
    """log →p of each prefix of a stretch after its prompt, over contexts that fit the window."""
    prompt = tuple(window_.prompt_ids)

    def p(tokens: tuple[int, ...]) -> np.ndarray:
        if len(prompt) + len(tokens) > window:
            return np.zeros(model.vocabulary.width)
        context = (*prompt, *tokens)
        return model.lm.row(context[max(0, len(context) - model.lm.order + 1) :])

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


def test_what_is_refused():
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
    index = SortedVocabulary(vocabulary)
    for preset, unit in product(("fast", "default", "accurate"), ("abb", "abab", "aaa")):
        opening, long = vocabulary.split_prompt(unit * window)
        scorer = Scorer(engine, index, PRESETS[preset])
        if window < 81:
            with pytest.raises(LimitError, match="too few to slide"):
                scorer.scores([Text(opening, long)])
            continue
        [result] = scorer.scores([Text(opening, long)])
        assert len(result.logprobs) == len(unit) * window
        assert np.isfinite(result.logprobs).all()
