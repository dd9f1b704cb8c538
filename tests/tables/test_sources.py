"""Tables and texts as they are read: what is in them, and what is said about what is wrong."""

from __future__ import annotations

import csv
import json
import tracemalloc
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charwise.errors import SettingError
from charwise.tables import readers
from charwise.tables.jobs import Job
from charwise.tables.measure import Measure
from charwise.tables.rows import LONGEST_CELL, BadRow, Columns, Stimulus
from charwise.tables.sources import Source, find
from models import examples

KINDS = ("csv", "tsv", "jsonl", "parquet")


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """The rows as a file of the kind that the path's ending says, by another library's hand."""
    if path.suffix == ".parquet":
        pa = pytest.importorskip("pyarrow", reason="Parquet needs: pip install 'charwise[tables]'")
        from pyarrow import parquet

        parquet.write_table(pa.Table.from_pylist(list(rows)), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, delimiter="," if path.suffix == ".csv" else "\t")
            writer.writerows([list(rows[0]), *(row.values() for row in rows)])
    return path


def read(path: Path, per_region: bool = False, **columns: str) -> list[Stimulus | BadRow]:
    return list(find(str(path)).rows(Columns(**columns), regions=per_region))


def the_row(path: Path, per_region: bool = False, **columns: str) -> Stimulus:
    (row,) = read(path, per_region, **columns)
    assert isinstance(row, Stimulus), row
    return row


def spans(row: Stimulus) -> list[tuple[int, int]]:
    return [(region.start, region.end) for region in row.regions]


def the_fault(path: Path, per_region: bool = False, **columns: str) -> str:
    (row,) = read(path, per_region, **columns)
    assert isinstance(row, BadRow), row
    return str(row).removeprefix(f"{path}, ")


@pytest.mark.parametrize("kind", KINDS)
def test_a_table(tmp_path: Path, kind: str) -> None:
    rows = [
        {"item": "1a", "sentence": "To be", "before": None, "marked": "To |be"},
        {"item": "1b", "sentence": "naïve, “yes”\tor no", "before": "So\nit", "marked": "[[0, 5]]"},
    ]
    path = write(tmp_path / f"items.{kind}", rows)
    first, second = read(
        path, True, text="sentence", item="item", context="before", regions="marked"
    )
    assert isinstance(first, Stimulus)
    assert isinstance(second, Stimulus)
    assert (first.text, first.context, first.item) == (b"To be", b"", "1a")
    assert spans(first) == [(0, 3), (3, 5)]
    assert second.text.decode() == "naïve, “yes”\tor no"
    assert (second.context, second.item, spans(second)) == (b"So\nit", "1b", [(0, 5)])
    assert (second.place.number, second.column) == (2, "sentence")


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


