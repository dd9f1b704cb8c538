"""Tables and texts as they are read: what is in them, and what is said about what is wrong."""

import bz2
import codecs
import csv
import gzip
import json
import re
import sys
import tracemalloc
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charwise.errors import SettingError
from charwise.tables import readers
from charwise.tables.job import Job
from charwise.tables.measure import Measure
from charwise.tables.readers import Dialect, Source
from charwise.tables.rows import LONGEST_CELL, BadRow, Columns, Place, Stimulus
from charwise.tables.warnings import InputWarnings
from models import examples

KINDS = ("csv", "tsv", "jsonl", "parquet")


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """The rows as a file of the kind that the path's ending says, by another library's hand."""
    if path.suffix == ".parquet":
        pa = pytest.importorskip("pyarrow", reason="Parquet needs: pip install 'charwise[tables]'")
        from pyarrow import parquet

        layout = {"row_group_size": 200, "use_dictionary": False, "compression": "none"}
        parquet.write_table(pa.Table.from_pylist(list(rows)), path, **layout)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, delimiter="," if path.suffix == ".csv" else "\t")
            writer.writerows([list(rows[0]), *(row.values() for row in rows)])
    return path


def read(path: Path, per_region: bool = False, **columns: Any) -> list[Stimulus | BadRow]:
    return list(Source.of(str(path)).rows(Columns(**columns), regions=per_region))


def the_row(path: Path, per_region: bool = False, **columns: Any) -> Stimulus:
    (row,) = read(path, per_region, **columns)
    assert isinstance(row, Stimulus), row
    return row


def spans(row: Stimulus) -> list[tuple[int, int]]:
    return [(region.start, region.end) for region in row.regions]


@pytest.mark.parametrize("kind", KINDS)
def test_a_table(tmp_path: Path, kind: str) -> None:
    named = {"verb": [0, 2], "clause": [0, 5]}
    rows = [
        {"item": "1a", "sentence": "To be", "before": None, "marked": "To |be"},
        {"item": "1b", "sentence": "naïve, “yes”\tor no", "before": "So\nit", "marked": "[[0, 5]]"},
        {"item": "1c", "sentence": "To be", "before": "", "marked": json.dumps(named)},
    ]
    path = write(tmp_path / f"items.{kind}", rows)
    columns = {"text": "sentence", "item": "item", "context": "before", "regions": "marked"}
    first, second, third = read(path, True, **columns)
    assert (first.text, first.context, first.item) == (b"To be", b"", "1a")
    assert spans(first) == [(0, 3), (3, 5)]
    assert second.text.decode() == "naïve, “yes”\tor no"
    assert (second.context, second.item, spans(second)) == (b"So\nit", "1b", [(0, 5)])
    assert (second.place.number, second.column) == (2, "sentence")
    assert list(map(tuple, third.regions)) == [(0, 2, "verb"), (0, 5, "clause")]
    if kind in ("jsonl", "parquet"):  # cells of other types
        cells = {"text": "To be", "item": 7, "n": None, "x": 0.5, "list": [1, 2], "r": named}
        path = write(tmp_path / f"a.{kind}", [cells])
        row = the_row(path, True, item="item", regions="r", copied=("n", "x", "list"))
        assert (row.item, len(row.regions)) == ("7", 2)
        assert row.copied == (("n", None), ("x", "0.5"), ("list", "[1, 2]"))


@pytest.mark.parametrize("kind", KINDS)
@given(texts=st.lists(st.text().filter(bool), min_size=1, max_size=4))
@examples(30)
def test_any_text_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, kind: str, texts: list[str]
) -> None:
    path = tmp_path_factory.mktemp("texts") / f"texts.{kind}"
    write(path, [{"n": n, "text": text} for n, text in enumerate(texts)])
    rows = [row for row in read(path) if isinstance(row, Stimulus)]
    assert [row.text.decode() for row in rows] == texts


