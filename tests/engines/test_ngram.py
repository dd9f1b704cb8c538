"""The exact n-gram engine: an explicit table, its errors, and trees as of any engine."""

import pickle

import numpy as np
import pytest
import torch

from charwise.engines.ngram import NgramLM
from charwise.errors import ModelError
from charwise.tokens.vocabulary import Vocabulary
from models import random_lm
from trees import LAWS, Subject

VOCABULARY = Vocabulary.from_bytes(
    [b"a", b"b", b"ab", b"a", None, None], end_ids=[4], bos_ids=[5], width=8
)


def test_an_explicit_table():
    row = [0.5, 0, 0.25, 0, 0.25, 0, 0, 0]
    lm = NgramLM(VOCABULARY, 2, {(5,): row})
    same = NgramLM(VOCABULARY, 2, lambda context: row)
    assert lm.row([0, 5]).tolist() == same.row([5]).tolist() == pytest.approx(row)
    assert lm.logprob([1], [5]) == -np.inf
    with pytest.raises(ModelError, match=r"no row for the context \(0,\)"):
        lm.tree([5, 0]).logprobs([0])
    free = random_lm(VOCABULARY, 3, 0, zeros=0.3)
    steps = [free.row([5])[2], free.row([5, 2])[0]]
    assert free.logprob((2, 0), [5]) == pytest.approx(np.log(steps).sum())
    assert (pickle.loads(pickle.dumps(free)).row([0, 1]) == free.row([3, 0, 1])).all()


@pytest.mark.parametrize(
    "row",
    [
        [1.0],
        [1.5, -0.5, 0, 0, 0, 0, 0, 0],
        [0.5, 0, 0, 0, 0, 0.5, 0, 0],  # of an id that is not counted
        [0.5, 0, 0, 0, 0, 0, 0, 0],
        [np.nan, 0, 0, 0, 0, 0, 0, 0],
    ],
)
def test_what_is_no_distribution_over_the_counted_ids_is_refused(row):
    with pytest.raises(ModelError):
        NgramLM(VOCABULARY, 1, {(): row}).row([])


@pytest.mark.parametrize("law", LAWS)
def test_trees_keep_the_contract(law):
    lm = random_lm(VOCABULARY, 3, 3, zeros=0.3, window=40)

    def plain(contexts):
        with np.errstate(divide="ignore"):
            return torch.from_numpy(np.log([lm.row(ids) for ids in contexts]))

    law(Subject(lm, plain, start=5, letters=4, close=1e-12))
