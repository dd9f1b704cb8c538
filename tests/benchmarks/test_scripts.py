"""Each script of `benchmarks/` on a tiny input: it runs, and its tables have numbers."""

import cmd
import math
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

import charwise
import texts
from harness import SHAPES, random_lm
from paper import js_distance, measure, methods, walk_beam, walk_canonical, walk_rounds

approx = pytest.approx

TEXT = b'def main():\n    raise ValueError("na\xc3\xafve")\n' * 4

#: A script, its options, and how many tables it prints.
SCRIPTS = {
    "constraints": (["--quick"], 1),
    "cursor": (["--quick", "--model", "embedded"], 1),
    "healing": (["--prompts", "1", "--model", "embedded"], 2),
    "humaneval": (["--prompts", "1"], 1),
    "mixture": (["--quick", "--first", "embedded"], 1),
    "paper": ([cmd.__file__, "--model", "embedded", "--bytes", "20", "--reference-K", "16"], 1),
    "processors": (["--quick"], 3),
    "scoring": (["--quick", "--model", "embedded"], 2),
    "sentences": (["--quick", "--model", "embedded"], 1),
    "serve": (["--clients", "2", "--seconds", "1"], 1),
    "words": (["--quick", "--model", "embedded"], 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_prints_its_tables(
    script: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options, count = SCRIPTS[script]
    needs_texts = script in ("healing", "humaneval", "sentences")
    if needs_texts and texts.folder_of("stories") is None:
        pytest.skip("CHARWISE_DATA has no texts")
    if script == "humaneval" and texts.folder_of("smollm2") is None:
        pytest.skip("make smollm2")
    monkeypatch.setattr("harness.BUILD", tmp_path)
    monkeypatch.setattr(sys, "argv", [script, *options])
    import_module(script).main()
    tables = capsys.readouterr().out.split("**\n\n")[1:]
    assert len(tables) == count
    for table in tables:
        header, _, *rows = re.findall(r"^\|.*\|$", table, re.MULTILINE)
        assert rows
        assert "nan" not in "".join(rows)
        for row in rows:
            assert row.count("|") == header.count("|")
            assert re.search(r"\d", row)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_with_random_weights_scores_a_text(shape: str) -> None:
    kind, tokenizer, sizes = SHAPES[shape]
    if not (texts.data_folder() / "tokenizers" / tokenizer).exists():
        pytest.skip("CHARWISE_DATA has no tokenizers")
    small = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
    lm = random_lm(kind, tokenizer, sizes | small)
    assert (walk_canonical(lm, TEXT).logprobs < 0).any()


def test_the_means_of_the_paper_are_those_of_the_walks() -> None:
    lm = charwise.load()
    rows = measure(lm, TEXT, methods([1, 2], ["fast"]), 4, 1)
    assert list(rows) == ["beam K=1", "beam K=2", "fast", "canonical", "beam K=4"]
    reference = walk_beam(lm, TEXT, 4, rows=True)
    fast = walk_rounds(lm, TEXT, "fast", rows=True)
    assert reference.distributions is not None
    distances = js_distance(fast.distributions, reference.distributions)
    errors = abs(fast.logprobs - reference.logprobs) / math.log(2)
    row = rows["fast"]
    assert row["JS distance"].value == approx(distances.mean(), rel=1e-6)
    assert row["ΔS bits"].value == approx(errors.mean(), rel=1e-6)
    assert row["bits/byte"].value == approx(-fast.logprobs.mean() / math.log(2), rel=1e-6)
    assert row["contexts/byte"] == approx(lm.score(TEXT, preset="fast").contexts / len(TEXT))
    assert rows["beam K=2"]["JS distance"].value < rows["beam K=1"]["JS distance"].value
    for name, means in rows.items():
        assert ("JS distance" in means) == (name not in ("canonical", "beam K=4"))
        for column in ("JS distance", "ΔS bits", "bits/byte"):
            if column in means:
                assert means[column].low < means[column].value < means[column].high
