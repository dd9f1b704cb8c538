"""An output that survives its writer: stopped at any moment, the next run continues it.

OUT.part is a journal of JSON lines that only grows: what the run makes; then of each chunk its
records, and an object with its counts, with which the chunk counts. At the end it is written in the
format of OUT, which appears in one step. The only writer holds OUT.lock.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Self

from filelock import FileLock, Timeout

from charwise.errors import SettingError, needs
from charwise.tables.readers import Source
from charwise.tables.rows import BadRow

#: Records of a row group of a Parquet file.
_ROW_GROUP = 2**16

Record = dict[str, Any]  # a row of the output: one unit of one text
Fields = Mapping[str, type]  # the columns, as `Measure.fields` has them

#: What a run makes, by the names of what it depends on: two runs with equal ones make the same.
#: Lists of numbers are equal within 1e-3, which the same model may say differently on another day.
Identity = dict[str, str | list[float] | None]


@dataclass(frozen=True)
class ScoredChunk:
    """A chunk of the input that is done."""

    rows: int  # of the input
    size: int  # bytes of text
    records: list[Record]
    bad: list[BadRow]  # those that were left out

    def counts(self) -> dict[str, Any]:
        """Return what the journal keeps of it beside the records."""
        return {
            "rows": self.rows,
            "records": len(self.records),
            "size": self.size,
            "largest": max((each.get("error") or 0.0 for each in self.records), default=0.0),
            "bad": [row.to_dict() for row in self.bad],
        }


@dataclass
class Progress:
    """How far a job is, or how much it is."""

    chunks: int = 0
    rows: int = 0  # of the input
    bad: int = 0  # rows of the input that were left out
    records: int = 0  # rows of the output
    size: int = 0  # bytes of text
    largest: float = 0.0  # the greatest error of a record, bits

    def add(self, counts: Mapping[str, Any]) -> None:
        """Count one more chunk, by its `counts`."""
        self.chunks += 1
        self.rows += counts["rows"]
        self.bad += len(counts["bad"])
        self.records += counts["records"]
        self.size += counts["size"]
        self.largest = max(self.largest, counts["largest"])


class Output:
    """An output that is being made, begun or continued; a context manager that holds its lock.

    `total` is the number of rows of the input. `overwrite` replaces a finished file, and an
    unfinished one of another identity.
    """

    def __init__(
        self, out: Path, fields: Fields, identity: Identity, total: int, *, overwrite: bool = False
    ) -> None:
        self.out, self.identity = out, identity
        self.about, self.errors = _beside(out, ".json"), _beside(out, ".errors.jsonl")
        self.progress = Progress()
        self._write = _writer_of(out)
        self._fields, self._total = fields, total
        self._journal, self._new = _beside(out, ".part"), _beside(out, ".new")
        self._lock = FileLock(_beside(out, ".lock"), timeout=0)
        with _disk(out):
            out.parent.stat()  # a lock would make the folder
            try:
                self._lock.acquire()
            except Timeout:
                raise SettingError(f"{out} is being written by another process.") from None
            try:
                self._resume(identity, overwrite)
            except BaseException:
                self._release()
                raise

    @staticmethod
    def check(out: Path, *, overwrite: bool) -> None:
        """Raise if an extra is missing, or a file is there that no run is about to make anew."""
        _writer_of(out)
        if not overwrite and not _beside(out, ".part").exists():
            _refuse_present(out)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._release()

    def append(self, chunk: ScoredChunk) -> None:
        """Add the rows of a chunk. Once this returns they are on the disk, and count."""
        counts = chunk.counts()
        lines = [[record.get(name) for name in self._fields] for record in chunk.records]
        with _disk(self.out):
            self._add_lines([*lines, counts])
        self.progress.add(counts)

    def finish(self, about: Mapping[str, Any]) -> None:
        """Write the complete output, and as JSON beside it `about` and its SHA-256."""
        rows = self.progress.rows
        if rows != self._total:
            raise SettingError(
                f"the input of {self.out} changed while it was read: it had {self._total:,} rows, "
                f"and {rows:,} came."
            )
        with _disk(self.out):
            lines = [value for value, _ in _lines(self._journal) if isinstance(value, dict)]
            if len(lines) != 1 + self.progress.chunks:
                raise _damaged(self._journal, "the last line")
            bad = [row for counts in lines[1:] for row in counts["bad"]]
            if bad:
                rows_out = (json.dumps(row, ensure_ascii=False) + "\n" for row in bad)
                self._replace(self.errors, "".join(rows_out))
            else:
                self.errors.unlink(missing_ok=True)
            whole = _beside(self.out, ".whole")
            records = (value for value, _ in _lines(self._journal) if isinstance(value, list))
            self._write(whole, records, self._fields)
            _sync(whole)
            facts = {**about, "output SHA-256": Source(str(whole)).digest()}
            self._replace(self.about, json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
            whole.replace(self.out)
            _sync_folder(self.out.parent)
            self._file.close()
            self._journal.unlink()  # from here on it is finished

    def _add_lines(self, values: Iterable[Any]) -> None:
        lines = (json.dumps(each, ensure_ascii=False, allow_nan=False) + "\n" for each in values)
        self._file.write("".join(lines).encode("utf-8", "backslashreplace"))
        self._file.flush()
        os.fsync(self._file.fileno())

    def _replace(self, path: Path, text: str) -> None:
        """Write a file that is there as a whole, and on the disk, or not at all."""
        self._new.write_bytes(text.encode("utf-8", "backslashreplace"))
        _sync(self._new)
        self._new.replace(path)

    def _release(self) -> None:
        """Let go of the lock. Who waits for it finds that its file is gone."""
        try:
            with suppress(OSError):  # Windows removes no open file
                Path(self._lock.lock_file).unlink()
        finally:
            self._lock.release()

    def _resume(self, identity: Identity, overwrite: bool) -> None:
        """Open the journal behind its last whole chunk, or begin another."""
        first, end = None, 0
        if self._journal.exists():
            try:
                for value, offset in _lines(self._journal):
                    if first is None:
                        first, end = value, offset
                    elif isinstance(value, dict):
                        self.progress.add(value)
                        end = offset
            except SettingError:
                if not overwrite:
                    raise
                first, end, self.progress = None, 0, Progress()
        difference = "" if first is None else _difference(first, identity)
        if difference and not overwrite:
            raise SettingError(
                f"{self.out} was begun by a run that makes something else, and is not finished: "
                f"{difference}. Run that again to finish it, or take --overwrite to begin anew."
            )
        if first is None and not overwrite:
            _refuse_present(self.out)
        if difference:
            self.progress, end = Progress(), 0
        self._file = self._journal.open("rb+" if end else "wb")
        self._file.truncate(end)
        self._file.seek(end)
        if not end:
            self._add_lines([identity])
            _sync_folder(self.out.parent)


def _lines(journal: Path) -> Iterator[tuple[Any, int]]:
    """Yield the values of a journal, each with the offset of its end, until the writer's stop.

    The last line may be damaged, since its writer was stopped; another is a `SettingError`.
    """
    end = records = 0
    with journal.open("rb") as file:
        for number, line in enumerate(file, 1):
            end += len(line)
            try:
                value = json.loads(line)
            except ValueError:
                value = None
            whole = isinstance(value, dict) or (isinstance(value, list) and number > 1)
            if isinstance(value, dict) and number > 1:
                whole = value.get("records") == records
            if not whole or not line.endswith(b"\n"):
                ours = number > 1 or not line.strip() or line.startswith(b"{")
                if file.readline() or (line.endswith(b"\n") and not ours):
                    raise _damaged(journal, f"line {number}")
                return
            records = records + 1 if isinstance(value, list) else 0
            yield value, end


def _damaged(journal: Path, what: str) -> SettingError:
    return SettingError(
        f"{what} of {journal} is damaged, or what was before it is gone. Remove it and all lines "
        "behind it, and run the same command again, or take --overwrite to begin anew."
    )


def _beside(out: Path, ending: str) -> Path:
    return out.with_name(out.name + ending)


def _refuse_present(out: Path) -> None:
    """Raise `SettingError` if a run would replace a file."""
    about = _beside(out, ".json")
    try:
        ours = "charwise" in json.loads(about.read_bytes())
    except (OSError, ValueError, TypeError):
        ours = False
    if out.exists() and ours:
        raise SettingError(f"{out} is there, and finished. --overwrite makes it anew.")
    for path in (out, about):
        if path.exists() and not ours:
            raise SettingError(
                f"{path} is there, and nothing says that charwise wrote it. Name another output, "
                "or take --overwrite to replace it."
            )


def _difference(old: Mapping[str, Any], new: Identity) -> str:
    """The first thing in which two identities differ, in words; empty if none."""
    for name in dict.fromkeys([*new, *old]):
        was, now = old.get(name), new.get(name)
        if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
            if any(abs(a - b) > 1e-3 for a, b in zip(was, now, strict=True)):
                return f"{name} is no longer the same"
        elif was != now:
            return f"{name} was {was}, and is now {now}"
    return ""


@contextmanager
def _disk(out: Path) -> Iterator[None]:
    """Turn the system's file errors into a `SettingError`, while `out` is written."""
    try:
        yield
    except OSError as error:
        raise SettingError(
            f"{out} cannot be written: {error.strerror or error}. What was complete is kept."
        ) from error


