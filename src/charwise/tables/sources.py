"""Files of texts to score: plain text of any bytes, CSV, TSV, JSONL and Parquet.

A plain text file is one row. A table has a column of texts, and may have columns for items,
contexts and regions; it is read a piece at a time, whatever its size. A row that cannot be used is
a `BadRow` in its place, a file that cannot be used as a whole an `SettingError`.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from charwise.errors import SettingError
from charwise.tables.disk import digest
from charwise.tables.readers import (
    USUAL,
    Dialect,
    Found,
    read_csv,
    read_jsonl,
    read_parquet,
)
from charwise.tables.regions import CellError
from charwise.tables.rows import BadRow, Columns, Place, Stimulus, stimulus_of

_READERS: dict[str, Callable[[str, Columns, Dialect], Iterator[Found]]] = {
    ".csv": read_csv,
    ".tsv": partial(read_csv, delimiter="\t"),
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".parquet": read_parquet,
}
_SPREADSHEETS = (".xlsx", ".xls", ".ods", ".numbers")


@dataclass(frozen=True, slots=True)
class Source:
    """A file of rows, or the bytes of stdin, which are one text.

    Attributes:
        name: as it was given; its ending says what the file is.
        content: the bytes, where there is no file.
        dialect: how a text file is written.

    >>> [row.text for row in Source("-", b"To be").rows(Columns())]
    [b'To be']
    """

    name: str
    content: bytes | None = None
    dialect: Dialect = USUAL

    @property
    def is_table(self) -> bool:
        """Whether it has columns.

        >>> Source("a.CSV").is_table, Source("a.txt").is_table
        (True, False)
        """
        return self._ending in _READERS

    @property
    def _ending(self) -> str:
        return Path(self.name).suffix.lower()

    def rows(self, columns: Columns, *, regions: bool = False) -> Iterator[Stimulus | BadRow]:
        """Its rows, in order; with `regions`, where those begin and end.

        Raises:
            SettingError: a file that cannot be read, or that has not these columns.
        """
        try:
            for place, cells in self._cells(columns):
                if isinstance(cells, CellError):
                    yield BadRow(place, cells.column, str(cells))
                else:
                    yield stimulus_of(place, cells, columns, regions)
        except OSError as error:
            raise SettingError(f"{self.name} cannot be read: {error.strerror or error}.") from error
        except UnicodeError as error:
            raise SettingError(
                f"{self.name} is not in {self.dialect.encoding}: {error}. Name another --encoding."
            ) from error

    def _cells(self, columns: Columns) -> Iterator[Found]:
        if self.is_table:
            yield from _READERS[self._ending](self.name, columns, self.dialect)
        else:
            text = Path(self.name).read_bytes() if self.content is None else self.content
            if self.dialect.encoding is not None:
                text = text.decode(self.dialect.encoding).encode()
            yield Place(self.name, 1, table=False), {"text": text}

    def digest(self) -> str:
        """SHA-256 of its bytes.

        >>> Source("-", b"abc").digest()[:8]
        'ba7816bf'
        """
        if self.content is not None:
            return hashlib.sha256(self.content).hexdigest()
        return digest(Path(self.name))


def find(name: str, dialect: Dialect = USUAL) -> Source:
    """Return the source that a name on the command line means: a file, or "-" for stdin.

    Raises:
        SettingError: there is no such file, or it is a spreadsheet; stdin is closed, or cannot be
            read.
    """
    if name == "-":
        if sys.stdin is None:
            raise SettingError("stdin is closed, and - reads a text from it.")
        try:
            return Source("-", sys.stdin.buffer.read(), dialect)
        except OSError as error:
            raise SettingError(f"stdin cannot be read: {error.strerror}.") from error
    path = Path(name)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise SettingError(f"{name} {what}: give a file with a text or a table.")
    if path.suffix.lower() in _SPREADSHEETS:
        raise SettingError(f"{name} is a spreadsheet: save it as CSV in UTF-8, and give that.")
    return Source(name, dialect=dialect)
