"""The benchmarks of scoring: their texts, their references, and the process of a version."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import charwise
from near import approx

ROOT = Path(__file__).parents[2]
SCRIPTS = ("harness", "references", "scoring", "calibration", "cursor", "scale", "memory")


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def test_no_passage_is_in_both_halves():
    texts = import_module("texts")
    spans = [
        (half, source, start, start + 2 * texts.SIZES[kind])
        for half, _, _, kind, source, start in texts.PASSAGES
    ]
    for half, source, begin, end in spans:
        for other, its_source, its_begin, its_end in spans:
            if half != other and source == its_source:
                assert end <= its_begin or its_end <= begin, (source, begin, its_begin)
    assert not set(texts.CHOOSING_REPEATS.values()) & set(texts.JUDGING_REPEATS.values())


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_that_compare_versions_use_the_public_interface(script: str):
    """Both versions must have what a script imports: nothing from inside scoring."""
    tree = ast.parse((ROOT / "benchmarks" / f"{script}.py").read_text(encoding="utf-8"))
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    assert not [name for name in names if name.startswith(("charwise.known", "charwise.scoring"))]


def test_a_wide_beam_is_an_exact_score_of_a_short_text():
    references, texts = import_module("references"), import_module("texts")
    passage = texts.Passage("embedded", "short", "code", b"import")
    wide = references.beam(passage, 64)
    exact = charwise.load().score(b"import", preset="exact", entropy="char")
    assert wide["logprobs"] == approx(exact.logprobs, rel=1e-4)
    assert wide["logprobs"].sum() <= exact.logprobs.sum() + 1e-6
    away = references.difference(
        references.scored(passage, "exact"), {**wide, "best": exact.logprobs}
    )
    assert away.nats < 1e-6
    assert away.js < 0.01


@pytest.mark.slow
def test_a_version_answers_from_its_own_source():
    harness, texts = import_module("harness"), import_module("texts")
    references = import_module("references")
    version = harness.Version(ROOT / "src")
    passage = texts.Passage("embedded", "short", "code", b"import os")
    found = version.call(references.scored, passage, "fast")
    with pytest.raises(RuntimeError, match="SettingError"):
        version.call(references.scored, passage, "no such preset")
    version.close()
    score = charwise.load().score(b"import os", preset="fast")
    assert found["logprobs"] == approx(score.logprobs, rel=1e-6)
    assert int(found["contexts"]) == score.contexts


def row(before: float, after: float, stated: float) -> dict[str, Any]:
    """A row of calibration."""
    return {
        "kind": "repeat",
        "before": {"true": before, "stated": before},
        "after": {"true": after, "stated": stated},
    }


def test_what_counts_as_worse_and_as_off():
    calibration = import_module("calibration")
    rows = [row(0.1, 0.2, 0.01), row(0.1, 0.2, 0.1), row(0.1, 0.11, 0.0), row(0.5, 0.01, 0.0)]
    assert calibration.worse(rows) == rows[:1]
    found = calibration.counts(rows, "after")
    assert (found["texts"], found["off"], found["calibrated"], found["silent"]) == (4, 3, 1, 2)
