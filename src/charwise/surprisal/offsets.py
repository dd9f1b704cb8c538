r"""Where the parts of a text begin and end: words, matches of an expression, given spans.

A character is what `text.decode("utf-8", "surrogateescape")` has one of: a byte that is no part
of a valid character is a character of its own. So every byte belongs to exactly one character,
and for valid UTF-8 the offsets are those of a Python string. Whitespace is what `\s` matches.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from charwise.errors import SettingError, SpanError, items, shown
from charwise.tokens import words as segmentation

Convention = Literal["leading", "trailing", "none"]
Unit = Literal["character", "byte"]

#: Where words end: at whitespace (None), where Unicode says ("unicode"), or at given places.
Boundaries = segmentation.Boundaries | Literal["unicode"] | None

#: What a word is: which whitespace belongs to it. Each pattern takes a text apart without a rest.
WORDS: dict[str, re.Pattern[str]] = {
    "leading": re.compile(r"\s*\S+|\s+"),
    "trailing": re.compile(r"\S+\s*|\s+"),
    "none": re.compile(r"\S+|\s+"),
}

#: The same for parts of a text that are not joined: "x" for a part, " " for one of whitespace.
_PARTS = {"leading": " *x| +", "trailing": "x *| +", "none": "x| +"}


def characters_of(text: bytes) -> tuple[str, NDArray[np.int64]]:
    """The characters of a text, and the `[n_characters + 1]` byte offsets between which they lie.

    >>> string, edges = characters_of("naïve".encode() + b"\\xff!")
    >>> len(string), edges.tolist()
    (7, [0, 1, 2, 4, 5, 6, 7, 8])
    """
    string = text.decode("utf-8", "surrogateescape")
    codes = np.frombuffer(string.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    sizes = 1 + np.searchsorted([0x80, 0x800, 0x10000], codes, side="right")
    sizes[(codes >= 0xDC80) & (codes <= 0xDCFF)] = 1  # what the decoder makes of stray bytes
    return string, np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))


def words(string: str, convention: str, boundaries: Boundaries = None) -> list[tuple[int, int]]:
    """The words of a text under a convention, as offsets in characters; all of it is in one.

    Args:
        string: the text.
        convention: which whitespace belongs to a word.
        boundaries: where words end; no grapheme cluster is split.

    Raises:
        SettingError: an unknown convention, or boundaries that are not in the text.

    >>> [[" to be"[a:b] for a, b in words(" to be", each)] for each in WORDS]
    [[' to', ' be'], [' ', 'to ', 'be'], [' ', 'to', ' ', 'be']]
    >>> [" f(न्दी)"[a:b] for a, b in words(" f(न्दी)", "leading", "unicode")]
    [' f', '(', 'न्दी', ')']
    """
    if not isinstance(convention, str) or convention not in WORDS:
        raise SettingError(
            f"unknown convention {shown(convention)}: the whitespace between two words belongs to "
            "the second ('leading'), to the first ('trailing'), or to neither ('none', 'ending')."
        )
    if boundaries is None and string.isascii():
        return matches(string, WORDS[convention])
    if boundaries is None:
        edges, pattern = segmentation.graphemes(string), WORDS[convention].pattern
    else:
        if isinstance(boundaries, str):
            if boundaries != "unicode":
                raise SettingError(f"unknown boundaries {shown(boundaries)}: use 'unicode'.")
            boundaries = None
        edges = segmentation.words(string, boundaries)
        pattern = _PARTS[convention]
    kinds = "".join(" " if string[a:b].isspace() else "x" for a, b in pairwise(edges))
    return [(edges[a], edges[b]) for a, b in matches(kinds, pattern)]


def matches(string: str, pattern: str | re.Pattern[str]) -> list[tuple[int, int]]:
    """The matches of a regular expression, from left to right, as offsets in characters.

    Raises:
        SettingError: a pattern that is not a valid regular expression for text.
        SpanError: an empty match.

    >>> matches("a1b22", r"\\d+")
    [(1, 2), (3, 5)]
    """
    try:
        found = [match.span() for match in re.finditer(pattern, string)]
    except (re.error, TypeError) as error:
        raise SettingError(
            f"the pattern {shown(pattern)} is no regular expression: {error}."
        ) from None
    for n, (start, end) in enumerate(found):
        if start == end:
            raise SpanError(
                f"match {n} of the pattern {shown(pattern)} is empty, at character {start}: use a "
                "pattern that matches at least one character.",
                n,
            )
    return found


def valid(pairs: Iterable[Sequence[int]], size: int, unit: Unit) -> list[tuple[int, int]]:
    """Return the spans as given, if none is empty, and all are within `size`.

    Raises:
        SettingError: an unknown unit.
        SpanError: the first span that is none, and why.

    >>> valid([(0, 2), (1, 3)], 3, "character")
    [(0, 2), (1, 3)]
    """
    if not isinstance(unit, str) or unit not in ("character", "byte"):
        raise SettingError(f"unknown unit {shown(unit)}: offsets count 'character' or 'byte'.")
    listed = items(pairs)
    if listed is None:
        raise SettingError(f"spans are pairs of integers (start, end), not {shown(pairs)}.")
    good: list[tuple[int, int]] = []
    for n, pair in enumerate(listed):
        start, end = _two_integers(n, pair)
        wrong = (
            f"it begins before {unit} 0"
            if start < 0
            else "its end is before its start"
            if end < start
            else "it is empty"
            if end == start
            else f"the text ends at {unit} {size}"
            if end > size
            else ""
        )
        if wrong:
            raise SpanError(f"span {n} is ({start}, {end}): {wrong}.", n)
        good.append((start, end))
    return good


def _two_integers(n: int, pair: Sequence[int]) -> tuple[int, int]:
    try:
        start, end = map(operator.index, pair)
        if any(isinstance(one, bool) for one in pair):
            raise TypeError
    except (TypeError, ValueError):
        raise SpanError(
            f"span {n} is {shown(pair)}: a span is two integers (start, end).", n
        ) from None
    return start, end