@given(
    # A blank cell has no regions, and a whole text in brackets may be JSON.
    text=st.text(st.characters(exclude_characters="|[{"), min_size=1).filter(str.strip),
    data=st.data(),
)
@examples(100)
def test_bars_and_offsets_mark_the_same_regions(
    tmp_path_factory: pytest.TempPathFactory, text: str, data: st.DataObject
) -> None:
    cuts = data.draw(st.sets(st.integers(1, len(text) - 1))) if len(text) > 1 else set()
    pairs = list(pairwise([0, *sorted(cuts), len(text)]))
    marked = "|".join(text[start:end] for start, end in pairs)
    path = tmp_path_factory.mktemp("regions") / "a.jsonl"
    write(path, [{"text": text, "marked": marked, "pairs": pairs, "json": json.dumps(pairs)}])
    for regions in ("marked", "pairs", "json"):
        assert spans(the_row(path, True, regions=regions)) == pairs
    for columns in ({"text": "marked"}, {"text": "marked", "regions": "marked"}):
        row = the_row(path, True, **columns)
        assert (row.text.decode(), spans(row)) == (text, pairs)


def test_plain_text_is_one_row_of_any_bytes_without_its_mark(tmp_path: Path) -> None:
    path, text = tmp_path / "book.txt", b"na\xc3\r\n" + b"x" * LONGEST_CELL  # longer than a cell
    for mark in (b"", codecs.BOM_UTF8):
        path.write_bytes(mark + text)
        row = the_row(path)
        assert (row.text, str(row.place)) == (text, str(path))
    path.write_bytes("\ufefftext\n\ufeff".encode("utf-16-le"))
    source = Source.of(str(path), Dialect(encoding="utf-16-le"))
    assert source.text() == "text\n\ufeff".encode()
    path.write_bytes(b"To |be")
    row = the_row(path, True, regions="a column of the tables beside it")
    assert (row.text, spans(row)) == (b"To be", [(0, 3), (3, 5)])
    path.write_bytes(b"a|\xff")
    assert isinstance(read(path, True)[0], BadRow)


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
@pytest.mark.parametrize("excel", [b"", b"sep=,\r\n", b"sep=;\r", b'"SEP=;"\r\n'])
def test_what_excel_writes(tmp_path: Path, mark: bytes, excel: bytes) -> None:
    path = tmp_path / "excel.csv"
    table = b'text,item\r\n"two\r\nlines",1\r\n\r\nTo be,2\r\n'
    path.write_bytes(mark + excel + table.replace(b",", b";" if b";" in excel else b","))
    first, second = read(path, item="item")
    line = 3 if excel else 2
    assert (first.text, first.place.number, first.place.line) == (b"two\r\nlines", 1, line)
    assert (second.text, second.place.number, second.place.line) == (b"To be", 2, line + 3)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv.gz", b"text,item\nTo be,1\n"),
        ("a.JSONL.gz", b'\xef\xbb\xbf{"text": "To be", "item": "1"}\r\n\r\n'),
        ("a.json", b'[{"text": "To be", "item": "1"}]'),
        ("gz.txt", b"To be"),
    ],
)
def test_compressed_files_and_lists_of_objects(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if "gz" in name else content)
    row = the_row(path, **({} if ".txt" in name else {"item": "item"}))
    assert (row.text, row.item) == (b"To be", None if ".txt" in name else "1")


# --- Files that cannot be used ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b"sentence,item\na,b\n"),
        ("a.csv", b"text,item,text\na,b,c\n"),
        ("a.csv", b"item;text\n1;To be\n"),
        ("a.csv", b"sep=;\n"),
        ("a.csv", bz2.compress(b"text\nTo be\n")),
        ("a.csv", b'"text\n'),
        ("a.csv", "text\nTo be\n".encode("utf-16")),
        ("a.txt", "To be".encode("utf-32")),
        ("a.csv.gz", b"text\nTo be\n"),
        ("a.csv.gz", gzip.compress(b"text\nTo be\n", mtime=0)[:-9]),
        ("a.jsonl", b""),
        ("a.json", b'{"text": {"0": "To be"}}'),
        ("a.json", b'[{"text": "To be"}'),
        ("a.parquet", b"To be"),
        ("a.parquet.gz", gzip.compress(b"To be", mtime=0)),
        ("a.csv.zip", b"PK\x03\x04"),
        ("folder.csv", None),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    if ".parquet" in name:
        pytest.importorskip("pyarrow", reason="Parquet needs: pip install 'charwise[tables]'")
    (tmp_path / "folder.csv").mkdir()
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingError, match=re.escape(name)):
        read(path)


