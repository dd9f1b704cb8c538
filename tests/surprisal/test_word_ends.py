"""The convention "ending": a word and that it ends, against sums over all strings."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

import charwise
from charwise import CharLM
from charwise.errors import ZeroProbabilityError
from charwise.surprisal.score import Score
from models import model_of

approx = pytest.approx

TOKENS = [
    b"a", b"b", b" ", b"\n", b"a ", b" b", b"ab", b"\n ", b"\xc2", b"\xa0", b"\xc2\xa0", b"b\xc2",
]  # fmt: skip
SPACES = [byte for byte in range(128) if chr(byte).isspace()]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("text", ["ab a\nb", " a b ", "a\u00a0b", "a", "  ", ""])
@pytest.mark.parametrize("context", ["", "b "])
def test_a_word_pays_for_its_end_by_any_whitespace(seed: int, text: str, context: str) -> None:
    model = model_of(TOKENS, 2, seed, zeros=0.1, power=2.0)
    lm, given, raw = CharLM(model.lm), context.encode(), text.encode()

    def prefix(t: int) -> float:
        return model.prefix(given + raw[:t])

    try:
        score = lm.score(text, context=context, preset="exact", entropy="byte", end=True)
        rows = score.words("ending")
    except ZeroProbabilityError:
        if prefix(len(raw)) > 0:
            after = model.next(given + raw)
            assert after[[*SPACES, 256]].sum() < 1e-12
        return
    plain = score.words("none")
    assert [row.text for row in rows] == [row.text for row in plain]
    cumulative, at = 0.0, 0
    for row in rows:
        begin, at = at, at + len(row.text.encode())
        if not row.text.isspace():
            after = model.next(given + raw[:at])
            ends = after[[*SPACES, 256]].sum()
            if text[row.end : row.end + 1] == "\u00a0":
                ends += prefix(at + 2) / prefix(at)
            expected = -math.log2(prefix(at) * ends / prefix(begin))
            assert row.surprisal == approx(expected, rel=1e-9, abs=1e-9)
        cumulative += row.surprisal
        assert row.cumulative == approx(cumulative, rel=1e-9, abs=1e-9)
        assert row.surprisal >= -1e-12
        assert row.error is not None
    total = prefix(len(raw)) / prefix(0)
    if rows and not rows[-1].text.isspace():
        total *= ends
    assert cumulative == approx(-math.log2(total), rel=1e-9, abs=1e-9)


def test_all_sums_of_rows_are_exact() -> None:
    text = "if x:\n    return the_last(of, them)  # é\u00a0à la carte " * 3
    score = charwise.load().score(text, entropy="byte", end=True)
    rows = score.words("ending")
    rng = random.Random(0)
    for _ in range(50):
        costs = [row.surprisal for row in rows]
        rng.shuffle(costs)
        assert sum(costs) == rows[-1].cumulative
        assert min(costs) >= 0


def test_the_error_of_a_word_counts_its_end() -> None:
    ends = np.log([0.5, 0.5, 0.5, 0.5])
    error = np.array([1.0, 2.0, 4.0]) * math.log(2)
    score = Score(b"a b", ends[:3], error, word_ends=ends)
    assert [row.error for row in score.words("ending")] == [3.0, 2.0, 8.0]
