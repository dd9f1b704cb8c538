"""Outputs whose writer is stopped: at every operation on the disk, and with every loss of power."""

import csv
import json
import os
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charwise import CharLM, Vocabulary
from charwise.errors import SettingError
from charwise.tables.job import Job
from charwise.tables.measure import Measure
from charwise.tables.output import Identity, Output, ScoredChunk
from charwise.tables.readers import Source
from models import examples, random_lm

ENDINGS = (".csv", ".tsv", ".jsonl", ".parquet")
ROWS = 5 * 32 + 3  # of 32 rows a chunk
FIELDS = Measure(per="char").fields()
IDENTITY: Identity = {"--per": "char", "what the model says": [1.25, 0.5]}


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> list[ScoredChunk]:
    """Six chunks of real scores, with bad rows of both kinds in some."""
    vocabulary = Vocabulary([b"a", b"b", b"ab", b" ", None], end_ids=[4], bos_ids=[4])
    lm = CharLM(random_lm(vocabulary, 2, 0))
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    texts = [("ab " * (n % 4 + 1)) for n in range(ROWS)]
    texts[40], texts[100] = "abc", ""  # c has no token
    path.write_text("text,item\n" + "".join(f'"{text}",{n}\n' for n, text in enumerate(texts)))
    job = Job((Source.of(str(path)),), measure=Measure(per="char", preset="fast"))
    chunks = list(job.scored(lm))
    assert [row.place.number for chunk in chunks for row in chunk.bad] == [41, 101]
    return chunks


def run(
    out: Path, scored: list[ScoredChunk], identity: Identity = IDENTITY, **options: bool
) -> None:
    """What the command does with an output."""
    with Output(out, FIELDS, identity, ROWS, **options) as output:
        for chunk in scored[output.progress.chunks :]:
            output.append(chunk)
        output.finish({"charwise": "0.1.0"})