def test_a_line_without_end_and_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"text\n\n")
    with pytest.raises(SettingError, match=r"there are no rows to score in .*a\.csv"):
        Job((Source.of(str(path)),)).survey()
    monkeypatch.setattr(readers, "LONGEST_LINE", 1000)
    path.write_bytes(b"text\n" + b"x" * 1001 + b"\n")
    with pytest.raises(SettingError, match="line 2 has more than 1,000 characters"):
        read(path)


# --- Rows that cannot be used -------------------------------------------------------------------


#: A table → where its fault is.
FAULTS = [
    ("csv", b"text,item\n,1\n", "row 1 (line 2), column 'text'"),
    ("csv", b"text,item\nna\xefve,1\n", "row 1 (line 2), column 'text'"),
    ("csv", b"text,item\na,\xe9\n", "row 1 (line 2), column 'item'"),
    ("csv", b"text,item\na\n", "row 1 (line 2)"),
    ("csv", b'sep=;\ntext;item\n"a"b;c\n', "row 1 (line 3)"),
    ("jsonl", b'{"text": null, "item": 1}', "row 1 (line 1), column 'text'"),
    ("jsonl", b'{"text": 7, "item": 1}', "row 1 (line 1), column 'text'"),
    ("jsonl", b'{"text": "a", "item": 1}\n{"text": "b"}', "row 2 (line 2), column 'item'"),
    ("jsonl", b'{"text": "a"', "row 1 (line 1)"),
    ("jsonl", b"[" * 100_000, "row 1 (line 1)"),
    ("json", b'[{"text": "", "item": 1}]', "row 1, column 'text'"),
    ("json", b'["a"]', "row 1"),
]


@pytest.mark.parametrize(("kind", "content", "place"), FAULTS)
def test_a_bad_row_is_named_with_its_column(
    tmp_path: Path, kind: str, content: bytes, place: str
) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes(content + b"\n" * (kind == "jsonl"))
    fault = str(read(path, item="item")[-1])
    assert fault.startswith(f"{path}, {place}: ")
    assert (b"\xe9" not in content) or "byte 0xE9, after " in fault


@pytest.mark.parametrize(
    "regions",
    [
        *([[3, 2]], [[0, 3], [3, 6]], [[-1, 3]], [[0, 1.5]], [[0]], [[True, 2]], [], 7),
        *("[[0, 3", "", "[" * 100_000, "[[0, " + "1" * 5000 + "]]", {}, "[To be"),
        *({"verb": "be"}, {"verb": None}, {"\ud800": [0, 2]}),
        *("to |be", "To ||be", "To be|"),
    ],
)
def test_bad_regions(tmp_path: Path, regions: Any) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": "To be", "r": regions}])
    [row] = read(path, True, regions="r")
    assert str(row).startswith(f"{path}, row 1 (line 1), column 'r': ")


@pytest.mark.parametrize("kind", KINDS)
def test_a_line_of_ten_megabytes(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"a.{kind}", [{"text": "x" * 10_000_000}, {"text": "To be"}])
    bad, good = read(path)
    assert "column 'text': the cell has 10,000,000 bytes, and may have 1,048,576." in str(bad)
    assert good.text == b"To be"


HALVES = st.text(st.sampled_from(["a", "é", "😀", "\\", "\ud83d", "\ude00"]), min_size=1)


