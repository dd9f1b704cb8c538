"""What is drawn, against what it should be drawn from: chi-square, and unbiased sums."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from charwise import CharLM, combine
from charwise.cursor.completion import Weighted
from charwise.errors import SettingError, ZeroProbabilityError
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
    Oracle("proxy", members(), [1.0, 0.5]),
    Oracle("contrast", members()[:2], [0.2]),
]


def ids(oracle: Oracle) -> str:
    return oracle.name


@pytest.mark.slow
@pytest.mark.parametrize("oracle", ORACLES, ids=ids)
def test_draws_by_the_local_rule(oracle: Oracle) -> None:
    size = 1500
    truth = oracle.strings(LONGEST, whole=False)
    assert sum(truth.values()) == pytest.approx(1.0)
    found = oracle.lm.complete("", n=size, temperature=1.0, seed=5, max_new_bytes=LONGEST)
    counts = Counter(one.raw for one in found)
    assert abs(chi_square(counts, truth)) < 4
    for one in found[:50]:
        assert math.exp(one.logprob) == pytest.approx(truth[one.raw], rel=1e-9)
        assert one.finish == ("length" if len(one.raw) == LONGEST else "end")


@pytest.mark.slow
@pytest.mark.parametrize("oracle", ORACLES, ids=ids)
def test_particles_by_the_global_rule_are_unbiased(oracle: Oracle) -> None:
    """Means of many estimates, of the normaliser and of each text's share, are the truth."""
    truth = oracle.strings(LONGEST, whole=True)
    total = sum(truth.values())
    runs, estimates, shares = 300, [], Counter[bytes]()
    lm = oracle.lm
    for seed in range(runs):
        found: Any = lm.complete(
            "", conditioning="global", particles=6, n=99, max_new_bytes=LONGEST, seed=seed
        )
        assert isinstance(found, Weighted)
        estimates.append(math.exp(found.logprob))
        for one, weight in zip(found, found.weights, strict=True):
            shares[one.raw] += estimates[-1] * weight / runs
            assert math.exp(one.logprob) == pytest.approx(truth[one.raw], rel=1e-9)
    spread = np.std(estimates) / math.sqrt(runs)
    assert abs(np.mean(estimates) - total) < 4 * spread + 1e-9
    assert set(shares) <= set(truth)
    for text, mass in truth.items():
        # A particle has at most about the whole as its weight: the variance of a share of it.
        error = math.sqrt(mass * total * 2 / (runs * 3))
        assert abs(shares[text] - mass) < 5 * error, text


def test_of_a_mixture_all_particles_weigh_the_same() -> None:
    found: Any = ORACLES[0].lm.complete(
        "", conditioning="global", particles=50, n=99, max_new_bytes=3, seed=1
    )
    assert found.logprob == pytest.approx(0.0, abs=1e-9)
    assert found.effective == pytest.approx(50)


@pytest.mark.slow
def test_the_global_rule_under_a_constraint() -> None:
    oracle = ORACLES[1]
    truth = oracle.strings(LONGEST, whole=True)
    allowed = {text: mass for text, mass in truth.items() if text[:1] == b"a" and len(text) > 1}

    class BeginsWithA:
        characters = False

        def __init__(self, at: int = 0) -> None:
            self.at = at

        def allowed(self) -> np.ndarray:
            flags = np.zeros(257, dtype=bool)
            flags[list(b"a" if self.at == 0 else b"ab")] = True
            flags[256] = self.at > 1
            return flags

        def after(self, data: bytes) -> BeginsWithA:
            return BeginsWithA(self.at + len(data))

        def over(self, index: Any) -> Any:
            raise AssertionError("a combination has no tokens")

    estimates = []
    for seed in range(300):
        found: Any = oracle.lm.complete(
            "",
            conditioning="global",
            constraint=BeginsWithA(),
            particles=8,
            n=99,
            seed=seed,
            max_new_bytes=LONGEST,
        )
        assert {one.raw for one in found} <= set(allowed)
        estimates.append(math.exp(found.logprob))
    spread = np.std(estimates) / math.sqrt(len(estimates))
    assert abs(np.mean(estimates) - sum(allowed.values())) < 4 * spread


def test_greedy_takes_the_likeliest_byte() -> None:
    oracle = ORACLES[1]
    text = b""
    while len(text) < 4:
        row = oracle.next(text)
        assert row is not None
        code = int(row.argmax())
        if code == 256:
            break
        text += bytes([code])
    [found] = oracle.lm.complete("", max_new_bytes=4)
    assert found.raw == text
    several = oracle.lm.complete("", max_new_bytes=4, n=3)
    assert len({one.raw[:1] for one in several}) == len(several) == 3  # a, b, and the end
    rates: Sequence[float] = [one.bits_per_byte for one in several]
    assert list(rates) == sorted(rates)


def at_odds() -> list[CharLM]:
    """Two models that begin alike, and of which one goes on after `a` as the other cannot."""

    def one(after: list[float]) -> CharLM:
        rows = {(3,): [0.5, 0.5, 0.0, 0.0], (0,): after, (1,): [0.0, 0.0, 0.0, 1.0]}
        return CharLM(table([b"a", b"b", b"c"], {**rows, (2,): [0.0, 0.0, 0.0, 1.0]}, order=2).lm)

    return [one([1.0, 0.0, 0.0, 0.0]), one([0.0, 0.0, 1.0, 0.0])]


@pytest.mark.parametrize("name", ["product", "minimum"])
def test_particles_in_a_dead_end_count_for_nothing(name: str) -> None:
    lm = getattr(combine, name)(at_odds())
    estimates = []
    for seed in range(20):
        found: Any = lm.complete("", conditioning="global", particles=16, n=9, seed=seed)
        assert [one.raw for one in found] == [b"b"]
        estimates.append(math.exp(found.logprob))
    assert np.mean(estimates) == pytest.approx(0.5, abs=0.1)
    with pytest.raises(ZeroProbabilityError, match="nothing may follow"):
        lm.complete("a", conditioning="global")


def test_the_global_rule_reports_and_refuses() -> None:
    lm, seen = ORACLES[1].lm, list[tuple[int, int]]()

    def report(done: int, total: int) -> None:
        seen.append((done, total))

    lm.complete("", conditioning="global", particles=5, max_new_bytes=2, seed=0, progress=report)
    assert seen[-1] == (5, 5)
    with pytest.raises(SettingError, match="max_new_bytes is -1"):
        lm.complete("", conditioning="global", max_new_bytes=-1)
