"""Next characters from next bytes, on states whose next bytes are given in a table."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import pytest

from charwise.cursor.distributions import EOS, NextBytes
from charwise.cursor.next_chars import next_chars
from charwise.errors import UnlistedError


@dataclass(frozen=True)
class Told:
    """A state after `raw`; what follows it is in the table."""

    table: dict[bytes, NextBytes]
    raw: bytes = b""

    def next(self) -> NextBytes:
        return self.table[self.raw]

    def __add__(self, more: bytes) -> Self:
        return type(self)(self.table, self.raw + more)


def told(probs: dict[int, float], error: float = 0.0) -> NextBytes:
    row = np.zeros(EOS + 1)
    row[list(probs)] = list(probs.values())
    return NextBytes(row, error)


#: `a`, the end, a character of two bytes, and one of three.
TABLE = {
    b"": told({ord("a"): 0.3, EOS: 0.1, 0xC3: 0.4, 0xE2: 0.2}, error=0.01),
    b"\xc3": told({0xA9: 0.75, 0xAF: 0.25}, error=0.02),
    b"\xe2": told({0x82: 1.0}, error=0.03),
    b"\xe2\x82": told({0xAC: 1.0}, error=0.04),
}


def test_everything_is_summed_along_the_tree():
    found = next_chars(Told(TABLE), 1.0)
    assert dict(found) == pytest.approx({"a": 0.3, "é": 0.3, "ï": 0.1, "€": 0.2})
    assert found.eos == 0.1


def test_the_error_of_a_byte_counts_by_its_weight():
    found = next_chars(Told(TABLE), 1.0)
    assert found.error == pytest.approx(0.01 + 0.4 * 0.02 + 0.2 * (0.03 + 0.04))
    assert next_chars(Told(TABLE), 0.1).error == 0.01


def test_an_error_is_at_most_the_whole():
    sure = {b"": told({0xC3: 1.0}, error=0.9), b"\xc3": told({0xA9: 1.0}, error=0.9)}
    assert next_chars(Told(sure), 1.0).error == 1.0


def test_what_is_missing_is_what_is_not_listed():
    assert next_chars(Told(TABLE), 1.0).missing == pytest.approx(0, abs=1e-12)
    some = next_chars(Told(TABLE), 0.6)
    held = math.fsum(some.values()) + some.eos
    assert 0.6 <= held < 0.9
    assert some.missing == pytest.approx(1 - held)


def test_a_text_that_ends_inside_a_character_is_finished():
    found = next_chars(Told(TABLE, b"\xe2"), 1.0)
    assert dict(found) == {"€": 1.0}
    assert found.error == pytest.approx(0.07)


def test_characters_are_listed_until_there_are_so_many():
    few, more = next_chars(Told(TABLE), 0.4), next_chars(Told(TABLE), 0.4, least=3)
    assert (list(few), list(more)) == (["é"], ["é", "a", "€"])
    assert list(next_chars(Told(TABLE), 0.4, least=100)) == ["é", "a", "€", "ï"]


def test_of_what_is_not_listed_nothing_is_known():
    few = next_chars(Told(TABLE), 0.4)
    assert "a" not in few
    assert few.get("a") is None
    with pytest.raises(UnlistedError, match=r"'a' is not among the 1 characters listed; .* 0\.6 "):
        few["a"]
