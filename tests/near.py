"""`approx`, for arrays that are compared thousands of times.

pytest's own looks at each number of an array by itself, in some ten microseconds: a row of 257
costs more than what the test is about. Here an array is looked at as a whole. Only where that does
not find it near do numbers go to pytest's, one by one: it has the last word, and says what is off.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

_Arrays: Any = type(pytest.approx(np.zeros(1)))


class Near(_Arrays):
    """What `approx` returns for an array."""

    def __eq__(self, found: object) -> bool:
        if isinstance(found, np.ndarray) and found.shape == self.expected.shape:
            with np.errstate(invalid="ignore"):  # ∞ − ∞, and 0 · ∞
                near = np.abs(found - self.expected) <= self.tolerance()
            # Infinite numbers are near to themselves only, NaN to nothing.
            if (near & np.isfinite(self.expected) | (found == self.expected)).all():
                return True
        return bool(super().__eq__(found))

    __hash__ = None  # type: ignore[assignment]

    def tolerance(self) -> Any:
        """As pytest has it: the larger of the two, and with `abs` alone just that."""
        if self.abs is not None and self.rel is None:
            return self.abs
        relative = (1e-6 if self.rel is None else self.rel) * np.abs(self.expected)
        return np.maximum(relative, 1e-12 if self.abs is None else self.abs)


def approx(expected: Any, rel: float | None = None, abs: float | None = None) -> Any:
    """What `pytest.approx` returns, and where `expected` is an array of numbers, `Near`."""
    if isinstance(expected, np.ndarray) and expected.dtype.kind in "fiu":
        return Near(expected, rel, abs, False)
    return pytest.approx(expected, rel=rel, abs=abs)
