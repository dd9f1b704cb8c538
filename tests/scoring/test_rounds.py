"""Rounds against the oracle: portions, calls, and what they cost."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import charwise
import charwise.scoring.rounds
from charwise import CharLM
from charwise.scoring.effort import PRESETS
from models import Case, cases, examples, table
from paper import js_distance, walk_beam, walk_canonical, walk_rounds

approx = pytest.approx


def small_portions(patch: pytest.MonkeyPatch, portion: int) -> None:
    patch.setattr(charwise.scoring.rounds, "PORTION", portion)
    patch.setattr(charwise.scoring.rounds, "LOOKAHEAD", 2)


@given(cases(possible=True), st.sampled_from((1, 2, 3)))
@examples(300)
def test_portions_change_no_number(case: Case, portion: int):
    """The oracle's sums come out however the text is cut into portions."""
    model, text = case.model, case.text
    lm = model.exact()
    whole = lm.score(text)
    with pytest.MonkeyPatch.context() as patch:
        small_portions(patch, portion)
        cut = lm.score(text)
        distributions = walk_rounds(lm, text, PRESETS["exact"], rows=True).distributions
    assert cut.logprobs == approx(whole.logprobs, rel=1e-9, abs=1e-9)
    for t in range(len(text)):
        expected = model.next(text[:t])
        assert distributions[t] == approx(expected, rel=1e-9, abs=1e-12)


@given(cases(possible=True))
@examples(100)
def test_a_wide_beam_and_exact_refinement_walk_alike(case: Case):
    model, text = case.model, case.text
    lm = model.exact()
    beam = walk_beam(lm, text, 10_000, rows=True)
    refined = walk_rounds(lm, text, PRESETS["exact"], rows=True)
    assert beam.logprobs == approx(refined.logprobs, rel=1e-9, abs=1e-9)
    assert js_distance(beam.distributions, refined.distributions) == approx(0, abs=1e-6)


@given(cases(possible=True), st.sampled_from(("fast", "default", "accurate")))
@examples(300)
def test_distributions_hold_the_bytes_that_came(case: Case, preset: str):
    """At every byte the distribution sums to 1, and gives the byte what the score gives it."""
    model, text = case.model, case.text
    score = CharLM(model.lm, preset=preset).score(text, entropy="char")
    assert score.distributions.sum(axis=1) == approx(1)
    came = score.distributions[np.arange(len(text)), np.frombuffer(text, np.uint8)]
    # What is missing is not in the distribution, so its bytes share it; the error is no less.
    assert (came >= np.exp(score.logprobs - score.error) - 1e-9).all()


@pytest.mark.parametrize(
    ("preset", "pairs", "portion"),
    [*product(["fast", "default", "accurate"], [40], [8, 192]), ("default", 200, 192)],
)
def test_a_long_text_whose_canonical_tokens_are_impossible(
    monkeypatch: pytest.MonkeyPatch, preset: str, pairs: int, portion: int
):
    """After "ab" the model always ends, so all but the last is spelled in two tokens."""
    small_portions(monkeypatch, portion)
    row = [0.4, 0.4, 0.1, 0.1]
    rows = {(3,): row, (0,): row, (1,): row, (2,): [0, 0, 0, 1]}
    lm = CharLM(table([b"a", b"b", b"ab"], rows, order=2).lm, preset=preset)
    true = (2 * pairs - 2) * math.log(0.4) + math.log(0.4**2 + 0.1)
    score = lm.score("ab" * pairs)
    assert score.logprobs.sum() == pytest.approx(true, rel=1e-9)
    assert score.error.sum() < (1 if preset == "fast" else 1e-6)


@pytest.mark.slow
def test_long_portions_carry_their_sums_over():
    """A text of many portions costs what its parts cost, and is no worse at the seams."""
    lm = charwise.load()
    text = "".join(f"def area_{n}(radius):\n    return {n} * radius ** 2\n\n\n" for n in range(60))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(charwise.scoring.rounds, "PORTION", 10_000)
        whole = lm.score(text)
    cut = lm.score(text)
    assert cut.contexts != whole.contexts
    assert cut.logprobs.sum() == approx(whole.logprobs.sum(), abs=0.5)


# ---- calls --------------------------------------------------------------------------------------


@given(cases(possible=True), st.sampled_from((1, 2, 5)))
@examples(100)
def test_the_size_of_calls_changes_no_number(case: Case, contexts: int):
    model, text = case.model, case.text
    whole = model.exact().score(text, end=True)
    with pytest.MonkeyPatch.context() as patch:
        memory = 4 * model.vocabulary.width * contexts
        patch.setattr(charwise.scoring.rounds, "CALL_MEMORY", memory)
        cut = model.exact().score(text, end=True)
    assert cut.logprobs == approx(whole.logprobs, rel=1e-9, abs=1e-9)
    assert cut.contexts == whole.contexts
    assert cut.calls >= (whole.contexts - 1) / contexts


def test_easy_text_takes_few_contexts_and_calls():
    lm = charwise.load()
    text = "import os\n\n\nclass Node:\n    def __init__(self, value):\n        pass\n" * 3
    score = lm.score(text, preset="fast")
    assert score.contexts < 1.1 * len(text)
    assert score.calls <= 5


# ---- whole texts --------------------------------------------------------------------------------


def test_plain_perplexity_is_that_of_the_canonical_tokens():
    lm = charwise.load()
    text = "import os\nimport sys\n"
    walk = walk_canonical(lm, text)
    model, ids = lm.engine.model, [*lm.vocabulary.bos_ids, *lm.vocabulary.encode(text)]
    with torch.inference_mode():
        logs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = logs[range(len(ids) - 1), ids[1:]].sum().item()
    assert walk.logprobs.sum() == approx(expected, abs=1e-3)
    # Summing over all tokenizations can only add.
    assert lm.score(text, preset="accurate").logprobs.sum() >= walk.logprobs.sum() - 1e-3
