"""The rows of a table: where each is, what it holds, or what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Columns:
    """Which column of a table holds what; None for what no column holds.

    >>> Columns(regions="text").wanted()
    {'text': 'text', 'regions': 'text'}
    """

    text: str = "text"
    item: str | None = None
    context: str | None = None
    regions: str | None = None

    def wanted(self) -> dict[str, str]:
        """The names that are given, by what they hold."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {part: name for part, name in found.items() if name is not None}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row is: its file, its number from 1 (a header is no row), and its first line.

    A plain text file is one row, which needs no number: `table` is False.

    >>> str(Place("a.csv", 3, 5)), str(Place("a.txt", 1, table=False))
    ('a.csv, row 3 (line 5)', 'a.txt')
    """

    file: str
    number: int
    line: int | None = None
    table: bool = True

    def __str__(self) -> str:
        line = "" if self.line is None else f" (line {self.line})"
        return f"{self.file}, row {self.number}{line}" if self.table else self.file


@dataclass(frozen=True, slots=True)
class Row:
    """A text to score.

    Attributes:
        place: where it was read.
        text: the text.
        context: what comes before it, conditioned on and not scored.
        item: the name of the item, if a column has it.
        regions: offsets in characters, if regions were asked for.
        column: the column that the text is from.
    """

    place: Place
    text: bytes
    context: bytes = b""
    item: str | None = None
    regions: tuple[tuple[int, int], ...] = ()
    column: str | None = None


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that has no score, and why.

    >>> print(BadRow(Place("a.csv", 3, 5), "text", "the cell is empty."))
    a.csv, row 3 (line 5), column 'text': the cell is empty.
    """

    place: Place
    column: str | None
    reason: str

    def __str__(self) -> str:
        column = "" if self.column is None else f", column {self.column!r}"
        return f"{self.place}{column}: {self.reason}"
