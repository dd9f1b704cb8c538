"""For tests and doctests alike: the embedded model is read once, and stays."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest

import charwise

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


@pytest.fixture(autouse=True, scope="session")
def _names_of_doctests(doctest_namespace: dict[str, Any]) -> None:
    """The example of a method need not import what the example of its class does."""
    doctest_namespace["charwise"] = charwise
