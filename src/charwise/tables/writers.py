"""CSV, TSV, JSONL and Parquet, written a part at a time, and put together at the end.

A folder of Parquet files has a shard of the rows in each.
"""

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

from charwise.errors import SettingError
from charwise.tables.readers import import_pyarrow

#: Records of a row group of a Parquet file, at least.
_ROW_GROUP = 2**16

#: A row of the output: one unit of one text.
Record = dict[str, Any]

#: The columns and their types, as `Measure.fields` has them; in a folder of shards, of Arrow.
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
        SettingError: it means none.
        MissingExtraError: it needs pyarrow, and there is none.

    >>> format_of(Path("a.CSV")) is FORMATS[".csv"]
    True
    """
    ending = out.suffix.lower()
    if ending not in FORMATS:
        raise SettingError(f"{out} has none of the endings {', '.join(FORMATS)}.")
    if ending == ".parquet":
        import_pyarrow(f"writing {out}")
    return FORMATS[ending]


def _encode_csv(outcomes: Sequence[Sequence[Record]], fields: Fields, delimiter: str) -> bytes:
    records = chain.from_iterable(outcomes)
    cells = [[_cell(record.get(name), fields[name]) for name in fields] for record in records]
    return _lines(cells, delimiter)


def _cell(value: Any, kind: Any) -> Any:
    """A cell that R and pandas read: TRUE, FALSE, and NA for a number that there is not."""
    if isinstance(value, bool):
        return str(value).upper()
    return "NA" if value is None and kind is not str else value


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
    with parquet.ParquetWriter(path, schema) as writer:
        for group in _groups(_decoded(parts, schema), _ROW_GROUP):
            table = pa.Table.from_batches(group)
            writer.write_table(table, row_group_size=table.num_rows)


def _decoded(parts: Iterable[bytes], schema: Any) -> Iterator[Any]:
    import pyarrow as pa

    return (pa.ipc.read_record_batch(pa.py_buffer(part), schema) for part in parts)


def _groups(batches: Iterable[Any], rows: int) -> Iterator[list[Any]]:
    """Consecutive batches in groups of `rows` or more, which depend on nothing but the batches."""
    group: list[Any] = []
    size = 0
    for batch in batches:
        group.append(batch)
        size += batch.num_rows
        if size >= rows:
            yield group
            group, size = [], 0
    if group:
        yield group


def _csv_format(delimiter: str) -> Format:
    header = partial(_header_csv, delimiter=delimiter)
    return Format(partial(_encode_csv, delimiter=delimiter), partial(_join_text, header=header))


FORMATS = {
    ".csv": _csv_format(","),
    ".tsv": _csv_format("\t"),
    ".jsonl": Format(_encode_jsonl, partial(_join_text, header=lambda fields: b"")),
    ".parquet": Format(_encode_arrow, _join_arrow),
}


def shards(metadata: Mapping[str, Any], rows: int = 2**18) -> Format:
    """Return the format of a folder: parts are batches of Arrow, files have this metadata.

    Args:
        metadata: what files say of themselves, as JSON under the key `charwise`.
        rows: of a file, at least.

    Raises:
        MissingExtraError: there is no pyarrow.

    >>> shards({"schema": 1}).encode([], {})
    b''
    """
    import_pyarrow("writing Parquet")
    return Format(_encode_batches, partial(_join_shards, metadata=metadata, rows=rows))


def check_folder(out: Path) -> None:
    """Raise `SettingError` if there is something that is no folder of shards.

    >>> check_folder(Path("no such folder"))
    """
    if out.exists() and not out.is_dir():
        raise SettingError(f"{out} is a file: shards go into a folder of their own.")
    there = sorted(out.iterdir()) if out.exists() else []
    strange = next((path.name for path in there if not _is_shard(path)), None)
    if strange is not None:
        raise SettingError(
            f"{out} is a folder that has {strange!r} in it: shards go into one of their own."
        )


def _is_shard(path: Path) -> bool:
    return path.is_file() and path.name.startswith("part-") and path.suffix == ".parquet"


def _encode_batches(batches: Sequence[Sequence[Any]], fields: Fields) -> bytes:
    if not batches:
        return b""
    import pyarrow as pa

    table = pa.Table.from_batches(list(batches)).combine_chunks()
    [batch] = table.to_batches()
    return bytes(batch.serialize().to_pybytes())


def _join_shards(
    parts: Iterable[bytes], fields: Fields, folder: Path, metadata: Mapping[str, Any], rows: int
) -> None:
    """Make a file of every so many rows or more; one without rows if there are none."""
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema(list(fields.items()))
    about = {b"charwise": json.dumps(metadata, ensure_ascii=False, sort_keys=True)}
    folder.mkdir()
    groups = _groups(_decoded(parts, schema), rows)
    for number, shard in enumerate(chain([next(groups, [])], groups)):
        with parquet.ParquetWriter(
            folder / f"part-{number:05}.parquet",
            schema.with_metadata(about),
            compression="zstd",
            use_dictionary=["file", "item"],
        ) as writer:
            for batch in shard:
                writer.write_batch(batch, row_group_size=2**14)
