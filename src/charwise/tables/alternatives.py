"""The alternatives of a region: other strings that could stand in its place, as in a cloze task.

A cell lists them in one of three ways:

- bars: `river|sea`, for a text with one region.
- a list: `["river", "sea"]`, likewise.
- an object, by the region's name or its number from 1: `{"noun": ["river", "sea"]}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from charwise.tables.regions import (
    BAR,
    CellError,
    Region,
    characters,
    check_text,
    once,
    unreadable,
)

#: A region's place among those of its text, and what may stand there.
Alternative = tuple[int, str]


def alternatives_of(cell: Any, regions: Sequence[Region]) -> list[Alternative]:
    """The alternatives that a cell lists for the regions of a text.

    Args:
        cell: bytes, or lists and dicts as JSON and Parquet have them; nothing if there are none.
        regions: of the text.

    Raises:
        CellError: no such list, a region that is not there, an alternative that is empty or twice.

    >>> alternatives_of(b"river|sea", [Region(4, 8)])
    [(0, 'river'), (0, 'sea')]
    """
    if isinstance(cell, bytes):
        cell = _parsed(characters(cell))
    if cell is None or cell == []:
        return []
    named = cell if isinstance(cell, Mapping) else {None: cell}
    found = []
    for name, listed in named.items():
        if listed is None:  # of Parquet
            continue
        strings = listed.split(BAR) if isinstance(listed, str) else listed
        if not isinstance(strings, list) or not all(isinstance(one, str) for one in strings):
            raise CellError(f'it holds {listed!r:.40}: list strings, as in ["river", "sea"].')
        at = _place(name, regions)
        stripped = [string.strip() for string in strings]
        for n, string in enumerate(stripped):
            if not string:
                raise CellError("an alternative is empty.")
            check_text(string, "alternative")
            if string in stripped[:n]:
                raise CellError(f"the alternative {string!r} is there twice.")
            found.append((at, string))
    return found


def _parsed(marked: str) -> Any:
    """The value of a cell of text."""
    if not marked.strip():
        return None
    if marked.lstrip().startswith(("[", "{")):
        try:
            return json.loads(marked, object_pairs_hook=once)
        except CellError:
            raise
        except (ValueError, RecursionError) as error:
            raise CellError(f'these are no alternatives, ["…", …]: {unreadable(error)}.') from None
    return marked.split(BAR)


def _place(name: str | None, regions: Sequence[Region]) -> int:
    """Which region a name or number means; None means the only one."""
    if name is None:
        if len(regions) == 1:
            return 0
        raise CellError(
            f'the text has {len(regions)} regions: say which, as in {{"2": ["river", "sea"]}}.'
        )
    places = [n for n, region in enumerate(regions) if region.name == name]
    if not places and name in map(str, range(1, len(regions) + 1)):
        places = [int(name) - 1]
    if len(places) == 1:
        return places[0]
    if places:
        numbers = ", ".join(str(place + 1) for place in places)
        raise CellError(f"several regions are called {name!r}: give the number, {numbers}.")
    raise CellError(f"no region is called {name!r}, of {len(regions)}.")
