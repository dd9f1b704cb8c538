"""CSV, TSV, JSONL and Parquet, written so that a file grows by appending and can be cut back.

A text format is written as it will be. Parquet cannot be appended to: its records are kept as an
Arrow stream, which can, until all are there.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from charwise.errors import OutputError
from charwise.tables.chunks import Record
from charwise.tables.readers import import_pyarrow

#: Records of a row group of a Parquet file, at least.
_ROW_GROUP = 2**16


@dataclass(frozen=True)
class Format:
    """How records become bytes.

    Attributes:
        begin: what a file begins with.
        encode: records, to append.
        finish: makes the file `out` of the complete `part`, in one step that cannot be seen half
            done. Where `part` is still there afterwards, doing it again gives the same bytes.

    >>> FORMATS[".csv"].begin()[:8]
    b'file,row'
    """

    begin: Callable[[], bytes]
    encode: Callable[[Sequence[Record]], bytes]
    finish: Callable[[Path, Path], None]


def format_of(out: Path) -> Format:
    """The format that the ending of a file's name means.

    Raises:
        OutputError: it means none, or it needs pyarrow and there is none.

    >>> format_of(Path("a.CSV")) is FORMATS[".csv"]
    True
    """
    ending = out.suffix.lower()
    if ending not in FORMATS:
        raise OutputError(f"{out} has none of the endings {', '.join(FORMATS)}.")
    if ending == ".parquet":
        import_pyarrow(f"writing {out}")
    return FORMATS[ending]


def _encode_csv(records: Sequence[Sequence[Any]], delimiter: str) -> bytes:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows(records)
    return text.getvalue().encode()


def _encode_jsonl(records: Sequence[Record]) -> bytes:
    lines = (
        json.dumps(record._asdict(), ensure_ascii=False, allow_nan=False) for record in records
    )
    return "".join(f"{line}\n" for line in lines).encode()


def _schema() -> Any:
    import pyarrow as pa

    types = {
        **dict.fromkeys(Record._fields, pa.float64()),
        **dict.fromkeys(("file", "item", "text"), pa.string()),
        **dict.fromkeys(("row", "unit", "start", "end"), pa.int64()),
    }
    return pa.schema(list(types.items()))


def _begin_arrow() -> bytes:
    return bytes(_schema().serialize().to_pybytes())


def _encode_arrow(records: Sequence[Record]) -> bytes:
    import pyarrow as pa

    schema = _schema()
    columns = [
        pa.array(values, type=field.type)
        for values, field in zip(zip(*records, strict=True), schema, strict=True)
    ]
    return bytes(pa.record_batch(columns, schema=schema).serialize().to_pybytes())


def _finish_parquet(part: Path, out: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    new = out.with_name(out.name + ".new")
    with pa.OSFile(str(part)) as file, parquet.ParquetWriter(new, _schema()) as writer:
        for table in _row_groups(pa.ipc.open_stream(file)):
            writer.write_table(table, row_group_size=table.num_rows)
    with new.open("rb+") as written:
        os.fsync(written.fileno())
    new.replace(out)


def _row_groups(batches: Iterable[Any]) -> Iterator[Any]:
    """The batches put together to row groups, which depend on nothing but the batches."""
    import pyarrow as pa

    group: list[Any] = []
    size = 0
    for batch in batches:
        group.append(batch)
        size += batch.num_rows
        if size >= _ROW_GROUP:
            yield pa.Table.from_batches(group)
            group, size = [], 0
    if group:
        yield pa.Table.from_batches(group)


def _rename(part: Path, out: Path) -> None:
    part.replace(out)


def _text_format(begin: bytes, encode: Callable[[Sequence[Record]], bytes]) -> Format:
    return Format(lambda: begin, encode, _rename)


def _csv_format(delimiter: str) -> Format:
    encode = partial(_encode_csv, delimiter=delimiter)
    return _text_format(encode([Record._fields]), encode)


FORMATS = {
    ".csv": _csv_format(","),
    ".tsv": _csv_format("\t"),
    ".jsonl": _text_format(b"", _encode_jsonl),
    ".parquet": Format(_begin_arrow, _encode_arrow, _finish_parquet),
}
