"""CSV, TSV, JSONL and Parquet files, a piece at a time: the cells of every row, and its place.

CSV is as RFC 4180 has it, with or without a byte order mark, lines ending in LF or CRLF. Blank
lines are no rows. Bytes that are not in the encoding come as surrogate escapes, for the row that
has them to be named; nothing else is changed.
"""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from charwise.errors import MissingExtraError, SettingError
from charwise.tables.regions import CellError
from charwise.tables.rows import Columns, Place

#: Characters that a line of a table has at most, so that no file is ever read as a whole.
LONGEST_LINE = 2**26

#: Rows of a Parquet file that are decoded at a time.
_BATCH = 256

#: A row: its place, and its cells by what they hold, or what is wrong with it as a whole.
Found = tuple[Place, dict[str, Any] | CellError]


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a text file is written; None for what its ending says, and for UTF-8.

    Attributes:
        delimiter: one character, between the cells of CSV; "tab" is one too.
        encoding: a name that Python knows, such as "cp1252".

    Raises:
        SettingError: more than a character, a quote or a line end; an unknown encoding.

    >>> Dialect("tab").delimiter, Dialect(encoding="UTF-8").encoding
    ('\\t', 'utf-8-sig')
    """

    delimiter: str | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        if self.delimiter in ("tab", "\\t"):
            object.__setattr__(self, "delimiter", "\t")
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            raise SettingError(f"the delimiter is {self.delimiter!r}: use a character, or 'tab'.")
        if self.encoding is not None:
            try:
                "".encode(self.encoding, "surrogateescape")  # stray bytes are read so
                if codecs.lookup(self.encoding).name == "punycode":  # which says so of bytes alone
                    raise LookupError
            except (LookupError, ValueError):
                raise SettingError(
                    f"unknown encoding {self.encoding!r}: use a name such as 'utf-8', 'cp1252' or "
                    "'utf-16'."
                ) from None
            known = codecs.lookup(self.encoding).name
            # A byte order mark is no part of the first column's name.
            object.__setattr__(self, "encoding", "utf-8-sig" if known == "utf-8" else known)


#: UTF-8, and the delimiter that the file's ending says.
USUAL = Dialect()


def read_csv(
    name: str, columns: Columns, dialect: Dialect = USUAL, delimiter: str = ","
) -> Iterator[Found]:
    """The rows of a CSV file; its `delimiter` is the dialect's, if that has one.

    Raises:
        SettingError: no header, no such column, another encoding, a line without end.
    """
    csv.field_size_limit(LONGEST_LINE)  # for all of the process; by default 131,072 characters
    delimiter = dialect.delimiter or delimiter
    with _open(name, dialect) as file:
        reader = csv.reader(_lines(name, file), delimiter=delimiter, strict=True)
        try:
            header = next(reader, [])
        except csv.Error as error:
            raise SettingError(f"{name} has no header that can be read: {error}.") from error
        if not header:
            raise SettingError(f"{name} has no header: its first line is empty. Name the columns.")
        places = _find(name, header, columns)
        number = 0
        while True:
            line = reader.line_num + 1
            try:
                cells = next(reader, None)
            except csv.Error as error:
                number += 1
                reason = f"it cannot be divided into cells: {error}. Look for a stray quote."
                yield Place(name, number, line), CellError(reason)
                continue
            if cells is None:
                return
            if not cells:  # a blank line
                continue
            number += 1
            found: dict[str, Any] | CellError
            if len(cells) == len(header):
                found = {part: cells[at] for part, at in places.items()}
            else:
                found = CellError(f"the header has {len(header)} cells, and it {len(cells)}.")
            yield Place(name, number, line), found


def read_jsonl(name: str, columns: Columns, dialect: Dialect = USUAL) -> Iterator[Found]:
    """The rows of a file of JSON objects, one a line.

    Raises:
        SettingError: no object, no such name in the first, another encoding, a line without end.
    """
    wanted = columns.wanted()
    number = 0
    with _open(name, dialect) as file:
        for at, line in enumerate(_lines(name, file), 1):
            if line.isspace():
                continue
            number += 1
            found: dict[str, Any] | CellError
            try:
                members = _object(line)
                if number == 1:
                    _find(name, list(members), columns)
                for column in wanted.values():
                    if column not in members:
                        raise CellError(f"it is not there; there are {_listed(members)}.", column)
                    _refuse_halves(members[column], line, column)
                found = {part: members[column] for part, column in wanted.items()}
            except CellError as error:
                found = error
            yield Place(name, number, at), found
    if not number:
        raise SettingError(f"{name} is empty.")


def _object(line: str) -> dict[str, Any]:
    """The object that a line of JSONL is, in which no name is twice."""
    twice: list[str] = []

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice.extend(name for name in found if names.count(name) > 1)
        return found

    try:
        value = json.loads(line, object_pairs_hook=members)
    except (ValueError, RecursionError) as error:
        raise CellError(f"the line is no JSON: {error}.") from None
    if not isinstance(value, dict):
        raise CellError('the line is no JSON object: write {"text": "…"}.')
    if twice:
        raise CellError("the object has it twice.", twice[0])
    return value


def _refuse_halves(cell: Any, line: str, column: str) -> None:
    """Refuse a text with half of a surrogate pair that its line has as an escape.

    One that stands in the line itself is a byte that is no UTF-8, which is told later.

    Raises:
        CellError: which, and where.
    """
    if not isinstance(cell, str) or "\\u" not in line:
        return
    for at, char in enumerate(cell):
        if "\ud800" <= char <= "\udfff" and char not in line:
            raise CellError(
                f"U+{ord(char):04X}, after {at} characters, is half of a surrogate pair, which is "
                "no text. Write both halves, or leave it out.",
                column,
            )


def read_parquet(name: str, columns: Columns, dialect: Dialect = USUAL) -> Iterator[Found]:
    """The rows of a Parquet file, which has no dialect; needs pyarrow.

    Raises:
        SettingError: no Parquet file, no such column, a type that is no text.
        MissingExtraError: no pyarrow.
    """
    pyarrow, parquet = import_pyarrow(f"reading {name}")
    number = 0
    try:
        with parquet.ParquetFile(name) as file:
            schema = file.schema_arrow
            places = _find(name, schema.names, columns)
            wanted = columns.wanted()
            decoders = {part: _decoder(pyarrow, schema.field(at)) for part, at in places.items()}
            for part in ("text", "context"):
                if part in places and decoders[part] is None:
                    raise SettingError(
                        f"{name}: the column {wanted[part]!r} has the type "
                        f"{schema.field(places[part]).type}, which is no text."
                    )
            used = sorted(set(wanted.values()))
            batches = (  # a row group at a time: asked for all at once, it keeps them all
                batch
                for group in range(file.num_row_groups)
                for batch in file.iter_batches(_BATCH, row_groups=[group], columns=used)
            )
            for batch in batches:
                lists = [_values(batch, wanted[part], decoders[part]) for part in places]
                for cells in zip(*lists, strict=True):
                    number += 1
                    yield Place(name, number), dict(zip(places, cells, strict=True))
    except pyarrow.ArrowException as error:
        raise SettingError(f"{name} cannot be read as Parquet: {error}.") from error


#: What makes a text of the bytes of a cell.
_Decoder = Callable[[bytes], str | bytes]


def _decoder(pyarrow: Any, field: Any) -> _Decoder | None:
    """How a column of texts is decoded; None if it is of another type.

    Strings are decoded here, not by Arrow, which fails them all for one that is no UTF-8.
    """
    types, kind = pyarrow.types, field.type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return partial(str, encoding="utf-8", errors="surrogateescape")
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return bytes
    return None


def _values(batch: Any, column: str, decode: _Decoder | None) -> list[Any]:
    values = batch.column(column)
    if decode is None:
        return list(values.to_pylist())
    return [None if v is None else decode(v) for v in values.cast("large_binary").to_pylist()]


def import_pyarrow(purpose: str) -> tuple[Any, Any]:
    """The modules pyarrow and pyarrow.parquet.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError(
            f"{purpose} needs pyarrow: pip install 'charwise[tables]'."
        ) from error
    return pyarrow, parquet


