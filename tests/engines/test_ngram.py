"""The exact n-gram engine: its rows are probabilities, and its trees are products of them."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from charwise.engines.ngram import NgramLM
from charwise.errors import ModelError
from charwise.tokens.vocabulary import Vocabulary
from models import examples, random_lm
from trees import LAWS, Subject

VOCABULARY = Vocabulary.from_bytes(
    [b"a", b"b", b"ab", b"a", None, None], end_ids=[4], bos_ids=[5], width=8
)
CONTEXTS = st.lists(st.integers(0, 4), max_size=5)


def some_lm(seed: int, order: int = 2, zeros: float = 0.3, **options) -> NgramLM:
    return random_lm(VOCABULARY, order, seed, zeros=zeros, **options)


@given(
    seed=st.integers(0, 2**32),
    order=st.integers(1, 4),
    zeros=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    power=st.sampled_from([1.0, 4.0, 16.0]),
    context=CONTEXTS,
)
@examples(100)
def test_rows_are_probabilities(seed, order, zeros, power, context):
    lm = some_lm(seed, order, zeros, power=power)
    row = lm.row([5, *context])
    assert row.sum() == pytest.approx(1, abs=1e-12)
    assert (row >= 0).all()
    assert not row[~VOCABULARY.counted].any()
    assert row[0] > 0  # the way to the end
    assert lm.row([5, *context, 0])[4] > 0
    if zeros == 0:
        assert (row[VOCABULARY.counted] > 0).all()
    if zeros == 1 and order > 1:
        assert np.count_nonzero(lm.row([5, 1])) == 1


@given(seed=st.integers(0, 2**32), context=CONTEXTS)
@examples(100)
def test_a_row_depends_on_its_context_alone(seed, context):
    one, other = some_lm(seed, 3), some_lm(seed, 3)
    other.row([2, 2])  # asked in another order
    assert (one.row([5, *context]) == other.row([5, *context])).all()
    assert (one.row([1, *context, 0, 1]) == one.row([0, 1])).all()


def test_an_explicit_table():
    lm = NgramLM(VOCABULARY, 2, {(5,): [0.5, 0, 0.25, 0, 0.25, 0, 0, 0]})
    assert lm.row([0, 5]).tolist() == pytest.approx([0.5, 0, 0.25, 0, 0.25, 0, 0, 0])
    assert lm.logprob([1], [5]) == -np.inf
    with pytest.raises(ModelError, match=r"no row for the context \(0,\)"):
        lm.tree([5, 0]).logprobs([0])
    tokens = (2, 0)
    free = some_lm(0, 3)
    steps = [free.row([5, *tokens[:n]])[token] for n, token in enumerate(tokens)]
    assert free.logprob(tokens, [5]) == pytest.approx(np.log(steps).sum())
    same = NgramLM(VOCABULARY, 2, lambda context: [0.5, 0, 0.25, 0, 0.25, 0, 0, 0])
    assert (same.row([5]) == lm.row([5])).all()


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ([1.0], "must have 8"),
        ([1.5, -0.5, 0, 0, 0, 0, 0, 0], "none negative"),
        ([0.5, 0, 0, 0, 0, 0.5, 0, 0], "zero for ids"),
        ([0.5, 0, 0, 0, 0, 0, 0, 0], "sums to 0.5"),
        ([np.nan, 0, 0, 0, 0, 0, 0, 0], "must have 8"),
    ],
)
def test_bad_rows(row, complaint):
    with pytest.raises(ModelError, match=complaint):
        NgramLM(VOCABULARY, 1, {(): row}).row([])


def test_models_pickle():
    lm = some_lm(3)
    assert (pickle.loads(pickle.dumps(lm)).row([0, 1]) == lm.row([0, 1])).all()


@pytest.mark.parametrize("law", LAWS)
def test_trees_keep_the_contract(law):
    lm = some_lm(3, order=3, window=40)

    def plain(contexts):
        with np.errstate(divide="ignore"):
            return torch.from_numpy(np.log([lm.row(ids) for ids in contexts]))

    law(Subject(lm, plain, start=5, letters=4, close=1e-12))
