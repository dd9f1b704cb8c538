"""A constraint is a value: it can be shared by threads, copied, and sent to other processes."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from charwise import SortedVocabulary, Vocabulary, constraints

pytest.importorskip("llguidance")

WORDS = [bytes(word) for size in (1, 2, 3) for word in itertools.product(b"abcdefgh", repeat=size)]
INDEX = SortedVocabulary(Vocabulary.from_bytes([*WORDS, None], end_ids=[len(WORDS)]))


@pytest.fixture(autouse=True)
def _quick_turns() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_threads_share_one() -> None:
    constraint = constraints.regex("([a-h]{1,3},)*[a-d]{1,40}")
    tokens = constraint.over(INDEX)
    allowed, mask = constraint.allowed(), tokens.mask()
    further = constraint.after(b"ab,").over(INDEX).mask()

    def ask(_: int) -> None:
        for _ in range(40):
            np.testing.assert_array_equal(constraint.allowed(), allowed)
            np.testing.assert_array_equal(tokens.mask(), mask)
            np.testing.assert_array_equal(tokens.after(b"ab,").mask(), further)
            np.testing.assert_array_equal(constraint.after(b"ab,").over(INDEX).mask(), further)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(ask, range(8)))
