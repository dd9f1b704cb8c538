"""`Score.audit`: an estimate beside the score, that knows no rule of it."""

from __future__ import annotations

import gc
import pickle

import numpy as np
import pytest

import charwise
from charwise import CharLM, Score
from charwise.coverings.reference import prefix_probability
from charwise.engines.ngram import NgramLM
from charwise.errors import ContextLengthError, EmptyBeamError, SettingError
from charwise.tokens.vocabulary import Vocabulary
from models import Model, random_lm, two_ways
from near import approx


def test_of_repeats_finds_what_a_beam_of_rules_may_lose():
    """Between its own doubts, the estimate is where `covering` has it."""
    lm = charwise.load()
    text = "foo " * 8
    audit = lm.score(text, preset="fast").audit(64, seed=1)
    truth = lm.covering(text, tolerance=1e-2, max_contexts=3000).prefix_logprob()
    slack = 4 * audit.error + 1e-3
    assert truth.lower - slack <= audit.logprob <= truth.upper + slack
    assert audit.error < 0.1


def test_with_a_context_it_is_the_conditional_probability():
    vocabulary = two_ways().vocabulary
    engine = random_lm(vocabulary, 3, seed=8)
    lm, model = CharLM(engine), Model(vocabulary, engine)
    whole, given = (prefix_probability(text, model.p, vocabulary) for text in (b"abaab", b"ab"))
    score = lm.score(b"aab", context=b"ab", preset="exact")
    audit = score.audit(16, seed=2)  # two contexts a beam, of up to five
    assert abs(np.exp(audit.logprob) / (whole / given) - 1) < 5 * audit.error < 1
    assert audit.scored == approx(np.log(whole / given), abs=1e-9)
    assert audit.difference == audit.scored - audit.logprob


def test_the_same_seed_draws_the_same():
    lm = charwise.load()
    score = lm.score("ValueErrValueErr")
    assert score.audit(8, seed=4) == score.audit(8, seed=4)
    assert score.audit(8, seed=4).logprob != score.audit(8, seed=5).logprob


def test_the_empty_text_is_certain():
    lm = charwise.load()
    audit = lm.score("").audit(8)
    assert (audit.logprob, audit.error, audit.scored) == (0.0, 0.0, 0.0)


def test_beams_that_all_end_on_the_way_say_so_and_more_contexts_help():
    vocabulary = Vocabulary.from_bytes([b"a", b"ab", b"b", None], end_ids=[3], bos_ids=[3])
    after = {(3,): [1 - 1e-9, 1e-9, 0.0, 0.0], (0,): [0.0, 0.0, 1.0, 0.0]}
    after |= {(1,): [0.0, 0.0, 1.0, 0.0], (2,): [0.5, 0.0, 0.0, 0.5]}  # no second b after a, b
    lm = CharLM(NgramLM(vocabulary, 2, after))
    score = lm.score("abb", preset="exact")
    with pytest.raises(EmptyBeamError, match="n is 8: none of 8 beams of 1"):
        score.audit(8)
    assert score.audit(64).logprob == approx(np.log(1e-9), abs=1e-6)


def test_what_cannot_be_audited_says_why():
    lm = charwise.load()
    zeros = np.zeros(1)
    with pytest.raises(SettingError, match="does not know its model"):
        Score(b"a", zeros, zeros, zeros, contexts=0, calls=0).audit()
    score = lm.score("import os")
    with pytest.raises(SettingError, match="n is 7"):
        score.audit(7)
    sent = pickle.loads(pickle.dumps(score))
    assert sent.auditor is None
    assert (sent.logprobs == score.logprobs).all()
    with pytest.raises(ContextLengthError, match="fit the model's window"):
        lm.score("é" * 1500).audit()


def test_a_score_does_not_keep_the_model():
    lm = CharLM(random_lm(two_ways().vocabulary, 2, seed=1))
    score = lm.score(b"ab")
    del lm
    gc.collect()
    with pytest.raises(SettingError, match="is gone"):
        score.audit()
