"""`charwise score`: what it prints and writes, and that kill -9 changes nothing of it."""

from __future__ import annotations

import csv
import json
import math
import re
import signal
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

import charwise
import charwise.cli.options
import commands
from charwise import CharLM, Vocabulary
from charwise.engines.ngram import NgramLM
from charwise.tables.output import Output, ScoredChunk
from preloaded import Command

TEXTS = ["import numpy as np", "To be,\n or not", "naïve"]

run = partial(commands.run, "score")
run_json = partial(commands.run_json, "score")


def table(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return table(tmp_path / "texts.jsonl", [{"text": text} for text in TEXTS])


@pytest.fixture
def ngram(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that can spell a, b and space, and gives b after b no probability."""
    vocabulary = Vocabulary([b"a", b"b", b" ", None], end_ids=[3], bos_ids=[3])
    rows = {
        (3,): [0.5, 0.3, 0.1, 0.1],
        (0,): [0.2, 0.2, 0.3, 0.3],
        (1,): [0.5, 0.0, 0.3, 0.2],
        (2,): [0.4, 0.4, 0.1, 0.1],
    }
    lm = CharLM(NgramLM(vocabulary, 2, rows))
    monkeypatch.setattr("charwise.cli.options.ModelOptions.load", lambda *_: lm)


# --- What is printed ----------------------------------------------------------------------------


def test_the_numbers_are_those_of_the_model(texts: Path) -> None:
    lm = charwise.load()
    scores = lm.scores(TEXTS)
    views = {
        "byte": [score.bytes() for score in scores],
        "char": [score.chars() for score in scores],
        "word": [score.words() for score in scores],
        "region": [
            score.spans([(0, len(text))]) for score, text in zip(scores, TEXTS, strict=True)
        ],
    }
    for per, spans in views.items():
        answer = run_json(texts, "--per", per)
        assert answer["left_out"] == []
        assert [
            [row[name] for name in ("text", "start", "end", "surprisal", "cumulative", "error")]
            for row in answer["rows"]
        ] == [list(span[:6]) for view in spans for span in view]
        assert [(row["row"], row["unit"]) for row in answer["rows"]] == [
            (n, m) for n, view in enumerate(spans, 1) for m in range(1, len(view) + 1)
        ]
    whole = run_json(texts, "--per", "text")["rows"]
    assert [row["text"] for row in whole] == TEXTS
    assert [row["surprisal"] for row in whole] == [score.bits for score in scores]


def test_a_context_and_regions(tmp_path: Path) -> None:
    rows = [
        {"id": 1, "t": "import os, sys", "c": "# all\n", "r": "import |os, |sys"},
        {"id": "two", "t": "import os, sys", "c": "", "r": [[0, 6], [7, 9]]},
    ]
    path = table(tmp_path / "a.jsonl", rows)
    names = ["--text-column", "t", "--item-column", "id", "--context-column", "c"]
    rows_printed = run_json(path, "--per", "region", *names, "--regions-column", "r")["rows"]
    lm = charwise.load()
    scores = lm.scores([row["t"] for row in rows], contexts=[row["c"] for row in rows])
    assert [row["text"] for row in rows_printed] == ["import ", "os, ", "sys", "import", "os"]
    assert [row["item"] for row in rows_printed] == ["1", "1", "1", "two", "two"]
    assert [row["surprisal"] for row in rows_printed] == [
        span.surprisal
        for score, pairs in zip(
            scores, [[(0, 7), (7, 11), (11, 14)], [(0, 6), (7, 9)]], strict=True
        )
        for span in score.spans(pairs)
    ]
    without = run_json(path, "--per", "region", "--text-column", "t", "--regions-column", "r")
    assert without["rows"][0]["surprisal"] != rows_printed[0]["surprisal"]


def test_the_end_of_a_text_is_a_row(tmp_path: Path, ngram: None) -> None:
    lm = charwise.cli.options.ModelOptions().load()
    path = table(tmp_path / "a.jsonl", [{"text": "ab a"}])
    *words, end = run_json(path, "--end")["rows"]
    assert words == run_json(path)["rows"]
    logprob = lm.score("ab a", end=True).end_logprob
    assert (end["unit"], end["text"], end["start"], end["end"]) == (3, "", 4, 4)
    assert end["surprisal"] == pytest.approx(-logprob / math.log(2))
    assert end["cumulative"] == words[-1]["cumulative"] + end["surprisal"]
    assert run(path, "--end", "-o", tmp_path / "out.csv").exit_code == 0
    assert (tmp_path / "out.csv").read_text().splitlines()[-1].split(",")[-1] == "NA"


def test_stdin_and_files_of_any_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"na\xc3")
    rows = run_json("-", tmp_path / "a.bin", "--per", "byte", stdin=b"\xff!")["rows"]
    assert [(row["file"], row["text"]) for row in rows] == [
        ("-", "\\xff"),
        ("-", "!"),
        *((str(tmp_path / "a.bin"), text) for text in ("n", "a", "\\xc3")),
    ]


def test_a_long_table_is_cut(ngram: None) -> None:
    assert "… and 100 more" in run("-", "--per", "byte", stdin=b"ab " * 100).stdout


def test_progress_on_a_terminal(
    tmp_path: Path, ngram: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = run(table(tmp_path / "a.jsonl", [{"text": "ab a"}] * 100), "--json")
    assert "100 of 100 texts" in result.stderr
    assert "B/s" in result.stderr or "bytes/s" in result.stderr
    assert json.loads(result.stdout)["left_out"] == []
    summary = run(tmp_path / "a.jsonl").stdout
    assert "largest stated error of a row: " in summary
    assert "--out FILE keeps the rows" in summary


def test_control_characters_of_data_never_reach_a_terminal(
    tmp_path: Path, ngram: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    evil = "\x1b]0;evil\x07\x00\x9b31m\x7f\u202e\u2066"
    rows = [{"text": "ab a", "item": evil, evil: evil}, {"text": evil, "item": "NA", evil: "b"}]
    path = table(tmp_path / f"a{evil.replace(chr(0), '')}.jsonl", rows)
    options = ["--item-column", "item", "--keep-column", evil, "--on-error", "skip"]
    lines = run(path, *options)
    as_json = run(path, *options, "--json")
    for printed in (lines.stdout, lines.stderr, as_json.stdout, as_json.stderr):
        assert "evil" in printed
        ours = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed)  # colours, and a bar's moves
        assert not re.search(r"[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\u202e\u2066]", ours)
    assert json.loads(as_json.stdout)["rows"][0]["item"] == evil
    wide = run(path, "--item-column", "item", "--on-error", "skip", env={"COLUMNS": "200"})
    assert "\\x7f\\u202e\\u2066" in wide.stdout, "an escape is whole"


def test_a_plain_text_has_no_column_to_keep_but_a_table_beside_it_has(
    tmp_path: Path, ngram: None
) -> None:
    (tmp_path / "a.txt").write_text("ab")
    path = table(tmp_path / "a.jsonl", [{"text": "ab a", "condition": "full"}])
    assert run(tmp_path / "a.txt", "--keep-column", "condition").exit_code == 2
    out = tmp_path / "out.jsonl"
    assert run(tmp_path / "a.txt", path, "--keep-column", "condition", "-o", out).exit_code == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["condition"] for row in rows] == [None, "full", "full"]


@pytest.mark.parametrize("entropy", ["byte", "char"])
def test_entropies_are_columns(
    tmp_path: Path, ngram: None, entropy: Literal["byte", "char"]
) -> None:
    lm = charwise.cli.options.ModelOptions().load()
    path = table(tmp_path / "a.jsonl", [{"text": "ab a", "condition": "x"}, {"text": "a"}])
    path.write_text(path.read_text().replace('{"text": "a"}', '{"text": "a", "condition": "y"}'))
    names = ["entropy", "reduction", "rank"]
    more = ["--entropy", entropy, "--keep-column", "condition"]
    rows = run_json(path, *more)["rows"]
    assert list(rows[0])[-4:] == [*names, "condition"]
    spans = [span for score in lm.scores(["ab a", "a"], entropy=entropy) for span in score.words()]
    assert [tuple(row[name] for name in names) for row in rows] == [span[6:9] for span in spans]
    assert [row["reduction"] is None for row in rows] == [False, True, True]
    plain = run_json(path)["rows"]
    assert not {*names} & {*plain[0]}
    assert [row["surprisal"] for row in plain] == [row["surprisal"] for row in rows]
    assert run(path, *more, "-o", tmp_path / "out.csv").exit_code == 0
    [first, last, alone] = csv.DictReader((tmp_path / "out.csv").open())
    assert float(first["entropy"]) == rows[0]["entropy"]
    assert (last["reduction"], alone["reduction"]) == ("NA", "NA")
    printed = run(path, *more).stdout.strip().splitlines()
    assert printed[0].split() == [
        *("row", "unit", "text", "start", "end", "surprisal", "cumulative", "error"),
        *(*names, "condition"),
    ]
    assert printed[-1].split()[-1] == "y"


def test_entropies_of_words_have_both_bounds(tmp_path: Path, ngram: None) -> None:
    lm = charwise.cli.options.ModelOptions().load()
    path = table(tmp_path / "a.jsonl", [{"text": "ab a"}])
    rows = run_json(path, "--entropy", "word", "--coverage", "0.4")["rows"]
    words = lm.score("ab a", entropy="word", coverage=0.4).words()
    bounds = [(word.entropy, word.entropy_most) for word in words]
    assert [(row["entropy"], row["entropy_most"]) for row in rows] == bounds
    assert all(low < high for low, high in bounds)


# --- What is wrong ------------------------------------------------------------------------------


def test_a_bad_row_stops_before_anything_is_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("charwise.cli.options.ModelOptions.load", lambda *_: pytest.fail("loaded"))
    path = table(tmp_path / "a.jsonl", [*({"text": "a"} for _ in range(50)), {"text": ""}])
    result = run(path, "-o", tmp_path / "out.csv")
    assert result.exit_code == 1
    assert str(result.exception) == (
        f"{path}, row 51 (line 51), column 'text': there is no text, so nothing to score."
    )
    assert list(tmp_path.iterdir()) == [path]


def test_rows_that_are_left_out(tmp_path: Path, ngram: None) -> None:
    rows = [{"text": "ab"}, {"text": ""}, {"text": "abb"}, {"text": "abc"}, {"text": "a b"}]
    path, out = table(tmp_path / "a.jsonl", rows), tmp_path / "out.csv"
    result = run(path, "--on-error", "skip", "--preset", "exact", "-o", out)
    assert result.exit_code == 3, result.output
    errors = out.with_name("out.csv.errors.jsonl")
    assert result.stdout.splitlines() == [
        f"{out}: 3 rows for 2 of 5 texts; the 3 left out are in {errors}",
        "largest stated error of a row: 0 bits",
        f"for your paper: charwise score --methods {out}",
    ]
    assert [row["row"] for row in csv.DictReader(out.open())] == ["1", "5", "5"]
    listed = [json.loads(line) for line in errors.read_text().splitlines()]
    assert [(e["file"], e["row"], e["line"], e["column"]) for e in listed] == [
        (str(path), row, row, "text") for row in (2, 3, 4)
    ]
    assert all(error["error"].endswith(".") for error in listed)

    printed = run(path, "--on-error", "skip", "--preset", "exact", "--json")
    assert printed.exit_code == 3
    assert len(json.loads(printed.stdout)["left_out"]) == 3
    assert printed.stderr.count("charwise: left out: ") == 3


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_an_output_without_rows(tmp_path: Path, ngram: None, ending: str) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow", reason="Parquet needs: pip install 'charwise[tables]'")
    path, out = table(tmp_path / "a.jsonl", [{"text": ""}] * 40), tmp_path / f"out.{ending}"
    assert run(path, "--on-error", "skip", "-o", out).exit_code == 3
    result = run(out)
    assert result.exit_code == 1
    expected = "is empty" if ending == "jsonl" else "there are no rows to score"
    assert expected in str(result.exception)
    printed = run(path, "--on-error", "skip")
    assert printed.exit_code == 3
    assert "surprisal" in printed.stdout


def test_a_row_without_a_score_stops_and_can_be_skipped_later(tmp_path: Path, ngram: None) -> None:
    rows = [{"text": "abb" if n == 70 else "ab a"} for n in range(100)]
    path, out, whole = (tmp_path / name for name in ("a.jsonl", "out.csv", "whole.csv"))
    table(path, rows)
    assert run(path, "--on-error", "skip", "-o", whole).exit_code == 3
    result = run(path, "-o", out)
    assert result.exit_code == 1
    assert f"{path}, row 71 (line 71), column 'text': " in str(result.exception)
    assert "(--on-error skip leaves such rows out; 64 texts are kept.)" in str(result.exception)
    assert not out.exists()
    result = run(path, "--on-error", "skip", "--json", "-o", out)
    assert json.loads(result.stdout)["continued_after"] == 64
    assert out.read_bytes() == whole.read_bytes()


def test_no_number_is_infinite_or_none(tmp_path: Path, ngram: None) -> None:
    """Where the model gives zero there is a sentence, and where it has a number a finite one."""
    texts = ["bb", "b", "ab", "c"]
    path = table(tmp_path / "a.jsonl", [{"text": text} for text in texts])
    for preset in ("fast", "default", "accurate", "exact"):
        result = run(path, "--on-error", "skip", "--per", "byte", "--preset", preset, "--json")
        answer = json.loads(result.stdout)
        assert {row["row"] for row in answer["rows"]} == {2, 3}
        assert len(answer["left_out"]) == 2
        assert all(
            math.isfinite(row[name])
            for row in answer["rows"]
            for name in ("surprisal", "cumulative", "error")
        )


def test_a_model_that_fails_is_no_bad_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = Vocabulary([b"a", b"b", None], end_ids=[2], bos_ids=[2])
    lm = CharLM(NgramLM(vocabulary, 2, {(2,): [0.5, 0.5, 0.0]}))  # and no row after "a"
    monkeypatch.setattr("charwise.cli.options.ModelOptions.load", lambda *_: lm)
    path, out = table(tmp_path / "a.jsonl", [{"text": "ab"}]), tmp_path / "out.csv"
    result = run(path, "--on-error", "skip", "-o", out)
    assert result.exit_code == 1
    assert "the table has no row for the context" in str(result.exception)
    assert not out.exists()


def test_a_spreadsheet_s_export(tmp_path: Path, ngram: None) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("satz;größe\na b;é\n".encode("cp1252"))
    options = ["--text-column", "satz", "--keep-column", "größe", "--delimiter", ";"]
    [first, _] = run_json(path, *options, "--encoding", "cp1252")["rows"]
    assert first["größe"] == "é"
    path.write_text("text\ta\nab\tb\n", encoding="utf-16")
    rows = run_json(path, "--delimiter", "tab", "--encoding", "utf-16")["rows"]
    assert [row["text"] for row in rows] == ["ab"]
    path.write_text("text\nab\n", encoding="utf-8-sig")
    rows = run_json(path, "--encoding", "utf-8")["rows"]
    assert [row["text"] for row in rows] == ["ab"], "the byte order mark is no part of a name"
    plain = tmp_path / "a.txt"
    plain.write_bytes("a b".encode("utf-16"))
    assert [r["text"] for r in run_json(plain, "--encoding", "UTF-16")["rows"]] == ["a", " b"]


def test_probable_mistakes_are_told_and_refused_if_strict(tmp_path: Path, ngram: None) -> None:
    rows = [{"text": "ab", "item": n % 2} for n in range(30)]
    path, out = table(tmp_path / "a.jsonl", rows), tmp_path / "out.csv"
    result = run(path, "--item-column", "item", "-o", out)
    assert result.exit_code == 0
    lines = result.stderr.splitlines()
    assert lines[0] == (
        f"charwise: warning: {path}, row 3 (line 3), column 'item': row 1 has the item '0' too."
    )
    assert len(lines) == 21
    assert lines[-1] == "charwise: 8 more are not shown. --strict refuses such rows."
    strict = ["--item-column", "item", "--strict", "-o", tmp_path / "strict.csv"]
    refused = run(path, *strict)
    assert refused.exit_code == 1
    assert "row 3 (line 3), column 'item'" in str(refused.exception)
    assert not (tmp_path / "strict.csv").exists()
    assert run(path, *strict, "--on-error", "skip").exit_code == 3
    assert len((tmp_path / "strict.csv").read_text().splitlines()) == 3


def test_lines_of_progress_where_there_is_no_terminal(
    tmp_path: Path, ngram: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("charwise.cli.score._EVERY", 0.0)
    path = table(tmp_path / "a.jsonl", [{"text": "ab a"}] * 100)
    lines = run(path, "-o", tmp_path / "out.csv").stderr.splitlines()
    assert [line.split(", about")[0] for line in lines] == [
        f"charwise: {rows} of 100 texts" for rows in (32, 64, 96)
    ]
    assert lines[-1].endswith("about 1 minute left")


def test_ctrl_c_says_what_is_kept(
    tmp_path: Path, ngram: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = table(tmp_path / "a.jsonl", [{"text": "ab a"}] * 100), tmp_path / "out.csv"
    append, calls = Output.append, []

    def stop(output: Output, chunk: ScoredChunk) -> None:
        calls.append(chunk)
        if len(calls) == 3:
            raise KeyboardInterrupt
        append(output, chunk)

    monkeypatch.setattr(Output, "append", stop)
    stopped = run(path, "-o", out)
    assert stopped.exit_code == 130
    assert "stopped; 64 of 100 texts are kept. The same command goes on there." in stopped.stderr
    assert run_json(path, "-o", out)["continued_after"] == 64


# --- kill -9 ------------------------------------------------------------------------------------


def is_done(journal: Path, chunks: int) -> bool:
    """Whether so many chunks are in a journal."""
    return journal.exists() and journal.read_bytes().count(b'\n{"rows"') >= chunks


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no kill -9")
@pytest.mark.slow
def test_killed_and_started_again(tmp_path: Path) -> None:
    """Killed before it has scored anything, and after four chunks; two rows are bad."""
    rows = [{"item": n, "text": f"x{n} = {n % 7}, {n % 11}"} for n in range(180)]
    rows[50]["text"] = rows[150]["text"] = ""
    path = table(tmp_path / "many.jsonl", rows)
    options = ["--item-column", "item", "--on-error", "skip", "--preset", "fast"]
    whole, out = tmp_path / "whole.csv", tmp_path / "out.csv"
    assert run(path, *options, "-o", whole).exit_code == 3
    journal = tmp_path / "out.csv.part"
    for chunks in (0, 4):
        command = Command(["score", str(path), *options, "-o", str(out)], tmp_path)
        command.kill_when(partial(is_done, journal, chunks))
        assert not out.exists()
    result = run(path, *options, "-o", out, "--json")
    assert result.exit_code == 3, result.output
    answer = json.loads(result.stdout)
    assert 4 * 32 <= answer["continued_after"] < 180
    assert answer["left_out"] == 2
    assert out.read_bytes() == whole.read_bytes()
    assert Path(answer["errors"]).read_bytes() == Path(f"{whole}.errors.jsonl").read_bytes()
    assert not journal.exists()


@pytest.mark.parametrize("columns", [20, 50])
def test_numbers_of_a_table_are_whole_however_narrow_it_is(tmp_path: Path, columns: int) -> None:
    rows = [{"text": "x = " + "numpy" * 9, "item": "a" * 30}, {"text": "To be", "item": "b"}]
    source = table(tmp_path / "texts.jsonl", rows)
    options = ["--item-column", "item", "--per", "word"]
    records = run_json(source, *options)["rows"]
    words = run(source, *options, env={"COLUMNS": str(columns)}).stdout.split()
    for record in records:
        assert f"{record['cumulative']:.3f}" in words
        assert f"{record['error']:.2g}" in words
