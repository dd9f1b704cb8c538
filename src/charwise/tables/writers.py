"""CSV, TSV, JSONL and Parquet, written a part at a time, and put together at the end."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from charwise.errors import OutputError
from charwise.tables.chunks import Record
from charwise.tables.readers import import_pyarrow

#: Records of a row group of a Parquet file, at least.
_ROW_GROUP = 2**16

#: The columns and their types, as `chunks.fields` has them; in a folder of shards, of Arrow.
Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Format:
    """How records become a file.

    Attributes:
        encode: what came of each row → a part.
        join: parts, in order → the file or the folder, which depends on nothing but them.

    >>> FORMATS[".csv"].encode([[{"unit": 1, "text": "a,b"}]], {"unit": int, "text": str})
    b'1,"a,b"\\n'
    """

    encode: Callable[[Sequence[Sequence[Any]], Fields], bytes]
    join: Callable[[Iterable[bytes], Fields, Path], None]


def format_of(out: Path) -> Format:
    """The format that the ending of a file's name means.

    Raises:
        OutputError: it means none.
        MissingExtraError: it needs pyarrow, and there is none.

    >>> format_of(Path("a.CSV")) is FORMATS[".csv"]
    True
    """
    ending = out.suffix.lower()
    if ending not in FORMATS:
        raise OutputError(f"{out} has none of the endings {', '.join(FORMATS)}.")
    if ending == ".parquet":
        import_pyarrow(f"writing {out}")
    return FORMATS[ending]


def _encode_csv(outcomes: Sequence[Sequence[Record]], fields: Fields, delimiter: str) -> bytes:
    records = chain.from_iterable(outcomes)
    return _lines([[record.get(name) for name in fields] for record in records], delimiter)


def _header_csv(fields: Fields, delimiter: str) -> bytes:
    return _lines([list(fields)], delimiter)


def _lines(rows: Sequence[Sequence[Any]], delimiter: str) -> bytes:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _encode_jsonl(outcomes: Sequence[Sequence[Record]], fields: Fields) -> bytes:
    lines = (
        json.dumps({name: r.get(name) for name in fields}, ensure_ascii=False, allow_nan=False)
        for r in chain.from_iterable(outcomes)
    )
    return "".join(f"{line}\n" for line in lines).encode()


def _join_text(
    parts: Iterable[bytes], fields: Fields, path: Path, header: Callable[[Fields], bytes]
) -> None:
    with path.open("wb") as file:
        file.write(header(fields))
        file.writelines(parts)


def _schema(fields: Fields) -> Any:
    import pyarrow as pa

    types = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    return pa.schema([(name, types[kind]) for name, kind in fields.items()])


def _encode_arrow(outcomes: Sequence[Sequence[Record]], fields: Fields) -> bytes:
    import pyarrow as pa

    records = list(chain.from_iterable(outcomes))
    schema = _schema(fields)
    columns = [pa.array([r.get(each.name) for r in records], type=each.type) for each in schema]
    return bytes(pa.record_batch(columns, schema=schema).serialize().to_pybytes())


def _join_arrow(parts: Iterable[bytes], fields: Fields, path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    schema = _schema(fields)
    batches = (pa.ipc.read_record_batch(pa.py_buffer(part), schema) for part in parts)
    with parquet.ParquetWriter(path, schema) as writer:
        for table in _row_groups(batches):
            writer.write_table(table, row_group_size=table.num_rows)


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


def _csv_format(delimiter: str) -> Format:
    header = partial(_header_csv, delimiter=delimiter)
    return Format(partial(_encode_csv, delimiter=delimiter), partial(_join_text, header=header))


FORMATS = {
    ".csv": _csv_format(","),
    ".tsv": _csv_format("\t"),
    ".jsonl": Format(_encode_jsonl, partial(_join_text, header=lambda fields: b"")),
    ".parquet": Format(_encode_arrow, _join_arrow),
}