@given(HALVES)
@examples(60)
def test_half_a_surrogate_pair_is_named_with_its_row(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.mktemp("half") / "a.jsonl"
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")  # pairs joined
    rows = ['{"text": "To be"}', json.dumps({"text": text, "other": "\ud800"})]
    path.write_text("\n".join(rows), encoding="utf-8")
    (good, row) = read(path)
    assert isinstance(good, Stimulus)
    half = next((at for at, char in enumerate(text) if "\ud800" <= char <= "\udfff"), None)
    if half is None:
        assert isinstance(row, Stimulus)
        assert row.text == text.encode()
    else:
        code = f"U+{ord(text[half]):04X}"
        assert f"row 2 (line 2), column 'text': {code}, after {half} char" in str(row)


# --- Size ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, kind: str) -> None:
    """Of Parquet it holds a row group at a time."""
    count = 4_000
    path = write(tmp_path / f"a.{kind}", [{"text": f"{n}".ljust(5000, "x")} for n in range(count)])
    assert path.stat().st_size > 20_000_000
    job, most = Job((Source.of(str(path)),)), 0
    tracemalloc.start()
    try:
        for n, _ in enumerate(job.rows()):
            if kind == "parquet" and n % 500 == 0:
                most = max(most, sys.modules["pyarrow"].total_allocated_bytes())
        assert sum(map(len, job.chunks())) == n + 1 == count
        most += tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < (7_000_000 if kind == "parquet" else 2_000_000)


@given(lengths=st.lists(st.sampled_from([0, 1, 2**17, 2**18]), min_size=1, max_size=100))
@examples(30)
def test_chunks_are_all_rows_in_order(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int]
) -> None:
    path = tmp_path_factory.mktemp("chunks") / "a.jsonl"
    write(path, [{"text": "x" * length} for length in lengths])
    job = Job((Source.of(str(path)), Source("-", b"To be")), measure=Measure(per="byte"))
    chunks = list(job.chunks())
    assert [row for chunk in chunks for row in chunk] == list(job.rows())
    assert all(1 <= len(chunk) <= 32 for chunk in chunks)
    assert all(sum(row.size for row in chunk[:-1]) < 2**18 for chunk in chunks)


# --- Probable mistakes: each is named with its row and column, and no other cell is ---------------


def warnings_of(*rows: Stimulus) -> list[str]:
    mistakes = InputWarnings(Columns("sentence", item="id", context="before"))
    return [str(bad) for row in rows for bad in mistakes.of(row)]


def row(text: str, context: str = "", item: str | None = None, number: int = 1) -> Stimulus:
    place = Place("a.csv", number, number + 1)
    return Stimulus(place, text.encode(), context.encode(), item)


def test_a_text_without_a_bar_is_one_region() -> None:
    for text, count in (("To be|, or not.", 0), ("To be, or not.", 1)):
        stimulus = Columns().row(Place("a.csv", 1), {"text": text}, regions=True)
        assert isinstance(stimulus, Stimulus)
        assert len(list(InputWarnings(Columns()).of(stimulus))) == count


@pytest.mark.parametrize(
    ("text", "context", "column", "reason"),
    [
        (" NaN ", "", "sentence", "'NaN'"),
        (" The end.", "NA", "before", "'NA'"),
        (" ", "", "sentence", "only whitespace"),
        (unicodedata.normalize("NFD", "Le café ferme."), "", "sentence", "after 6 characters"),
        ("the\u00a0end", "", "sentence", "a no-break space (U+00A0) is in it after 3 characters"),
        ("The horse fell.", "There was a race.", "before", "as a race.The horse "),
    ],
)
def test_a_probable_mistake(text: str, context: str, column: str, reason: str) -> None:
    [line] = warnings_of(row(text, context))
    assert f"row 1 (line 2), column '{column}': " in line
    assert reason in line


@pytest.mark.parametrize(
    ("text", "context"),
    [
        ("NATO met.", ""),
        (" The horse fell.", "There was a race."),
        ("The horse fell.", "There was a race. "),
        ("horse", "the race-"),
        ("yes”, he lines.", "He answered “"),
        (", he lines.", "Yes"),
        ("मैं हिन्दी पढ़ती हूँ।", ""),  # marks that no letter has in one code point
        ("猫は寝る。", "犬は走る。"),
        ("แมวนอน", "สุนัขวิ่ง"),
        ("naïve café", ""),
    ],
)
def test_what_is_no_mistake(text: str, context: str) -> None:
    assert warnings_of(row(text, context)) == []


def test_an_item_is_repeated_if_all_that_is_kept_is_too() -> None:
    items = [row("a", item=item, number=n) for n, item in enumerate("121", 1)]
    lines = warnings_of(*items)
    assert lines == ["a.csv, row 3 (line 4), column 'id': row 1 has the item '1' too."]
    kept = [replace(one, copied=(("condition", str(n)),)) for n, one in enumerate(items)]
    assert warnings_of(*kept) == []
