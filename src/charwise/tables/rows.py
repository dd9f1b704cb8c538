"""The rows of a table: a row is a `Stimulus`, or a `BadRow` with its fault."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from charwise.errors import quantity
from charwise.tables.regions import CellError, Region, regions_of, split_bars

#: Bytes that a cell has at most: more is a quote that was never closed, or a book.
LONGEST_CELL = 2**20

#: What the columns of a table hold, besides what is copied.
PARTS = ("text", "item", "context", "regions")


@dataclass(frozen=True, slots=True)
class Columns:
    """The names of a table's columns, by their contents; None for contents without a column."""

    text: str = "text"
    item: str | None = None
    context: str | None = None
    regions: str | None = None
    copied: tuple[str, ...] = ()  # to the output

    def wanted(self) -> dict[str, str]:
        """Return the names of the columns that are read, by what they hold."""
        parts = {part: name for part in PARTS if (name := getattr(self, part)) is not None}
        return parts | {f"keep {name}": name for name in self.copied}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row is."""

    file: str
    number: int  # from 1; a header is no row
    line: int | None = None  # its first
    table: bool = True  # a plain text file is one row, which needs no number

    def __str__(self) -> str:
        line = "" if self.line is None else f" (line {self.line})"
        return f"{self.file}, row {self.number}{line}" if self.table else self.file


@dataclass(frozen=True, slots=True)
class Stimulus:
    """A text to score."""

    place: Place
    text: bytes
    context: bytes = b""  # before the text, conditioned on and not scored
    item: str | None = None
    regions: tuple[Region, ...] = ()
    column: str | None = None  # that the text is from
    copied: tuple[tuple[str, str | None], ...] = ()  # the name and the cell of each column

    @property
    def size(self) -> int:
        """The number of bytes that a model reads."""
        return len(self.text) + len(self.context)


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that has no score, and why."""

    place: Place
    column: str | None
    reason: str
    size: ClassVar[int] = 0  # bytes that a model reads

    def to_dict(self) -> dict[str, Any]:
        """Return it for a file of errors."""
        where = {"file": self.place.file, "row": self.place.number, "line": self.place.line}
        return {**where, "column": self.column, "error": self.reason}

    def __str__(self) -> str:
        column = "" if self.column is None else f", column {self.column!r}"
        return f"{self.place}{column}: {self.reason}"


def stimulus_of(
    place: Place, cells: Mapping[str, Any], columns: Columns, *, regions: bool
) -> Stimulus | BadRow:
    """Return the row that cells make, by the names of `Columns.wanted`, or their fault."""
    names = columns.wanted() if place.table else {}
    part = "text"
    try:
        text = _to_bytes(cells["text"], LONGEST_CELL if place.table else None)
        spans: list[Region] = []
        elsewhere = place.table and columns.regions not in (None, columns.text)
        if regions and not elsewhere:
            text, spans = split_bars(text)
        if not text:
            raise CellError("there is no text, so nothing to score.")
        if regions and elsewhere:
            part = "regions"
            cell = cells["regions"]
            cell = _to_bytes(cell) if isinstance(cell, str | bytes | None) else cell
            spans = regions_of(text, cell)
        part = "context"
        context = _to_bytes(cells.get("context"))
        part = "item"
        item = _copied(cells.get("item"))
        copied = []
        for name in columns.copied if place.table else ():
            part = f"keep {name}"
            copied.append((name, _copied(cells.get(part))))
    except CellError as error:
        return BadRow(place, names.get(part), str(error))
    return Stimulus(place, text, context, item, tuple(spans), names.get("text"), tuple(copied))


def _to_bytes(value: Any, limit: int | None = LONGEST_CELL) -> bytes:
    """The bytes of a cell, which is a text, bytes, or nothing."""
    if value is None:
        return b""
    if not isinstance(value, str | bytes):
        raise CellError(f"it holds {value!r:.40}, which is no text.")
    try:
        text = value if isinstance(value, bytes) else value.encode()
    except UnicodeEncodeError as error:
        before, code = quantity(error.start, "character"), ord(error.object[error.start])
        if 0xDC80 <= code <= 0xDCFF:  # the readers let stray bytes through so
            reason = f"byte 0x{code - 0xDC00:02X}, after {before}, is no UTF-8: save it as UTF-8, "
            reason += "or name its encoding, such as --encoding cp1252."
        else:
            reason = f"U+{code:04X}, after {before}, is half of a surrogate pair: write both."
        raise CellError(reason) from None
    if limit is not None and len(text) > limit:
        raise CellError(
            f"the cell has {len(text):,} bytes, and may have {limit:,}. Is a quote left "
            "open? A long text can be scored as a plain text file of its own."
        )
    return text


def _copied(value: Any) -> str | None:
    """A cell that is copied, of whatever type it is, as text."""
    if isinstance(value, str | bytes):
        return _to_bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, dict | list):
        # JSON spells half a surrogate pair as an escape.
        cell = json.dumps(value, ensure_ascii=False, default=str)
        return cell.encode("utf-8", "backslashreplace").decode()
    return None if value is None else str(value)
