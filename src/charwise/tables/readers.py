"""Files of texts to score: plain text, CSV as in RFC 4180, TSV, JSON lines, JSON and Parquet.

A plain text file is one row of any bytes. A table is read a piece at a time, but .json as a whole.
Bytes that are not in a table's encoding become surrogate escapes, for their row to be named.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import hashlib
import io
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, TextIO, cast

from charwise.errors import SettingError, needs, quantity
from charwise.tables.rows import (
    BadRow,
    CellError,
    Columns,
    Place,
    Stimulus,
    parse_json,
)

#: Characters that a line of a table, or a file of JSON, has at most.
LONGEST_LINE = 2**26

#: Rows of a Parquet file that are decoded at a time.
_BATCH = 256

#: A row: its place, and its cells by what they hold, or what is wrong with it as a whole.
RawRow = tuple[Place, Mapping[str, Any] | CellError]

_TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")

#: The first bytes of zip (and so of spreadsheets), old spreadsheets, bzip2, xz, zstd and 7z.
_PACKED = re.compile(rb"PK\x03\x04|\xd0\xcf\x11\xe0|BZh|\xfd7zX|\x28\xb5\x2f\xfd|7z\xbc\xaf")

#: Encodings by their byte order marks; that of UTF-32 begins with that of UTF-16.
_MARKS = {
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a text file is written; None for what its ending says, and for UTF-8."""

    delimiter: str | None = None  # one character, or "tab"
    encoding: str | None = None

    def __post_init__(self) -> None:
        if self.delimiter in ("tab", "\\t"):
            object.__setattr__(self, "delimiter", "\t")
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            raise SettingError(f"the delimiter is {self.delimiter!r}: use a character, or 'tab'.")
        if self.encoding is not None:
            try:
                "".encode(self.encoding, "surrogateescape")  # stray bytes are read so
            except (LookupError, ValueError):
                raise SettingError(
                    f"unknown encoding {self.encoding!r}: use a name such as 'utf-8', 'cp1252' or "
                    "'utf-16'."
                ) from None
            object.__setattr__(self, "encoding", codecs.lookup(self.encoding).name)


