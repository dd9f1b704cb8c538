"""benchmarks/gpu.py in small, on a CPU: from this it is known to work where there is a GPU."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """What the script writes, run with these options."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))

    def run(*options: str) -> dict[str, Any]:
        out = tmp_path / "out" / "gpu.json"
        monkeypatch.setattr(sys, "argv", ["gpu.py", "--tiny", "--json", str(out), *options])
        import_module("gpu").main()
        found: dict[str, Any] = json.loads(out.read_text())
        return found

    return run


@pytest.mark.slow
def test_tiny_measures_everything(measured: Any):
    found = measured("--bytes", "60", "--repeat", "1")
    for name in ("Llama-3.2-1B", "Qwen2.5-Coder-7B"):
        rows = {row["what"]: row for row in found[name]}
        assert {"plain pass", "beam K=4", "fast", "default", "accurate"} <= set(rows)
        assert {f"healing, batch {batch}, forced" for batch in (1, 32, 256)} <= set(rows)
        assert rows["next() on the prompt"]["times_plain"] > 0
        assert all("left out" not in row and row["ms"] > 0 for row in found[name])
        assert rows["default"]["contexts"] >= rows["plain pass"]["contexts"]


def test_what_does_not_fit_into_the_time_is_said_to_be_left_out(measured: Any):
    found = measured("--bytes", "60", "--seconds", "0", "--models", "Llama-3.2-1B")
    assert all(row["left out"] for row in found["Llama-3.2-1B"])


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, measured: Any):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    with pytest.raises(SystemExit, match="no GPU here"):
        import_module("gpu").main()
