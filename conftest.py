"""For tests and doctests alike: the embedded model is read once, and stays."""

from __future__ import annotations

import sys
from typing import Any

import pytest

_stays: list[Any] = []


@pytest.fixture(autouse=True)
def the_embedded_model_stays() -> None:
    """Engines live as long as somebody uses them, so here somebody does."""
    if not _stays and "charwise.engines.transformers.lm" in sys.modules:
        _stays.append(sys.modules["charwise.engines.load"].open_engine())
