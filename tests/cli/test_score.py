"""`charwise score`: what it prints and writes, and that kill -9 changes nothing of it."""

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
import commands
from charwise import CharLM, Vocabulary
from charwise.engines.ngram import NgramLM
from charwise.tables.output import Output, ScoredChunk
from commands import Command

run = partial(commands.run, "score")
run_json = partial(commands.run_json, "score")


def table(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def ngram(monkeypatch: pytest.MonkeyPatch) -> CharLM:
    """A model that can spell a, b and space, gives b after b no probability, and fails after é."""
    vocabulary = Vocabulary([b"a", b"b", b" ", None, "é".encode()], end_ids=[3], bos_ids=[3])
    rows = {
        (3,): [0.5, 0.3, 0.05, 0.1, 0.05],
        (0,): [0.2, 0.2, 0.3, 0.3, 0.0],
        (1,): [0.5, 0.0, 0.3, 0.2, 0.0],
        (2,): [0.4, 0.4, 0.1, 0.1, 0.0],
    }
    lm = CharLM(NgramLM(vocabulary, 2, rows))
    monkeypatch.setattr("charwise.cli.options.ModelOptions.load", lambda *_: lm)
    return lm


# --- What is printed ----------------------------------------------------------------------------


def test_contexts_and_regions_have_columns(tmp_path: Path) -> None:
    text, context = "import os, sys", "# all\n"
    cells = {"id": 1, "t": text, "c": context, "r": [[0, 6], [7, 9]]}
    path = table(tmp_path / "a.jsonl", [cells])
    names = ["--per", "region", "--text-column", "t", "--regions-column", "r"]
    more = run_json(path, *names, "--item-column", "id", "--context-column", "c")["rows"]
    spans = charwise.load().score(text, context=context).spans([(0, 6), (7, 9)])
    assert [(row["item"], row["surprisal"]) for row in more] == [
        ("1", span.surprisal) for span in spans
    ]
    assert run_json(path, *names)["rows"][0]["surprisal"] != more[0]["surprisal"]


@pytest.mark.parametrize("entropy", ["byte", "char", "word"])
def test_entropies_and_ends_are_columns_and_rows(
    tmp_path: Path, ngram: CharLM, entropy: Literal["byte", "char", "word"]
) -> None:
    path, out = table(tmp_path / "a.jsonl", [{"text": "ab a"}]), tmp_path / "out.csv"
    more = ["--entropy", entropy, "--end", *["--coverage", "0.4"][: 2 * (entropy == "word")]]
    *rows, end = run_json(path, *more)["rows"]
    score = ngram.score("ab a", entropy=entropy, coverage=0.4, end=True)
    names = ["entropy", "reduction", "rank", "entropy_most"][: 3 + (entropy == "word")]
    numbers = ["surprisal", "cumulative", "error", *names]
    assert [[row[name] for name in numbers] for row in rows] == [
        [getattr(span, name) for name in numbers] for span in score.words()
    ]
    assert (end["unit"], end["text"], end["start"], end["end"]) == (3, "", 4, 4)
    assert end["surprisal"] == pytest.approx(-score.end_logprob / math.log(2))
    assert end["cumulative"] == rows[-1]["cumulative"] + end["surprisal"]
    plain = run_json(path)["rows"]
    assert not {*names} & {*plain[0]}
    assert [row["surprisal"] for row in plain] == [row["surprisal"] for row in rows]
    assert run(path, *more, "-o", out).exit_code == 0
    [first, last, ending] = csv.DictReader(out.open())
    assert float(first["entropy"]) == rows[0]["entropy"]
    assert (last["reduction"], ending["entropy"]) == ("NA", "NA")


def test_long_tables_are_cut_and_numbers_are_whole(
    tmp_path: Path, ngram: CharLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "… and 100 more" in run("-", "--per", "byte", stdin=b"ab " * 100).stdout
    path = table(tmp_path / "a.jsonl", [{"text": "ab " * 9, "item": "a" * 30}] * 100)
    options = [path, "--item-column", "item", "--per", "text"]
    records = run_json(*options)["rows"]
    words = run(*options, env={"COLUMNS": "20"}).stdout.split()
    for record in records:
        assert {f"{record['cumulative']:.3f}", f"{record['error']:.2g}"} <= {*words}
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = run(*options)
    assert "100 of 100 texts" in result.stderr
    assert "B/s" in result.stderr or "bytes/s" in result.stderr
    assert "largest stated error of a row: " in result.stdout
    assert "--out FILE keeps the rows" in result.stdout


def test_control_characters_of_data_never_reach_a_terminal(
    tmp_path: Path, ngram: CharLM, monkeypatch: pytest.MonkeyPatch
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


def test_files_of_other_encodings_delimiters_and_kinds(tmp_path: Path, ngram: CharLM) -> None:
    path, plain, out = (tmp_path / name for name in ("a.csv", "a.txt", "out.jsonl"))
    path.write_bytes("satz;größe\na b;é\n".encode("cp1252"))
    options = ["--text-column", "satz", "--keep-column", "größe", "--delimiter", ";"]
    [first, _] = run_json(path, *options, "--encoding", "cp1252")["rows"]
    assert first["größe"] == "é"
    path.write_text("text\ta\nab\tb\n", encoding="utf-16")
    rows = run_json(path, "--delimiter", "tab", "--encoding", "utf-16")["rows"]
    assert [row["text"] for row in rows] == ["ab"]
    path.write_text("text,a\nab,b\n", encoding="utf-8-sig")
    plain.write_bytes(b"a b")
    assert run(plain, path, "--keep-column", "a", "-o", out).exit_code == 0
    assert [json.loads(line)["a"] for line in out.open()] == [None, None, "b"]
    assert run(plain, "--keep-column", "a").exit_code == 2
    rows = run_json("-", "--per", "byte", "--on-error", "skip", stdin=b"a b")["rows"]
    assert [(row["file"], row["text"]) for row in rows] == [("-", "a"), ("-", " "), ("-", "b")]


# --- Rows without a score -----------------------------------------------------------------------


def test_rows_without_a_score_are_left_out(tmp_path: Path, ngram: CharLM) -> None:
    rows = [{"text": text} for text in ("ab", "", "abb", "abc", "a b")]
    path, out = table(tmp_path / "a.jsonl", rows), tmp_path / "out.csv"
    result = run(path, "--on-error", "skip", "--preset", "exact", "-o", out)
    assert result.exit_code == 3, result.output
    errors = out.with_name("out.csv.errors.jsonl")
    assert f"3 rows for 2 of 5 texts; the 3 left out are in {errors}" in result.stdout
    assert [row["row"] for row in csv.DictReader(out.open())] == ["1", "5", "5"]
    listed = [json.loads(line) for line in errors.read_text().splitlines()]
    assert [(e["file"], e["row"], e["line"], e["column"]) for e in listed] == [
        (str(path), row, row, "text") for row in (2, 3, 4)
    ]
    for preset in ("fast", "default", "accurate", "exact"):
        printed = run(path, "--on-error", "skip", "--per", "byte", "--preset", preset, "--json")
        assert printed.exit_code == 3
        answer = json.loads(printed.stdout)
        assert {row["row"] for row in answer["rows"]} == {1, 5}
        assert len(answer["left_out"]) == printed.stderr.count("charwise: left out: ") == 3
        for name in ("surprisal", "cumulative", "error"):
            assert all(math.isfinite(row[name]) for row in answer["rows"])


def test_a_row_without_a_score_stops_and_can_be_skipped_later(
    tmp_path: Path, ngram: CharLM
) -> None:
    rows = [{"text": "abb" if n == 70 else "ab a"} for n in range(100)]
    path, out, whole = (tmp_path / name for name in ("a.jsonl", "out.csv", "whole.csv"))
    table(path, rows)
    assert run(path, "--on-error", "skip", "-o", whole).exit_code == 3
    result = run(path, "-o", out)
    assert result.exit_code == 1
    assert f"{path}, row 71 (line 71), column 'text': " in str(result.exception)
    assert "64 texts are kept.)" in str(result.exception)
    assert not out.exists()
    result = run(path, "--on-error", "skip", "--json", "-o", out)
    assert json.loads(result.stdout)["continued_after"] == 64
    assert out.read_bytes() == whole.read_bytes()


def test_a_model_that_fails_is_no_bad_row(tmp_path: Path, ngram: CharLM) -> None:
    path, out = table(tmp_path / "a.jsonl", [{"text": "éa"}]), tmp_path / "out.csv"
    result = run(path, "--on-error", "skip", "-o", out)
    assert result.exit_code == 1
    assert "the table has no row for the context" in str(result.exception)
    assert not out.exists()


def test_probable_mistakes_are_warnings_and_refused_if_strict(
    tmp_path: Path, ngram: CharLM
) -> None:
    rows = [{"text": "ab", "item": n % 2} for n in range(30)]
    path, out = table(tmp_path / "a.jsonl", rows), tmp_path / "out.csv"
    result = run(path, "--item-column", "item", "-o", out)
    assert result.exit_code == 0
    lines = result.stderr.splitlines()
    assert f"warning: {path}, row 3 (line 3), column 'item'" in lines[0]
    assert len(lines) == 21
    assert "8 more are not shown" in lines[-1]
    strict = ["--item-column", "item", "--strict", "-o", tmp_path / "strict.csv"]
    assert "row 3 (line 3), column 'item'" in str(run(path, *strict).exception)
    assert not (tmp_path / "strict.csv").exists()
    assert run(path, *strict, "--on-error", "skip").exit_code == 3
    assert len((tmp_path / "strict.csv").read_text().splitlines()) == 3


# --- Interruptions ------------------------------------------------------------------------------


def test_progress_has_lines_without_a_terminal_and_ctrl_c_says_what_is_kept(
    tmp_path: Path, ngram: CharLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("charwise.cli.score._EVERY", 0.0)
    path, out = table(tmp_path / "a.jsonl", [{"text": "ab a"}] * 100), tmp_path / "out.csv"
    append = Output.append

    def stop(output: Output, chunk: ScoredChunk) -> None:
        if output.progress.chunks == 2:
            raise KeyboardInterrupt
        append(output, chunk)

    with monkeypatch.context() as patch:
        patch.setattr(Output, "append", stop)
        stopped = run(path, "-o", out)
    assert stopped.exit_code == 130
    *lines, last = stopped.stderr.splitlines()
    assert "64 of 100 texts are kept. The same command goes on there." in last
    assert [line.split(", about")[0] for line in lines] == [
        f"charwise: {rows} of 100 texts" for rows in (32, 64)
    ]
    assert lines[-1].endswith("about 1 minute left")
    assert run_json(path, "-o", out)["continued_after"] == 64


def has_chunks(journal: Path, chunks: int) -> bool:
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
        command.kill_when(partial(has_chunks, journal, chunks))
        assert not out.exists()
    result = run(path, *options, "-o", out, "--json")
    assert result.exit_code == 3, result.output
    answer = json.loads(result.stdout)
    assert 4 * 32 <= answer["continued_after"] < 180
    assert answer["left_out"] == 2
    assert out.read_bytes() == whole.read_bytes()
    assert Path(answer["errors"]).read_bytes() == Path(f"{whole}.errors.jsonl").read_bytes()
    assert not journal.exists()