def _open(name: str, dialect: Dialect) -> TextIO:
    encoding = dialect.encoding
    with Path(name).open("rb") as file:
        if encoding is None and file.read(2) in (b"\xff\xfe", b"\xfe\xff"):
            raise SettingError(f"{name} is in UTF-16: add --encoding utf-16, or save it as UTF-8.")
    return Path(name).open(encoding=encoding or "utf-8-sig", errors="surrogateescape", newline="")


def _lines(name: str, file: TextIO) -> Iterator[str]:
    number = 0
    while line := file.readline(LONGEST_LINE):
        number += 1
        if len(line) == LONGEST_LINE and line[-1] not in "\r\n":
            raise SettingError(f"{name}: line {number} has more than {LONGEST_LINE:,} characters.")
        yield line


def _find(name: str, header: Sequence[str], columns: Columns) -> dict[str, int]:
    """Where in a header the columns are."""
    places = {}
    for part, column in columns.wanted().items():
        count = list(header).count(column)
        if count > 1:
            raise SettingError(f"{name} has {count} columns named {column!r}: rename one of them.")
        if not count:
            marks = (mark for mark in (";", "\t", ",", "|") if mark in header[0])
            mark = next(marks, None) if len(header) == 1 else None
            hint = "" if mark is None else f" Is the table divided so: --delimiter {_spelt(mark)}?"
            raise SettingError(
                f"{name} has no column {column!r} {_purpose(part)}; it has {_listed(header)}. "
                f"Name another with --{part.split()[0]}-column.{hint}"
            )
        places[part] = list(header).index(column)
    return places


def _spelt(mark: str) -> str:
    return "tab" if mark == "\t" else f"'{mark}'"


def _purpose(part: str) -> str:
    return "to keep" if part.startswith("keep ") else f"for the {part}"


def _listed(names: Iterable[str]) -> str:
    shown = [repr(name) for name in names]
    more = f" and {len(shown) - 20} more" if len(shown) > 20 else ""
    return (", ".join(shown[:20]) or "none") + more