@dataclass(frozen=True, slots=True)
class Source:
    """A file of rows, or the bytes of stdin, which are one text."""

    name: str  # its ending says what the file is, and `.gz` that it is compressed
    content: bytes | None = None  # where there is no file
    dialect: Dialect = Dialect()

    @classmethod
    def of(cls, name: str, dialect: Dialect | None = None) -> Source:
        """Return the source that the name of a file on the command line means."""
        if not Path(name).is_file():
            what = "is no regular file" if name and Path(name).exists() else "does not exist"
            raise SettingError(
                f"{name or repr(name)} {what}: give a file with a text or a table, or '-' for a "
                "text from stdin."
            )
        return cls(name, dialect=dialect or Dialect())

    @property
    def ending(self) -> str:
        """The ending that says what the file is, without that of its compression."""
        return Path(self.name.lower().removesuffix(".gz")).suffix

    @property
    def is_table(self) -> bool:
        """Whether it has columns."""
        return self.ending in _TABLES

    def rows(self, columns: Columns, *, regions: bool = False) -> Iterator[Stimulus | BadRow]:
        """Yield its rows, in order; with `regions`, where those begin and end."""
        try:
            for place, cells in self._raw_rows(columns):
                if isinstance(cells, CellError):
                    yield BadRow(place, cells.column, str(cells))
                else:
                    yield columns.row(place, cells, regions=regions)
        except (OSError, EOFError, zlib.error) as error:
            why = getattr(error, "strerror", None) or error
            raise SettingError(f"{self.name} cannot be read: {why}.") from error
        except UnicodeError as error:
            raise SettingError(
                f"{self.name} is not in {self.dialect.encoding}: {error}. Name another --encoding."
            ) from error

    def digest(self) -> str:
        """Return the SHA-256 of its bytes, as they lie on the disk."""
        if self.content is not None:
            return hashlib.sha256(self.content).hexdigest()
        with open(self.name, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def text(self) -> bytes:
        """Return a plain text in UTF-8, without a byte order mark."""
        raw = self.content
        if raw is None:
            with self._bytes() as file:
                raw = file.read()
        self._refuse_marks(raw)
        if self.dialect.encoding is not None:
            raw = raw.decode(self.dialect.encoding).encode()
        return raw.removeprefix(codecs.BOM_UTF8)

    def _raw_rows(self, columns: Columns) -> Iterator[RawRow]:
        if not self.is_table:
            return iter([(Place(self.name, 1, table=False), {"text": self.text()})])
        if self.ending in (".csv", ".tsv"):
            return self._csv(columns)
        if self.ending == ".parquet":
            return self._parquet(columns)
        return self._json(columns)

    def _csv(self, columns: Columns) -> Iterator[RawRow]:
        csv.field_size_limit(LONGEST_LINE)  # for all of the process; by default 131,072 characters
        with self._text() as file:
            lines = self._lines(file)
            first, before, delimiter = next(lines, ""), 0, self.dialect.delimiter
            # Excel's own way to name a delimiter.
            if excel := re.fullmatch(r'(?i)("?)sep=(.)\1(\r|\r?\n)', first):
                first, before = next(lines, ""), 1
                delimiter = delimiter or excel[2]
            delimiter = delimiter or ("," if self.ending == ".csv" else "\t")
            reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
            try:
                header = next(reader, [])
            except csv.Error:
                header = []
            if not header:
                raise SettingError(f"{self.name} has no header: its first line names no columns.")
            places = self._columns(header, columns)
            number = 0
            while True:
                line = before + reader.line_num + 1
                row: dict[str, Any] | CellError
                try:
                    cells = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    row = CellError(f"it has no cells: {error}. Look for a stray quote.")
                else:
                    if not cells:  # a blank line
                        continue
                    if len(cells) == len(header):
                        row = {part: cells[at] for part, at in places.items()}
                    else:
                        many = quantity(len(cells), "cell")
                        row = CellError(f"it has {many}, and the header {len(header)}.")
                number += 1
                yield Place(self.name, number, line), row

    def _json(self, columns: Columns) -> Iterator[RawRow]:
        """The rows of JSON objects: one a line, or in a file's list."""
        number, known = 0, False
        with self._text() as file:
            for number, (line, value) in enumerate(self._objects(file), 1):
                row: dict[str, Any] | CellError
                try:
                    if line is not None:
                        value = parse_json(value)
                    if not isinstance(value, dict):
                        raise CellError('it is no JSON object: write {"text": "…"}.')
                    known = known or bool(self._columns(list(value), columns))
                    row = {}
                    for part, column in columns.wanted().items():
                        if column not in value:
                            listed = _listed(value)
                            raise CellError(f"it is not there; there are {listed}.", column)
                        row[part] = value[column]
                except CellError as error:
                    row = error
                yield Place(self.name, number, line), row
        if not number:
            raise SettingError(f"{self.name} is empty.")

    def _objects(self, file: TextIO) -> Iterable[tuple[int | None, Any]]:
        """Each line with its number, or the objects of a file's list."""
        if self.ending != ".json":
            lines = enumerate(self._lines(file), 1)
            return ((number, line) for number, line in lines if not line.isspace())
        whole = file.read(LONGEST_LINE)
        if len(whole) == LONGEST_LINE:
            raise SettingError(f"{self.name} is too long to be read whole: save it as .jsonl.")
        try:
            listed = parse_json(whole)
        except CellError as error:
            raise SettingError(f"{self.name}: {error}") from None
        if not isinstance(listed, list):
            raise SettingError(
                f'{self.name} is no list of objects, [{{"text": "…"}}, …]; .jsonl has one a line.'
            )
        return ((None, value) for value in listed)

    def _parquet(self, columns: Columns) -> Iterator[RawRow]:
        with needs("tables", f"reading {self.name} needs pyarrow"):
            import pyarrow
            from pyarrow import parquet
        number = 0
        try:
            with parquet.ParquetFile(self.name) as file:
                self._columns(file.schema_arrow.names, columns)
                wanted = columns.wanted()
                names = sorted(set(wanted.values()))
                # A row group at a time: asked for all at once, it keeps them all.
                for group in range(file.num_row_groups):
                    for batch in file.iter_batches(_BATCH, row_groups=[group], columns=names):
                        for cells in batch.to_pylist():
                            number += 1
                            row = {part: cells[name] for part, name in wanted.items()}
                            yield Place(self.name, number), row
        except (pyarrow.ArrowException, UnicodeDecodeError) as error:
            raise SettingError(f"{self.name} cannot be read as Parquet: {error}.") from error

    def _bytes(self) -> IO[bytes]:
        """The file, unpacked where its name or its first bytes say that it is compressed."""
        path = Path(self.name)
        with path.open("rb") as file:
            packed = path.suffix.lower() == ".gz" or file.read(2) == b"\x1f\x8b"
        return cast(IO[bytes], gzip.open(path)) if packed else path.open("rb")

    def _text(self) -> TextIO:
        """The file's text, without a byte order mark, which is no part of the first name."""
        with self._bytes() as file:
            self._refuse_marks(file.read(4))
        way = self.dialect.encoding or "utf-8"
        text = io.TextIOWrapper(self._bytes(), way, errors="surrogateescape", newline="")
        if text.read(1) != "\ufeff":
            text.seek(0)
        return text

    def _refuse_marks(self, start: bytes) -> None:
        """Raise `SettingError` if a file is packed, or has a mark and no encoding is named."""
        tar = Path(self.name).suffix.lower() == ".tar"  # it begins with the name of a file
        if self.content is None and (tar or _PACKED.match(start)):
            raise SettingError(
                f"{self.name} is compressed, or a spreadsheet: unpack it, or save it as CSV."
            )
        for encoding, marks in _MARKS.items():
            if self.dialect.encoding is None and start.startswith(marks):
                raise SettingError(
                    f"{self.name} is in {encoding}: add --encoding {encoding}, or save it as UTF-8."
                )

    def _lines(self, file: TextIO) -> Iterator[str]:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), ""), 1):
            if len(line) == LONGEST_LINE and line[-1] not in "\r\n":
                raise SettingError(
                    f"{self.name}: line {number} has more than {LONGEST_LINE:,} characters."
                )
            yield line

    def _columns(self, header: list[str], columns: Columns) -> dict[str, int]:
        """Where in a header the columns are, by what they hold."""
        places = {}
        for part, column in columns.wanted().items():
            if header.count(column) > 1:
                raise SettingError(
                    f"{self.name} has several columns named {column!r}: rename all but one."
                )
            if column not in header:
                marks = [mark for mark in ";\t,|" if len(header) == 1 and mark in header[0]]
                hint = f" Is the table divided so: --delimiter {marks[0]!r}?" if marks else ""
                raise SettingError(
                    f"{self.name} has no column {column!r}; it has {_listed(header)}. "
                    f"Name another with --{part.split()[0]}-column.{hint}"
                )
            places[part] = header.index(column)
        return places


def _listed(names: Iterable[str]) -> str:
    quoted = [repr(name) for name in names]
    more = f" and {len(quoted) - 20} more" if len(quoted) > 20 else ""
    return (", ".join(quoted[:20]) or "none") + more