def test_plain_text_is_one_row_of_any_bytes(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_bytes(b"\xef\xbb\xbfna\xc3\r\n")
    row = the_row(path)
    assert row.text == path.read_bytes()
    assert str(row.place) == str(path)


def test_plain_text_may_be_longer_than_a_cell(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_bytes(b"x" * (LONGEST_CELL + 1))
    assert len(the_row(path).text) == LONGEST_CELL + 1


def test_a_byte_order_mark_and_crlf(tmp_path: Path) -> None:
    path = tmp_path / "excel.csv"
    path.write_bytes(b'\xef\xbb\xbftext,item\r\n"two\r\nlines",1\r\n\r\nTo be,2\r\n')
    first, second = read(path, item="item")
    assert isinstance(first, Stimulus)
    assert isinstance(second, Stimulus)
    assert (first.text, first.place.number, first.place.line) == (b"two\r\nlines", 1, 2)
    assert (second.text, second.place.number, second.place.line) == (b"To be", 2, 5)
    (tmp_path / "b.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "To be"}\r\n\r\n')
    assert the_row(tmp_path / "b.jsonl").text == b"To be"


def test_names_of_items_of_other_types(tmp_path: Path) -> None:
    for kind in ("jsonl", "parquet"):
        path = write(tmp_path / f"a.{kind}", [{"text": "a", "item": 7}])
        assert the_row(path, item="item").item == "7"


def test_parquet_strings_of_every_type(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="Parquet needs: pip install 'charwise[tables]'")
    from pyarrow import parquet

    texts = pa.array(["é", "b", "é"])
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), None):
        try:
            column = texts.dictionary_encode() if kind is None else texts.cast(kind)
            parquet.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
        except pa.ArrowNotImplementedError:  # older ones write no views
            assert kind == pa.string_view()
            continue
        rows = [row for row in read(tmp_path / "a.parquet") if isinstance(row, Stimulus)]
        assert [row.text for row in rows] == ["é".encode(), b"b", "é".encode()]


@given(text=st.text(st.characters(exclude_characters="|"), min_size=1), data=st.data())
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


def test_offsets_in_parquet(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", [{"text": "To be", "r": [[0, 2], [3, 5]]}])
    assert spans(the_row(path, True, regions="r")) == [(0, 2), (3, 5)]


@pytest.mark.parametrize("kind", KINDS)
def test_regions_with_names(tmp_path: Path, kind: str) -> None:
    regions = {"subject": [0, 7], "clause": [0, 13], "verb": "slept", "the": "the"}
    rows = [{"text": "the cat slept on the mat", "r": regions}]
    if kind in ("csv", "tsv"):
        rows[0]["r"] = json.dumps(regions)
    found = the_row(write(tmp_path / f"a.{kind}", rows), True, regions="r").regions
    assert sorted(map(tuple, found)) == [
        (0, 3, "the"),
        (0, 7, "subject"),
        (0, 13, "clause"),
        (8, 13, "verb"),
        (17, 20, "the"),
    ]


# --- Files that cannot be used ------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_columns_that_there_are(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"a.{kind}", [{"sentence": "a", "item": "b"}])
    message = "has no column 'text' for the text; it has 'sentence', 'item'. .*--text-column"
    with pytest.raises(SettingError, match=message):
        read(path)
    with pytest.raises(SettingError, match="has no column 'ctx' for the context"):
        read(path, text="sentence", context="ctx")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"text,item,text\na,b,c\n", "has 2 columns named 'text': rename one"),
        ("a.csv", b"item;text\n1;To be\n", "it has 'item;text'.*divided so: --delimiter ';'"),
        ("a.csv", b"", "has no header: its first line is empty"),
        ("a.csv", b"\ntext\nTo be\n", "has no header: its first line is empty"),
        ("a.csv", b'"text\n', "has no header that can be read: unexpected end of data"),
        (
            "a.csv",
            "text\nTo be\n".encode("utf-16"),
            "is in UTF-16: add --encoding utf-16, or save it as UTF-8",
        ),
        (
            "a.jsonl",
            '{"text": "To be"}\n'.encode("utf-16"),
            "is in UTF-16: add --encoding utf-16, or save it as UTF-8",
        ),
        ("a.jsonl", b"", "is empty"),
        ("a.parquet", b"To be", "cannot be read as Parquet"),
        ("a.xlsx", b"PK", "is a spreadsheet: save it as CSV"),
    ],
)
def test_a_file_that_cannot_be_used(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow", reason="Parquet needs: pip install 'charwise[tables]'")
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(SettingError, match=message) as raised:
        read(path)
    assert str(path) in str(raised.value)


def test_a_parquet_column_of_another_type(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", [{"text": 7}])
    with pytest.raises(SettingError, match="column 'text' has the type int64, which is no text"):
        read(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="does not exist"):
        find(str(tmp_path / "nothing.csv"))
    with pytest.raises(SettingError, match="is a folder"):
        find(str(tmp_path))


def test_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"text\n\n")
    with pytest.raises(SettingError, match=r"there are no rows to score in .*a\.csv"):
        Job((find(str(tmp_path / "a.csv")),)).survey()


def test_a_line_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "LONGEST_LINE", 1000)
    (tmp_path / "a.csv").write_bytes(b"text\n" + b"x" * 1001 + b"\n")
    with pytest.raises(SettingError, match="line 2 has more than 1,000 characters"):
        read(tmp_path / "a.csv")


