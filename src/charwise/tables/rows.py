"""The rows of a table: a row is a `Stimulus`, or a `BadRow` with its fault.

A table asks for the regions of a text in one of three ways:

- bars: `The horse |raced past the barn |fell.` is a text in three regions. A bar is no part of
  the text, and what is before it, a space too, belongs to the region before.
- offsets: `[[0, 10], [10, 30]]`, pairs of (start, end) in characters, end exclusive.
- names: `{"subject": [0, 9], "verb": [10, 15]}`, offsets with a name each.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise, takewhile
from typing import Any, ClassVar, NamedTuple

from charwise.errors import quantity

#: Bytes that a cell has at most: more is a quote that was never closed, or a book.
LONGEST_CELL = 2**20

#: What the columns of a table hold, besides what is copied.
PARTS = ("text", "item", "context", "regions")


class _Region(NamedTuple):
    """A span of a text, in characters, end exclusive; its name, if it has one."""

    start: int
    end: int
    name: str | None = None


class CellError(ValueError):
    """The fault of a row, and its column if it is in one."""

    def __init__(self, reason: str, column: str | None = None) -> None:
        super().__init__(reason)
        self.column = column


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

    def row(self, place: Place, cells: Mapping[str, Any], *, regions: bool) -> Stimulus | BadRow:
        """Return the row that cells make, by the names of `wanted`, or their fault."""
        names = self.wanted() if place.table else {}
        part = "text"
        try:
            text = _to_bytes(cells["text"], LONGEST_CELL if place.table else None)
            spans: list[_Region] = []
            elsewhere = place.table and self.regions not in (None, self.text)
            if regions and not elsewhere:
                text, spans = _split_bars(text)
            if not text:
                raise CellError("there is no text, so nothing to score.")
            if regions and elsewhere:
                part = "regions"
                cell = cells["regions"]
                cell = _to_bytes(cell) if isinstance(cell, str | bytes | None) else cell
                spans = _regions_of(text, cell)
            part = "context"
            context = _to_bytes(cells.get("context"))
            part = "item"
            item = _copied(cells.get("item"))
            copied = []
            for name in self.copied if place.table else ():
                part = f"keep {name}"
                copied.append((name, _copied(cells.get(part))))
        except CellError as error:
            return BadRow(place, names.get(part), str(error))
        return Stimulus(place, text, context, item, tuple(spans), names.get("text"), tuple(copied))


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
    regions: tuple[_Region, ...] = ()
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


def parse_json(text: str) -> Any:
    """Return the value of JSON; why there is none is said without advice on Python."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        reason = str(error)
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError:
        reason = "a number in it is too long"
    raise CellError(f"this is no JSON: {reason}.")


def _split_bars(marked: bytes) -> tuple[bytes, list[_Region]]:
    """Return a text without its bars, and the regions between them."""
    pieces = _characters(marked).split("|")
    edges = [0, *accumulate(map(len, pieces))]
    text = "".join(pieces)
    for number, piece in enumerate(pieces, 1):
        if text and not piece:
            raise CellError(f"region {number} is empty: there is no text on one side of a bar.")
    return text.encode(), [_Region(*pair) for pair in pairwise(edges)] if text else []


def _regions_of(text: bytes, cell: Any) -> list[_Region]:
    """Return the regions of a text that a cell marks, with bars, offsets or names.

    The cell is bytes, or a list or dict as JSON and Parquet have them.
    """
    string = _characters(text)
    if not isinstance(cell, bytes):
        return _from_json(cell, string)
    marked = _characters(cell)
    if not marked.strip():
        raise CellError("there are no regions.")
    if marked.lstrip().startswith(("[", "{")):
        try:
            value = parse_json(marked)
        except CellError:
            if "|" not in marked:
                raise
        else:
            return _from_json(value, string)
    unmarked, regions = _split_bars(cell)
    if unmarked != text:
        same = takewhile(bool, map(operator.eq, unmarked.decode(), string))
        shared = quantity(sum(same), "character")
        raise CellError(f"without its bars it differs from the text after {shared}.")
    return regions


def _from_json(value: Any, string: str) -> list[_Region]:
    """The regions that offsets mark, with names or without."""
    regions: list[_Region] = []
    if isinstance(value, Mapping):
        for name, pair in value.items():
            if name != name.encode("utf-8", "replace").decode():
                raise CellError(f"the name of a region {name!r} is no text: half a character.")
            if pair is not None:  # Parquet has all names in all rows
                regions.append(_Region(*_span(f"the region {name!r} is", pair, len(string)), name))
    elif isinstance(value, list):
        for n, pair in enumerate(value):
            regions.append(_Region(*_span(f"span {n} is", pair, len(string))))
    if not regions:
        raise CellError(f"it holds {value!r:.40}: write offsets as [[start, end], …].")
    named = isinstance(value, Mapping)
    return sorted(regions, key=lambda region: region[:2]) if named else regions


def _span(which: str, pair: Any, size: int) -> tuple[int, int]:
    """Start and end as a cell has them, if they are a span of so many characters."""
    try:
        start, end = map(operator.index, pair)
        if any(isinstance(one, bool) for one in pair):
            raise TypeError
    except (TypeError, ValueError):
        reason = f"{pair!r:.40}: a span is two integers (start, end)."
        raise CellError(f"{which} {reason}") from None
    if not 0 <= start < end <= size:
        raise CellError(f"{which} ({start}, {end}): it must be 0 ≤ start < end ≤ {size}.")
    return start, end


def _characters(text: bytes) -> str:
    """Return the characters of a cell, which regions count."""
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise CellError(f"regions are in characters, and byte {error.start} is no UTF-8.") from None


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
