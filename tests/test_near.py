"""`approx` of arrays is pytest's."""

from __future__ import annotations

import math

import numpy as np
import pytest

from near import Near, approx

NUMBERS = (
    0.0,
    -0.0,
    1.0,
    1 + 1e-7,
    1 + 1e-5,
    -1.0,
    1e-13,
    5e-324,
    1e300,
    math.inf,
    -math.inf,
    math.nan,
)
BOUNDS = ({}, {"rel": 1e-4}, {"abs": 1e-6}, {"rel": 1e-9, "abs": 1e-290}, {"rel": 0, "abs": 0.1})


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_every_pair_of_numbers(bounds: dict[str, float]) -> None:
    near = 0
    for found in NUMBERS:
        for expected in NUMBERS:
            one, other = np.array([0.5, found]), np.array([0.5, expected])
            assert isinstance(approx(other, **bounds), Near)
            is_near = one == pytest.approx(other, **bounds)
            assert (one == approx(other, **bounds)) == is_near
            assert (one != approx(other, **bounds)) != is_near
            assert (approx(other, **bounds) == one) == is_near
            near += is_near
    assert len(NUMBERS) - 1 < near < len(NUMBERS) ** 2 / 2


def test_other_shapes_and_kinds() -> None:
    row = np.array([0.5, 0.5])
    assert row != approx(np.array([0.5]))
    assert row != approx(np.array([[0.5, 0.5]]))
    assert row == approx(np.array([0.5, 0.5], np.float32))
    assert approx(row) == [0.5, 0.5]
    assert row == approx([0.5, 0.5])
    assert approx({"a": 0.5 + 1e-9}) == {"a": 0.5}
    assert approx(0.5 + 1e-9) == 0.5


def test_what_is_off_is_said() -> None:
    with pytest.raises(AssertionError, match="Mismatched elements: 1 / 2"):
        assert np.array([0.5, 0.5]) == approx(np.array([0.5, 0.6]))
