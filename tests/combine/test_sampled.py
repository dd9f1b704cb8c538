"""What is drawn, against what it should be drawn from: chi-square."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from models import Model, chi_square, table
from teams import Oracle

LONGEST = 3


def members() -> list[Model]:
    """Three models over `a` and `b`, with three tokenizers."""
    first = {
        (3,): [0.5, 0.1, 0.3, 0.1],
        (0,): [0.2, 0.5, 0.1, 0.2],
        (1,): [0.4, 0.2, 0.1, 0.3],
        (2,): [0.1, 0.3, 0.2, 0.4],
    }
    second = {
        (4,): [0.2, 0.3, 0.1, 0.3, 0.1],
        (0,): [0.1, 0.4, 0.2, 0.1, 0.2],
        (1,): [0.3, 0.1, 0.2, 0.2, 0.2],
        (2,): [0.3, 0.3, 0.1, 0.1, 0.2],
        (3,): [0.2, 0.1, 0.3, 0.1, 0.3],
    }
    return [
        table([b"a", b"b", b"ab"], first, order=2),
        table([b"a", b"b", b"ba", b"aa"], second, order=2),
        table([b"a", b"b"], {(): [0.3, 0.5, 0.2]}),
    ]


ORACLES = [
    Oracle("mixture", members()[:2], [0.3, 0.7]),
    Oracle("product", members()[:2], [1.0, 0.8]),
    Oracle("minimum", members()[:2], []),
    Oracle("maximum", members()[:2], []),
    Oracle("product", members(), [1.0, 0.5, -0.5]),
    Oracle("contrast", members()[:2], [0.2]),
]


def ids(oracle: Oracle) -> str:
    return oracle.name


@pytest.mark.slow
@pytest.mark.parametrize("oracle", ORACLES, ids=ids)
def test_draws_by_the_local_rule(oracle: Oracle) -> None:
    size = 1500
    truth = oracle.strings(LONGEST)
    assert sum(truth.values()) == pytest.approx(1.0)
    found = oracle.lm.complete("", n=size, temperature=1.0, seed=5, max_new_bytes=LONGEST)
    counts = Counter(one.raw for one in found)
    assert abs(chi_square(counts, truth)) < 4
    for one in found[:50]:
        assert math.exp(one.logprob) == pytest.approx(truth[one.raw], rel=1e-9)
        assert one.finish == ("length" if len(one.raw) == LONGEST else "end")