def contents(folder: Path) -> dict[str, bytes]:
    """All that is in a folder, which has no folders."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Stopped(BaseException):
    """In place of the end of the process, or of a loss of power."""


@pytest.mark.parametrize("ending", ENDINGS)
def test_stopped_before_every_operation_on_the_disk(
    tmp_path: Path, scored: list[ScoredChunk], monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    if ending == ".parquet":
        pytest.importorskip("pyarrow", reason="Parquet needs: pip install 'charwise[tables]'")
    whole, out = (tmp_path / name / f"out{ending}" for name in ("whole", "stopped"))
    whole.parent.mkdir()
    out.parent.mkdir()
    run(whole, scored)
    expected = contents(whole.parent)
    assert set(expected) == {out.name, f"{out.name}.errors.jsonl", f"{out.name}.json"}
    left = 0

    def stoppable(operation: Any) -> Any:
        def stopped(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Stopped
            return operation(*arguments, **options)

        return stopped

    for name in ("fsync", "mkdir", "replace", "rename", "rmdir", "unlink"):
        monkeypatch.setattr(os, name, stoppable(getattr(os, name)))
    for operations in count():
        left = operations
        try:
            run(out, scored)
            break
        except Stopped:
            left = 10**9
        assert contents(out.parent).get(out.name) in (None, expected[out.name])
        if out.exists() and not Path(f"{out}.part").exists():  # only to be cleared up
            with pytest.raises(SettingError, match="is there, and finished"):
                run(out, scored)
        else:
            run(out, scored)
        assert contents(out.parent) == expected
        for path in list(out.parent.iterdir()):
            path.unlink()
    assert operations > 6 * 2
    assert contents(out.parent) == expected


@given(data=st.data())
@examples(60)
def test_what_was_not_yet_on_the_disk_is_lost(
    tmp_path_factory: pytest.TempPathFactory, scored: list[ScoredChunk], data: st.DataObject
) -> None:
    """A journal that is cut anywhere, with or without rubbish behind the cut."""
    folder = tmp_path_factory.mktemp("lost")
    run(folder / "whole.csv", scored)
    out, journal = folder / "out.csv", folder / "out.csv.part"
    ends = []
    with Output(out, FIELDS, IDENTITY, ROWS) as output:
        for chunk in scored[: data.draw(st.integers(0, len(scored)))]:
            ends.append(journal.stat().st_size)
            output.append(chunk)
    cut = data.draw(st.integers(0, journal.stat().st_size))
    os.truncate(journal, cut)
    with journal.open("ab") as file:
        file.write(data.draw(st.sampled_from([b"", b"\0\0", b'{"row', b'["a', b"\n"])))
    (folder / "out.csv.new").write_bytes(b"half")
    if cut >= (ends or [0])[0]:
        with Output(out, FIELDS, IDENTITY, ROWS) as output:
            assert output.progress.chunks == sum(end <= cut for end in ends[1:])
    run(out, scored)
    assert out.read_bytes() == (folder / "whole.csv").read_bytes()
    errors = [folder / f"{name}.csv.errors.jsonl" for name in ("out", "whole")]
    assert errors[0].read_bytes() == errors[1].read_bytes()
    assert len(list(folder.iterdir())) == 6


@pytest.mark.parametrize("change", ["a cell", "a count", "a line", "the end"])
def test_a_damaged_journal_makes_no_short_table(
    tmp_path: Path, scored: list[ScoredChunk], change: str
) -> None:
    out, journal = tmp_path / "out.csv", tmp_path / "out.csv.part"
    with Output(out, FIELDS, IDENTITY, ROWS) as output:
        for chunk in scored:
            output.append(chunk)
        lines = journal.read_bytes().splitlines(keepends=True)
        at = next(n for n, line in enumerate(lines) if n and line.startswith(b"{"))
        if change == "a cell":
            lines[3] = lines[3][:-2] + b"!\n"
        elif change == "a count":
            lines[at] = lines[at].replace(b'"records": ', b'"records": 1')
        else:
            del lines[3 if change == "a line" else -1]
        number = {"a cell": 4, "a count": at + 1, "a line": at}.get(change)
        named = f"line {number}" if number else "the last line"
        journal.write_bytes(b"".join(lines))
        with pytest.raises(SettingError, match=rf"{named} of .*out\.csv\.part is damaged"):
            output.finish({"charwise": "0.1.0"})
    assert not out.exists()
    if number:
        with pytest.raises(SettingError, match=f"{named} of"):
            Output(out, FIELDS, IDENTITY, ROWS)
        journal.write_bytes(b"".join(lines[: number - 1]))  # what the message says
    run(out, scored)
    expected = out.read_bytes()
    journal.write_bytes(b"".join(lines))
    run(out, scored, overwrite=True)
    assert out.read_bytes() == expected


def test_an_input_that_lost_rows(tmp_path: Path, scored: list[ScoredChunk]) -> None:
    with pytest.raises(SettingError, match="it had 163 rows, and 160 came"):
        run(tmp_path / "out.csv", scored[:-1])
    assert not (tmp_path / "out.csv").exists()


def test_a_run_that_makes_something_else_is_refused(
    tmp_path: Path, scored: list[ScoredChunk]
) -> None:
    out = tmp_path / "out.csv"
    with Output(out, FIELDS, IDENTITY, ROWS) as output:
        output.append(scored[0])
    before = contents(tmp_path)
    other: Identity = {**IDENTITY, "--per": "word"}
    another: Identity = {**IDENTITY, "what the model says": [1.25, 0.75]}
    for identity, why in (
        (other, "--per was char, and is now word"),
        (another, "what the model says is no longer the same"),
    ):
        with pytest.raises(SettingError, match=why):
            Output(out, FIELDS, identity, ROWS)
    assert contents(tmp_path) == before
    near: Identity = {**IDENTITY, "what the model says": [1.25, 0.5004]}
    with Output(out, FIELDS, near, ROWS) as output:
        assert output.progress.chunks == 1
    with Output(out, FIELDS, other, ROWS, overwrite=True) as output:
        assert output.progress.chunks == 0


@pytest.mark.parametrize(
    ("name", "content"),
    [("out.csv", "old\n"), ("out.csv.json", "[1]"), ("out.csv.part", "mine\n")],
)
def test_a_file_of_the_user_is_replaced_only_with_overwrite_and_in_one_step(
    tmp_path: Path, scored: list[ScoredChunk], name: str, content: str
) -> None:
    out, path = tmp_path / "out.csv", tmp_path / name
    path.write_text(content)
    with pytest.raises(SettingError, match=rf"{name} is (there|damaged)"):
        run(out, scored)
    if path.suffix != ".part":
        with pytest.raises(SettingError, match=rf"{name} is there, and nothing says"):
            Output.check(out, overwrite=False)
    assert contents(tmp_path) == {name: content.encode()}
    with Output(out, FIELDS, IDENTITY, ROWS, overwrite=True) as output:
        output.append(scored[0])
    assert path.suffix == ".part" or path.read_text() == content
    run(out, scored)  # an unfinished output is continued, with or without --overwrite
    assert json.loads((tmp_path / "out.csv.json").read_bytes())["charwise"] == "0.1.0"
    out.unlink()
    run(out, scored)  # the file beside it is ours


def test_two_at_once(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    code = (
        "import sys; from pathlib import Path; from charwise.tables.output import Output\n"
        f"with Output(Path(sys.argv[1]), {{}}, {IDENTITY!r}, {ROWS}):\n"
        "    print('open'), sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-uc", code, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(SettingError, match="is being written by another process"):
            Output(out, FIELDS, IDENTITY, ROWS)
        other.kill()
    with Output(out, FIELDS, IDENTITY, ROWS) as output:
        assert output.progress.chunks == 0


def test_all_formats_hold_the_same(tmp_path: Path, scored: list[ScoredChunk]) -> None:
    pandas = pytest.importorskip("pandas", reason="this test reads with pandas")
    pytest.importorskip("pyarrow", reason="Parquet needs: pip install 'charwise[tables]'")
    for ending in ENDINGS:
        run(tmp_path / f"out{ending}", scored)
        with Output(tmp_path / f"none{ending}", FIELDS, IDENTITY, 0) as output:
            output.finish({})
    assert pandas.read_parquet(tmp_path / "none.parquet").columns.tolist() == list(FIELDS)
    kinds = {"text": str, "item": str}
    exact = {"dtype": kinds, "keep_default_na": False, "float_precision": "round_trip"}
    tables = [
        pandas.read_csv(tmp_path / "out.csv", **exact),
        pandas.read_csv(tmp_path / "out.tsv", sep="\t", **exact),
        pandas.DataFrame(map(json.loads, (tmp_path / "out.jsonl").open())),
        pandas.read_parquet(tmp_path / "out.parquet"),
    ]
    expected = [record for chunk in scored for record in chunk.records]
    for table in tables:
        assert table.columns.tolist() == list(FIELDS)
        rows = table.astype(object).where(table.notna(), None).values.tolist()
        assert [[cell or None for cell in row] for row in rows] == [
            [cell or None for cell in record.values()] for record in expected
        ]


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_any_cell_comes_back_from_a_table(tmp_path: Path, ending: str) -> None:
    """A lone carriage return too, which some csv modules write without quotes."""
    fields = {"text": str, "n": float, "b": bool, "copied\r": str}
    texts = ["a\rb", "\r", "a\nb", 'say "no"', "a,b\tc", "", "NA", "é"]
    records = [{"text": text, "n": 0.1, "b": True, "copied\r": None} for text in texts]
    out = tmp_path / f"out{ending}"
    with Output(out, fields, IDENTITY, len(texts)) as output:
        output.append(ScoredChunk(len(texts), 2, records, []))
        output.finish({"charwise": "0.1.0"})
    with out.open(newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file, delimiter="," if ending == ".csv" else "\t", strict=True)
    assert head == list(fields)
    assert rows == [[text, "0.1", "TRUE", ""] for text in texts]
