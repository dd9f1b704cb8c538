"""Cases in which published implementations were seen to fail: here each works, or says why not.

Untrained Llama and GPT-2 models, with tokenizers trained on this very file, so that no data is
needed; and the embedded model.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from charwise import CharLM, Effort, Vocabulary
from charwise.engines.ngram import NgramLM
from charwise.engines.transformers import TransformersLM
from charwise.errors import ZeroProbabilityError
from models import random_lm, table
from tiny import random_model, trained_tokenizer

approx = pytest.approx

TEXT = Path(__file__).read_text(encoding="utf-8")
END = "<|endoftext|>"
KINDS = ("llama", "gpt2")

#: Columns of the output layer beyond the tokenizer.
WIDER = 13


@cache
def tokenizer(start_token: bool) -> PreTrainedTokenizerFast:
    return trained_tokenizer(TEXT, 500, END, start_token)


@cache
def small(
    kind: str = "llama", start_token: bool = True, head: float = 1.0, window: int = 256
) -> CharLM:
    """An untrained model; `head` multiplies its output layer."""
    tokens = tokenizer(start_token)
    width = len(tokens) + WIDER
    shared = {"bos_token_id": None, "eos_token_id": 0, "tie_word_embeddings": False}
    model = random_model(kind, width, window=window, **shared)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(head)
    return CharLM(TransformersLM(model, Vocabulary.from_transformers(tokens, width)))


def sound(lm: CharLM, prompt: Any) -> None:
    """Everything one can ask after a prompt is finite, sums to 1, and is the same again."""
    nxt = lm.next(prompt)
    assert np.isfinite(nxt.probs).all()
    assert nxt.probs.sum() == approx(1)
    assert (lm.next(prompt).probs == nxt.probs).all()
    score = lm.score(prompt, end=True)
    assert np.isfinite(score.logprobs).all()
    assert not math.isnan(score.end_logprob or 0.0)
    again = lm.score(prompt, end=True)
    assert (again.logprobs == score.logprobs).all()
    assert again.end_logprob == score.end_logprob
    [one] = lm.complete(prompt, max_new_bytes=8)
    assert lm.complete(prompt, max_new_bytes=8) == [one]
    assert math.isfinite(one.logprob)


# ---- tokenizers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_without_a_start_token(kind: str):
    lm = small(kind, start_token=False)
    assert lm.vocabulary.bos_ids == (0,), "the end of text stands in"
    assert "end" in lm.vocabulary.bos_rule
    for prompt in ("", "de", "def test_pro", [0, "de"]):
        sound(lm, prompt)
    assert lm.next("").probs == approx(lm.next([0]).probs)


@pytest.mark.parametrize("kind", KINDS)
def test_an_output_layer_wider_than_the_tokenizer(kind: str):
    lm = small(kind)
    width = lm.vocabulary.width
    assert width == len(tokenizer(True)) + WIDER
    logs = lm.engine.tree(lm.vocabulary.bos_ids).logprobs([0])[0]
    assert logs[-WIDER:].exp().sum() == 0
    assert float(logs.double().exp().sum()) == approx(1, abs=1e-5)
    # Without the columns that spell nothing, the probabilities of what is spelled sum to one.
    nxt = lm.next("def test_pro")
    assert nxt.probs.sum() == approx(1)
    result = lm.complete("de", n=20, temperature=5.0, seed=0, max_new_bytes=20)
    assert len(result) > 1
    assert max(max(completion.token_ids) for completion in result) < width - WIDER


# ---- numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_very_peaked_model(kind: str):
    """Logits thousands apart: what is not certain is below the least float, and said to be."""
    lm = small(kind, head=1e3)
    nxt = lm.next("")
    assert np.isfinite(nxt.probs).all()
    assert nxt.probs.sum() == approx(1)
    assert nxt.entropy >= 0
    [likely] = lm.complete("", max_new_bytes=12)
    assert math.isfinite(likely.logprob)
    if likely.raw:
        score = lm.score(likely.raw)
        assert np.isfinite(score.logprobs).all()
        assert lm.next(likely.raw).probs.sum() == approx(1)
    for temperature in (1e-6, 1.0, 1e6):
        result = lm.complete("", n=3, temperature=temperature, seed=0, max_new_bytes=6)
        assert result
        assert not any(math.isnan(c.logprob) for c in result)
    for text in ("def", "zzzzzz", "x = 1\n", "\x00"):
        try:
            logprobs = lm.score(text).logprobs
        except ZeroProbabilityError:
            continue
        assert np.isfinite(logprobs).all()


def test_a_state_takes_the_lighter_way_if_only_that_goes_on():
    lighter = CharLM(table([b"ab", b"a"], {(): [0.6, 0.3, 0.1]}).lm, preset=Effort(1))
    state = lighter.state("") + "a" + "a"
    assert state.logprob == approx(math.log(0.3 * 0.9))
    assert state.next().probs[[ord("a"), ord("b"), 256]] == approx([0.3, 2 / 3, 0.1 / 3])


# ---- odd cases ----------------------------------------------------------------------------------


@pytest.mark.parametrize("effort", [Effort(1), Effort(2)])
def test_a_threshold_above_every_alternative(effort: Effort):
    """Three twins, none of which reaches the threshold: the better part is evaluated anyway."""
    vocabulary = Vocabulary.from_bytes([b"x", b"x", b"x", b"y", None], end_ids=[4], bos_ids=[4])
    lm = CharLM(NgramLM(vocabulary, 1, {(): [0.3, 0.3, 0.3, 0.05, 0.05]}), preset=effort)
    for state in (lm.state("x"), lm.state("") + "x", lm.state("xx"), lm.state("x") + "x"):
        assert state.next()["x"] == approx(0.9)
        assert state.error < 1
    assert np.isfinite(lm.score("xxyx").logprobs).all()


def test_the_least_probabilities():
    vocabulary = Vocabulary.from_bytes([b"a", b"b", b"bc", None], end_ids=[3], bos_ids=[3])
    lm = CharLM(NgramLM(vocabulary, 1, {(): [0.5, 1e-312, 1e-312, 0.5]}))
    assert lm.prefix_logprob("b") == approx(math.log(2) + math.log(1e-312))
    assert lm.prefix_logprob("bb") == approx(math.log(2) + 2 * math.log(1e-312))
    for state in (lm.state("b"), lm.state("") + "b"):
        assert state.next()["c"] == approx(0.5)
    assert lm.complete("b", max_new_bytes=1)[0].raw in (b"", b"a", b"c")
    assert lm.score("bb", entropy="byte").entropies == approx([1.0, 1.5])


def test_an_interrupted_evaluation_leaves_no_trace(monkeypatch: pytest.MonkeyPatch):
    tokens = [b"a", b"b", b"c", b"z", b"ab", b"ca", None]
    vocabulary = Vocabulary.from_bytes(tokens, end_ids=[6], bos_ids=[6])
    lm = CharLM(random_lm(vocabulary, 3, 5))
    expected = (lm.state("ab") + "cabca").next().probs
    state = lm.state("ab")
    with monkeypatch.context() as patch:

        def interrupt(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(type(state.shared.tree), "extend", interrupt)
        with pytest.raises(KeyboardInterrupt):
            state + "cabca"
    state + "zzzzz"
    assert (state + "cabca").next().probs == approx(expected)
