"""Covers, by hand."""

from __future__ import annotations

import math

import pytest

from charwise.coverings.bundles import Bundle
from charwise.cursor import cover
from models import table


def test_the_horizon_is_that_of_the_heaviest_bundle(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cover, "EXACT_TOKENS", 1)
    model = table([b"a", b"aa", b"ab"], {(): [0.4, 0.3, 0.2, 0.1]})
    rows = model.evaluated()
    heavy, a = rows.extend([(0, 1), (0, 0)])
    [light] = rows.extend([(a, 0)])
    assert light > heavy
    both = [  # of "aab", 3 bytes: aa|b, and a|a|b
        Bundle(heavy, math.log(0.5), 1, 0, 1, math.log(0.4)),
        Bundle(light, math.log(0.9), 1, 0, 1, math.log(0.1)),
    ]
    assert cover._horizon(rows, both, 3) == 0
    assert cover._horizon(rows, both[::-1], 3) == 0
    assert cover._horizon(rows, both[1:], 3) == 1
