"""`examples/teacher.py`: the distributions of brute force, rounded by no more than is said."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from charwise import CharLM
from models import Case, cases, examples

pa = pytest.importorskip("pyarrow", reason="these need: pip install 'charwise[tables]'")
parquet = pytest.importorskip("pyarrow.parquet")
sys.path.append(str(Path(__file__).parents[2] / "examples"))
teacher = pytest.importorskip("teacher")

#: Half a unit in the last place of numbers of these types, and half of the smallest number.
HALF = {"float16": (2.0**-11, 2.0**-25), "float32": (2.0**-24, 2.0**-150)}


def column(table: Any, name: str) -> NDArray[np.float64]:
    return np.array(table[name].to_pylist(), dtype=np.float64)


def close(stored: NDArray[Any], probabilities: NDArray[np.float64], floats: str) -> bool:
    """Whether numbers are the logs of probabilities, but for rounding once (and 1e-9)."""
    share, least = HALF[floats]
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(probabilities)
        off = np.abs(stored.astype(np.float64) - logs)
        near = off <= np.abs(logs) * share * (1 + 1e-6) + least + 2e-9
    return bool((near | (np.isneginf(logs) & np.isneginf(stored))).all())


@given(case=cases(), floats=st.sampled_from(list(HALF)), top=st.none() | st.integers(1, 256))
@examples(120)
def test_rows_are_the_distributions_of_brute_force(
    case: Case, floats: str, top: int | None
) -> None:
    model, text = case.model, case.text
    while text and model.prefix(text) <= 1e-300:
        text = text[:-1]
    if not text:
        return  # nothing of this text has a probability
    truth = np.array([model.next(text[:t]) for t in range(len(text))])
    batches = teacher.batches(CharLM(model.lm), "a.txt", text, top, floats, "exact")
    table = pa.Table.from_batches(list(batches))
    assert bytes(table["byte"].to_pylist()) == text
    assert table["start"].to_pylist() == list(range(len(text)))
    if top is None:
        assert close(column(table, "logprobs"), truth, floats)
        return
    symbols = column(table, "symbols").astype(int)
    assert all(len(set(row)) == top for row in symbols.tolist())
    listed = np.take_along_axis(truth, symbols, axis=1)
    assert close(column(table, "logprobs"), listed, floats)
    for row, chosen, rest in zip(truth, symbols, column(table, "rest"), strict=True):
        others = np.delete(row, chosen)
        assert close(np.array([rest]), others.sum(keepdims=True), floats)
        assert row[chosen].min() >= others.max(initial=0.0) * (1 - 1e-9)


def distributions(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Flat ones, peaked ones, with probabilities down to 1e-40, and zeros; the first is uniform."""
    rows = rng.dirichlet(np.full(257, 0.05), count) ** rng.uniform(0.5, 4, (count, 1))
    rows[rng.random(rows.shape) < 0.1] = 0.0
    rows[:, 97] += 1e-9
    rows[0] = 1.0
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("floats", HALF)
@pytest.mark.parametrize("top", [None, 1, 16, 256])
def test_what_is_lost_by_rounding(floats: str, top: int | None) -> None:
    """Renormalised as the script says, KL(true ‖ stored) has the bound that it states."""
    rows = distributions(np.random.default_rng(0), 2000)
    columns = teacher.rounded(rows, top, floats)
    logs, true = columns["logprobs"].astype(np.float64), rows
    if top is not None:
        logs = np.column_stack([logs, columns["rest"].astype(np.float64)])
        inside = np.take_along_axis(rows, columns["symbols"].astype(np.int64), axis=1)
        pairs = zip(rows, columns["symbols"], strict=True)
        rest = [math.fsum(np.delete(row, symbols)) for row, symbols in pairs]
        true = np.column_stack([inside, rest])
    stored = np.exp(logs)
    total = stored.sum(axis=1)
    some = true > 0
    log_true = np.log(true, where=some, out=np.zeros_like(true))
    off = np.where(some, logs, log_true) - log_true
    share, least = HALF[floats]
    assert (np.abs(off) <= np.abs(log_true) * share * 1.001 + least).all()
    entropies = -(true * log_true).sum(axis=1)
    assert (np.abs(total - 1) <= entropies * share * 1.01 + 257 * least).all()
    assert np.abs(total - 1).max() < {"float16": 2.0**-8, "float32": 2.0**-21}[floats]
    again = np.log(total) - (true * off).sum(axis=1)  # KL(true ‖ stored), nats
    largest = np.abs(off).max(axis=1)
    assert (again <= largest**2 / 2 + 1e-15).all()
    assert again.max() < {"float16": 1e-6, "float32": 1e-13}[floats]


def test_a_long_text_goes_on_where_its_pieces_meet(
    lm: CharLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("charwise.tokens.utf8.pieces.__defaults__", (64, 60))
    text = b"import os\nfor i in range(3):\n    print(i)\n" * 5
    (tmp_path / "a.txt").write_bytes(text)
    out = tmp_path / "a.parquet"
    arguments = [str(tmp_path / "a.txt"), "--preset", "accurate", "--floats", "float32"]
    monkeypatch.setattr(sys, "argv", ["teacher.py", *arguments, "--out", str(out)])
    teacher.main()
    table = parquet.read_table(out)
    assert bytes(table["byte"].to_pylist()) == text
    assert table["start"].to_pylist() == list(range(len(text)))
    came = column(table, "logprobs")[np.arange(len(text)), list(text)]
    first = lm.score(text[:40], preset="accurate").logprobs
    assert abs(came[:40] - first).max() < 0.02
    assert json.loads(parquet.read_schema(out).metadata[b"charwise"])["unit"] == "nats"
