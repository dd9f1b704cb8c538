"""Memory that was freed between what is kept goes back to the system."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from charwise.serve import heap
from charwise.serve.heap import Heap


def resident() -> int:
    """Bytes of the process that are in memory."""
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])


@pytest.mark.skipif(sys.platform != "linux" or heap._trim() is None, reason="glibc's memory")
def test_what_is_free_between_what_is_kept_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heap, "_SECONDS", 0.0)
    arrays = [np.ones(12_000) for _ in range(2_000)]  # 96 kB each: too small for pages of its own
    kept = arrays[::2]
    full = resident()
    del arrays
    held = resident()
    Heap().give_back()
    assert len(kept) == 1_000
    assert held > full - 40e6, "freed by itself: the test shows nothing"
    assert resident() < full - 60e6


def test_not_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    monkeypatch.setattr(heap, "_trim", lambda: called.append)
    monkeypatch.setattr(heap, "_SECONDS", 0.0)
    one = Heap()
    monkeypatch.setattr(heap, "_SECONDS", 3600.0)
    one.give_back()
    one.give_back()
    assert called == [0]


def test_where_there_is_no_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "_trim", lambda: None)
    monkeypatch.setattr(heap, "_SECONDS", 0.0)
    Heap().give_back()
