"""Rounds in portions against the oracle, and what the evaluation package makes of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import charwise.known_text.rounds
from charwise import CharLM
from charwise.coverings.reference import next_character_probability, prefix_probability
from charwise.errors import SettingError
from charwise.evaluation.distance import bootstrap, js_distance
from charwise.evaluation.methods import walk_beam, walk_canonical, walk_rounds
from charwise.known_text.effort import PRESETS
from models import Case, cases, examples


@given(cases(), st.sampled_from((1, 2, 3)))
@examples(300)
def test_portions_change_no_number(case: Case, portion: int):
    """Nothing is lent, so the oracle's sums come out however the text is cut into portions."""
    model, text = case.model, case.text
    if prefix_probability(text, model.p, model.vocabulary) == 0:
        return
    lm = CharLM(model.lm, preset="exact")
    whole = lm.score(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(charwise.known_text.rounds, "PORTION", portion)
        patch.setattr(charwise.known_text.rounds, "LEAST", 1)
        cut = lm.score(text)
        distributions = walk_rounds(lm, text, PRESETS["exact"], distributions=True).distributions
    assert cut.logprobs == pytest.approx(whole.logprobs, rel=1e-9, abs=1e-9)
    assert distributions is not None
    for t in range(len(text)):
        expected = next_character_probability(text[:t], model.p, model.vocabulary)
        assert distributions[t] == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(cases())
@examples(100)
def test_a_wide_beam_and_exact_rounds_walk_alike(case: Case):
    model, text = case.model, case.text
    if not text or prefix_probability(text, model.p, model.vocabulary) == 0:
        return
    lm = CharLM(model.lm, preset="exact")
    beam = walk_beam(lm, text, 10_000, distributions=True)
    rounds = walk_rounds(lm, text, PRESETS["exact"], distributions=True)
    assert beam.logprobs == pytest.approx(rounds.logprobs, rel=1e-9, abs=1e-9)
    assert beam.distributions is not None
    assert rounds.distributions is not None
    assert js_distance(beam.distributions, rounds.distributions) == pytest.approx(0, abs=1e-6)


def test_plain_perplexity_is_that_of_the_canonical_tokens():
    lm = charwise.load()
    text = "import os\nimport sys\n"
    walk = walk_canonical(lm, text)
    model, ids = lm.engine.model, [*lm.vocabulary.bos_ids, *lm.vocabulary.encode(text)]
    import torch

    with torch.inference_mode():
        logs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = logs[range(len(ids) - 1), ids[1:]].sum().item()
    assert walk.logprobs.sum() == pytest.approx(expected, abs=1e-3)
    # Summing over all tokenizations can only add.
    assert lm.score(text, preset="accurate").logprobs.sum() >= walk.logprobs.sum() - 1e-3


def test_distances():
    p = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    q = np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    assert js_distance(p, q).tolist() == [0.0, 1.0]
    assert js_distance(p, q).tolist() == js_distance(q, p).tolist()
    with pytest.raises(SettingError, match="shapes"):
        js_distance(p, q[:1])


def test_bootstrap():
    mean = bootstrap(np.arange(100.0))
    assert mean.low < mean.value == 49.5 < mean.high
    assert bootstrap(np.arange(100.0)) == mean
    with pytest.raises(SettingError, match="nothing"):
        bootstrap(np.array([]))
