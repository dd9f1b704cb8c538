"""A folder of Parquet files, each a shard of the rows: how `Output` writes it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from charwise.errors import OutputError
from charwise.tables.readers import import_pyarrow
from charwise.tables.writers import Fields, Format

#: Rows of a shard, at least, and of a row group in it.
SHARD, ROW_GROUP = 2**18, 2**14

#: Names of the files, by their number.
NAME = "part-{:05}.parquet"

#: Under this key the files have metadata, as JSON.
KEY = b"charwise"


def shards(metadata: Mapping[str, Any]) -> Format:
    """Parts are batches of Arrow; together they are Parquet files with this metadata.

    Raises:
        MissingExtraError: there is no pyarrow.

    >>> shards({"schema": 1}).encode([], {})
    b''
    """
    import_pyarrow("writing Parquet")
    return Format(_encode, partial(_join, metadata=metadata))


def check_folder(out: Path) -> None:
    """Raise `OutputError` if there is something that is no folder of shards.

    >>> check_folder(Path("no such folder"))
    """
    if out.exists() and not out.is_dir():
        raise OutputError(f"{out} is a file: shards go into a folder of their own.")
    there = sorted(out.iterdir()) if out.exists() else []
    strange = next((path.name for path in there if not _is_shard(path)), None)
    if strange is not None:
        raise OutputError(
            f"{out} is a folder that has {strange!r} in it: shards go into one of their own."
        )


def _is_shard(path: Path) -> bool:
    return path.is_file() and path.name.startswith("part-") and path.suffix == ".parquet"


def _encode(batches: Sequence[Sequence[Any]], fields: Fields) -> bytes:
    if not batches:
        return b""
    import pyarrow as pa

    table = pa.Table.from_batches(list(batches)).combine_chunks()
    [batch] = table.to_batches()
    return bytes(batch.serialize().to_pybytes())


def _join(
    parts: Iterable[bytes], fields: Fields, folder: Path, metadata: Mapping[str, Any]
) -> None:
    """Whole parts to a shard, until it has enough rows; at least one shard, if an empty one."""
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema(list(fields.items()))
    about = {KEY: json.dumps(metadata, ensure_ascii=False, sort_keys=True)}
    folder.mkdir()
    batches = (pa.ipc.read_record_batch(pa.py_buffer(part), schema) for part in parts)
    for number, shard in enumerate(_shards(batches)):
        with parquet.ParquetWriter(
            folder / NAME.format(number),
            schema.with_metadata(about),
            compression="zstd",
            use_dictionary=["file", "item"],
        ) as writer:
            for batch in shard:
                writer.write_batch(batch, row_group_size=ROW_GROUP)


def _shards(batches: Iterable[Any]) -> Iterator[list[Any]]:
    """The batches of each shard; one without any if there are none."""
    shard: list[Any] = []
    size, some = 0, False
    for batch in batches:
        shard.append(batch)
        size += batch.num_rows
        if size >= SHARD:
            yield shard
            shard, size, some = [], 0, True
    if shard or not some:
        yield shard