def _sync(path: Path) -> None:
    """Wait until a file's contents are on the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    """Let what was made, renamed or removed in a folder survive a power failure."""
    if sys.platform != "win32":
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


Writer = Callable[[Path, Iterable[list[Any]], Fields], None]  # of records, in the fields' order


def _write_csv(path: Path, records: Iterable[list[Any]], fields: Fields, mark: str) -> None:
    """Every string is quoted: the csv module of some Pythons leaves a lone carriage return bare."""
    kinds = list(fields.values())
    with path.open("w", encoding="utf-8", newline="") as file:
        for cells in chain([list(fields)], records):
            file.write(mark.join(map(_cell, cells, kinds)) + "\n")


def _cell(value: Any, kind: type) -> str:
    """A cell that R and pandas read: TRUE, FALSE, and NA for a number that there is not."""
    if value is None:
        return "" if kind is str else "NA"
    if isinstance(value, str):
        return '"' + value.replace('"', '""') + '"'
    return str(value).upper() if isinstance(value, bool) else repr(value)


def _write_jsonl(path: Path, records: Iterable[list[Any]], fields: Fields) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for cells in records:
            record = dict(zip(fields, cells, strict=True))
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def _write_parquet(path: Path, records: Iterable[list[Any]], fields: Fields) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    types = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    schema = pa.schema([(name, types[kind]) for name, kind in fields.items()])
    rest = iter(records)
    with parquet.ParquetWriter(path, schema) as writer:
        while group := list(islice(rest, _ROW_GROUP)):
            columns = map(pa.array, zip(*group, strict=True), schema.types)
            writer.write_table(pa.table(list(columns), schema=schema))


WRITERS: dict[str, Writer] = {
    ".csv": partial(_write_csv, mark=","),
    ".tsv": partial(_write_csv, mark="\t"),
    ".jsonl": _write_jsonl,
    ".parquet": _write_parquet,
}


def _writer_of(out: Path) -> Writer:
    """Return the writer that the ending of a file's name means."""
    if out.suffix.lower() == ".parquet":
        with needs("tables", f"writing {out} needs pyarrow"):
            import pyarrow.parquet  # noqa: F401
    return WRITERS[out.suffix.lower()]
