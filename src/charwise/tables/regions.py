"""The regions of a text, in one of three ways.

- bars: `The horse |raced past the barn |fell.` is a text in three regions. A bar is no part of
  the text, and what is before it, a space too, belongs to the region before.
- offsets: `[[0, 10], [10, 30]]`, pairs of (start, end) in characters, end exclusive.
- names: `{"subject": [0, 9], "verb": [10, 15]}`, offsets with a name each.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from itertools import accumulate, pairwise, takewhile
from typing import Any, NamedTuple

from charwise.errors import quantity

BAR = "|"


class Region(NamedTuple):
    """A span of a text, in characters, end exclusive; its name, if it has one."""

    start: int
    end: int
    name: str | None = None


class CellError(ValueError):
    """The fault of a row, and its column if it is in one."""

    def __init__(self, reason: str, column: str | None = None) -> None:
        super().__init__(reason)
        self.column = column


def split_bars(marked: bytes) -> tuple[bytes, list[Region]]:
    """Return a text without its bars, and the regions between them."""
    pieces = characters(marked).split(BAR)
    edges = [0, *accumulate(map(len, pieces))]
    text = "".join(pieces)
    for number, piece in enumerate(pieces, 1):
        if text and not piece:
            raise CellError(f"region {number} is empty: there is no text on one side of a bar.")
    return text.encode(), [Region(*pair) for pair in pairwise(edges)] if text else []


def regions_of(text: bytes, cell: Any) -> list[Region]:
    """Return the regions of a text that a cell marks, with bars, offsets or names.

    The cell is bytes, or a list or dict as JSON and Parquet have them.
    """
    string = characters(text)
    if not isinstance(cell, bytes):
        return _from_json(cell, string)
    marked = characters(cell)
    if not marked.strip():
        raise CellError("there are no regions.")
    if marked.lstrip().startswith(("[", "{")):
        try:
            return _from_json(json.loads(marked), string)
        except (ValueError, RecursionError) as error:
            if isinstance(error, CellError):
                raise
            if BAR not in marked:
                reason = unreadable(error)
                raise CellError(f"these are no offsets, [[start, end], …]: {reason}.") from None
    unmarked, regions = split_bars(cell)
    if unmarked != text:
        same = takewhile(bool, map(operator.eq, unmarked.decode(), string))
        shared = quantity(sum(same), "character")
        raise CellError(f"without its bars it differs from the text after {shared}.")
    return regions


def _from_json(value: Any, string: str) -> list[Region]:
    """The regions that offsets mark, with names or without."""
    regions: list[Region] = []
    if isinstance(value, Mapping):
        for name, pair in value.items():
            if name != name.encode("utf-8", "replace").decode():
                raise CellError(f"the name of a region {name!r} is no text: half a character.")
            if pair is not None:  # Parquet has all names in all rows
                regions.append(Region(*_span(f"the region {name!r} is", pair, len(string)), name))
    elif isinstance(value, list):
        for n, pair in enumerate(value):
            regions.append(Region(*_span(f"span {n} is", pair, len(string))))
    if not regions:
        raise CellError(f"it holds {value!r:.40}: write offsets as [[start, end], …].")
    return sorted(regions, key=lambda region: region[:2]) if regions[0].name else regions


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


def unreadable(error: ValueError | RecursionError) -> str:
    """Return why JSON cannot be read, without advice on Python."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error) if isinstance(error, json.JSONDecodeError) else "a number in it is too long"


def characters(text: bytes) -> str:
    """Return the characters of a cell, which regions count."""
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise CellError(f"regions are in characters, and byte {error.start} is no UTF-8.") from None
