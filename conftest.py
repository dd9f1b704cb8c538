"""For tests and doctests alike: the embedded model is read once, and stays."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest

_stays: list[Any] = []


def pytest_runtest_setup() -> None:
    """Engines live as long as somebody uses them, so here somebody does, once there was one."""
    opened = {"charwise.engines.load", "charwise.engines.transformers"}
    if not _stays and opened <= sys.modules.keys():
        _stays.append(sys.modules["charwise.engines.load"].open_engine())


def pytest_collection_finish() -> None:
    """What was imported stays too, and no search for garbage goes through it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _bounded(request: pytest.FixtureRequest, doctest_namespace: dict[str, Any]) -> None:
    """`lm` in the examples of bounds: the embedded model in the place of a server."""
    if request.node.name.startswith("charwise.bounded."):
        import charwise
        from top_k_lm import TopK

        doctest_namespace["lm"] = charwise.BoundedLM(TopK(charwise.load().engine, 20))