# --- Rows that cannot be used -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"text,item\n,1\n", "row 1 (line 2), column 'text': there is no text"),
        (b"text,item\nna\xefve,1\n", "row 1 (line 2), column 'text': byte 0xEF, after 2 char"),
        (b"text,item\na,\xe9\n", "row 1 (line 2), column 'item': byte 0xE9, after 0 characters"),
        (b"text,item\na\n", "row 1 (line 2): the header has 2 cells, and it 1."),
        (b"text,item\na,b,c\n", "row 1 (line 2): the header has 2 cells, and it 3."),
        (b'text,item\n"a,b\nc,d\n', "row 1 (line 2): it cannot be divided into cells: unexpected"),
        (b'text,item\n"a"b,c\n', "row 1 (line 2): it cannot be divided into cells: ',' expected"),
    ],
)
def test_a_bad_row_of_csv(tmp_path: Path, content: bytes, fault: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    assert the_fault(path, item="item").startswith(fault)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b'{"text": ""}', "row 1 (line 1), column 'text': there is no text"),
        (b'{"text": null}', "row 1 (line 1), column 'text': there is no text"),
        (b'{"text": 7}', "row 1 (line 1), column 'text': it holds 7, which is no text."),
        (b'{"text": ["a"]}', "row 1 (line 1), column 'text': it holds ['a'], which is no text."),
        (b'{"text": "\\ud800"}', "row 1 (line 1), column 'text': U+D800, after 0 characters"),
        (b'{"text": "\xe9"}', "row 1 (line 1), column 'text': byte 0xE9, after 0 characters"),
        (b'{"text": "a", "text": "b"}', "row 1 (line 1), column 'text': the object has it twice."),
        (b'{"text": "a"', "row 1 (line 1): the line is no JSON: Expecting"),
        (b'["a"]', "row 1 (line 1): the line is no JSON object"),
        (b"[" * 100_000, "row 1 (line 1): the line is no JSON: "),
    ],
)
def test_a_bad_row_of_jsonl(tmp_path: Path, line: bytes, fault: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(line + b"\n")
    assert the_fault(path).startswith(fault)


def test_a_name_that_is_missing_in_one_object(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a", "ctx": null}\n{"text": "b"}\n')
    good, bad = read(path, context="ctx")
    assert isinstance(good, Stimulus)
    assert str(bad).endswith("row 2 (line 2), column 'ctx': it is not there; there are 'text'.")


def test_a_parquet_string_that_is_no_utf8(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="Parquet needs: pip install 'charwise[tables]'")
    from pyarrow import parquet

    stray = pa.Array.from_buffers(pa.string(), 2, pa.array([b"ab", b"\xe9"], pa.binary()).buffers())
    parquet.write_table(pa.table({"text": stray}), tmp_path / "a.parquet")
    good, bad = read(tmp_path / "a.parquet")
    assert isinstance(good, Stimulus)
    assert "row 2, column 'text': byte 0xE9, after 0 characters" in str(bad)


@pytest.mark.parametrize("kind", KINDS)
def test_a_line_of_ten_megabytes(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"a.{kind}", [{"text": "x" * 10_000_000}, {"text": "To be"}])
    bad, good = read(path)
    assert "column 'text': the cell has 10,000,000 bytes, and may have 1,048,576." in str(bad)
    assert isinstance(good, Stimulus)
    assert good.text == b"To be"


@pytest.mark.parametrize(
    ("regions", "fault"),
    [
        ([[3, 2]], "span 0 is (3, 2): its end is before its start."),
        ([[0, 3], [3, 6]], "span 1 is (3, 6): the text ends at character 5."),
        ([[-1, 3]], "span 0 is (-1, 3): it begins before character 0."),
        ([[2, 2]], "span 0 is (2, 2): it is empty."),
        ([[0, 1.5]], "span 0 is [0, 1.5]: a span is two integers"),
        ([[0]], "span 0 is [0]: a span is two integers"),
        ([[True, 2]], "span 0 is [True, 2]: a span is two integers"),
        ([0, 3], "span 0 is 0: a span is two integers"),
        ([], "it holds []: write offsets as [[start, end], …]."),
        (7, "it holds 7: write offsets as [[start, end], …]."),
        ("[[0, 3", "these are no offsets, [[start, end], …]: "),
        ("", "there are no regions."),
        (None, "there are no regions."),
        ({"verb": "bee"}, "the region 'bee' does not occur in the text 'To be'."),
        ({"verb": ""}, "a region is the empty string"),
        ({"verb": None}, "there are no regions."),
        ({"\ud800": "be"}, "the name of a region '\\ud800' is no text"),
        ("[" * 100_000, "these are no offsets, [[start, end], …]: it is nested too deeply"),
        (
            "[[0, " + "1" * 5000 + "]]",
            "these are no offsets, [[start, end], …]: a number in it is too long",
        ),
        ({"verb": [3, 6]}, "the region 'verb' is (3, 6): the text ends at character 5."),
        ({"verb": 5}, "the region 'verb' is 5: a span is two integers"),
        ('{"verb": "be", "verb": "To"}', "the region 'verb' is there twice."),
        ({}, "it holds {}"),
        ('{"verb": "bee"}', "the region 'bee' does not occur"),
        ("To |bee", "without its bars it differs from the text after 5 characters."),
        ("to |be", "without its bars it differs from the text after 0 characters."),
        ("[To be", "these are no offsets"),
        ("To ||be", "region 2 is empty: the text has two bars in a row."),
        ("|To be", "region 1 is empty: the text begins with a bar"),
        ("To be|", "region 2 is empty: the text ends in a bar"),
    ],
)
def test_bad_regions(tmp_path: Path, regions: Any, fault: str) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": "To be", "r": regions}])
    place = "row 1 (line 1), column 'r': "
    assert the_fault(path, True, regions="r").startswith(place + fault)


def test_regions_of_plain_texts_are_between_bars(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"To |be")
    row = the_row(tmp_path / "a.txt", True, regions="a column of the tables beside it")
    assert (row.text, spans(row)) == (b"To be", [(0, 3), (3, 5)])


def test_regions_of_bytes_that_are_no_characters(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a|\xff")
    (bad,) = read(tmp_path / "a.txt", True)
    assert str(bad).endswith("a.txt: regions are in characters, and byte 2 is no UTF-8.")


HALVES = st.text(st.sampled_from(["a", "é", "😀", "\\", "\ud83d", "\ude00", "\udc80"]), min_size=1)


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
    halves = [at for at, char in enumerate(text) if "\ud800" <= char <= "\udfff"]
    if not halves:
        assert isinstance(row, Stimulus)
        assert row.text == text.encode()
        return
    assert isinstance(row, BadRow)
    code = f"U+{ord(text[halves[0]]):04X}"
    assert f"a.jsonl, row 2 (line 2), column 'text': {code}, after {halves[0]} char" in str(row)
    assert "half of a surrogate pair" in str(row)


def test_a_stray_byte_beside_an_escape_is_a_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "\\u00e9\xff"}')
    assert "byte 0xFF, after 1 characters, is no UTF-8" in the_fault(path)


# --- Size ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"long.{kind}"
    line = "x" * 500 + "\n" if kind == "csv" else json.dumps({"text": "x" * 500}) + "\n"
    rows = 20_000
    with path.open("w") as file:
        file.write("text\n" if kind == "csv" else "")
        file.writelines(line for _ in range(rows))
    job = Job((find(str(path)),))
    tracemalloc.start()
    try:
        assert job.survey().rows == rows
        assert sum(map(len, job.chunks())) == rows
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 10_000_000
    assert most < 2_000_000


def test_memory_of_parquet(tmp_path: Path) -> None:
    """A row group at a time, though not the file."""
    pa = pytest.importorskip("pyarrow", reason="Parquet needs: pip install 'charwise[tables]'")
    from pyarrow import parquet

    path, group = tmp_path / "long.parquet", 2_000
    schema = pa.schema([("text", pa.string())])
    with parquet.ParquetWriter(path, schema, use_dictionary=False, compression="none") as file:
        for n in range(20):
            texts = [f"{n} {m} ".ljust(500, "x") for m in range(group)]
            file.write_table(pa.table({"text": texts}, schema=schema))
    before, most = pa.total_allocated_bytes(), 0
    for n, _ in enumerate(find(str(path)).rows(Columns())):
        if n % 500 == 0:
            most = max(most, pa.total_allocated_bytes() - before)
    assert n + 1 == 20 * group
    assert path.stat().st_size > 20_000_000
    assert most < 5_000_000


@given(lengths=st.lists(st.sampled_from([0, 1, 2**17, 2**18]), min_size=1, max_size=100))
@examples(30)
def test_chunks_are_the_same_wherever_one_begins(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int]
) -> None:
    path = tmp_path_factory.mktemp("chunks") / "a.jsonl"
    write(path, [{"text": "x" * length} for length in lengths])
    job = Job((find(str(path)), Source("-", b"To be")), measure=Measure(per="byte"))
    chunks = list(job.chunks())
    assert [row for chunk in chunks for row in chunk] == list(job.rows())
    assert all(list(job.chunks(skip)) == chunks[skip:] for skip in range(len(chunks) + 1))
    assert all(1 <= len(chunk) <= 32 for chunk in chunks)
