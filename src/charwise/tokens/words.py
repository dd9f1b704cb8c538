"""Words and characters of a text, by Unicode text segmentation (UAX 29).

A character that a reader sees, a *grapheme cluster*, may be several code points: a letter with its
marks, an emoji with its modifiers, `\\r\\n`. No boundary lies inside one.

Words end where UAX 29 says, with one tailoring for code: a full stop or a colon between letters is
no part of a word. Scripts without spaces have no word boundaries without a dictionary. UAX 29 ends
a word after each Han or Hiragana character, and in Thai, Lao, Khmer and Burmese after each cluster.
Who knows better passes boundaries: offsets in characters, or a function that returns them.
"""

from __future__ import annotations

import operator
import unicodedata
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from charwise.errors import SettingError, items, shown

if TYPE_CHECKING:
    import regex

#: Where words begin and end inside a text, in characters: offsets, or a function that finds them.
Boundaries = Iterable[int] | Callable[[str], Iterable[int]]


def graphemes(text: str) -> list[int]:
    """The `[n + 1]` offsets between the n grapheme clusters of a text, in characters.

    >>> graphemes("na\\u00efve"), graphemes("nai\\u0308ve\\r\\n")
    ([0, 1, 2, 3, 4, 5], [0, 1, 2, 4, 5, 6, 8])
    """
    if text.isascii() and "\r" not in text:
        return list(range(len(text) + 1))
    return [0, *(found.end() for found in _pattern(r"\X").finditer(text))]


def words(text: str, boundaries: Boundaries | None = None) -> list[int]:
    """Return the offsets in characters between the words of a text and the stretches between them.

    Args:
        text: any text. The first offset is 0, the last one its length.
        boundaries: in place of Unicode's; those inside a grapheme cluster are left out.

    Raises:
        SettingError: boundaries that are no offsets inside the text.

    >>> words("x = naïve(2.5)"), words("os.path")
    ([0, 1, 2, 3, 4, 9, 10, 13, 14], [0, 2, 3, 7])
    >>> words("สวัสดีครับ", boundaries=[6])
    [0, 6, 10]
    """
    if boundaries is None:
        found = [one.start() for one in _pattern(r"(?w)\b").finditer(text)]
        edges = {0, len(text), *found, *_operators(text, sorted({0, len(text), *found}))}
    else:
        edges = {0, len(text), *_given(text, boundaries)}
    return sorted(edges.intersection(graphemes(text)))


def first_word(text: str, boundaries: Boundaries | None = None) -> int:
    """Return the number of characters to the end of the first word, space included, or of signs.

    A text that begins with a mark goes on with a word.

    Args:
        text: what comes next, such as a completion.
        boundaries: as for `words`; then each part between two of them is a word.

    Raises:
        SettingError: as `words`.

    >>> first_word(" value)"), first_word("):\\n"), first_word(" हिन्दी भाषा")
    (6, 2, 7)
    """
    begun = text[:1] and (unicodedata.category(text[0])[0] == "M" or text[0] in "\u200c\u200d")
    if begun and boundaries is None:
        return first_word("a" + text) - 1
    end, signs = 0, False
    for start, stop in pairwise(words(text, boundaries)):
        part = text[start:stop]
        if part.isspace():
            if signs:
                break
        elif boundaries is not None or any(c.isalnum() or c == "_" for c in part):
            return end if signs else stop
        else:
            signs = True
        end = stop
    return end


def _operators(text: str, edges: list[int]) -> list[int]:
    """The places around full stops and colons inside words, but for those between digits."""
    found: list[int] = []
    for start, end in pairwise(edges):
        if "." in text[start:end] or ":" in text[start:end]:
            for at in range(start + 1, end - 1):
                digits = text[at - 1].isdigit() and text[at + 1].isdigit()
                if text[at] in ".:" and not digits:
                    found += [at, at + 1]
    return found


def _given(text: str, boundaries: Boundaries) -> list[int]:
    """Offsets inside a text as they were given, or a `SettingError`."""
    if callable(boundaries):
        boundaries = boundaries(text)
    listed = items(boundaries)
    if listed is None or isinstance(boundaries, str | bytes):
        raise SettingError(
            f"boundaries are offsets in characters, or a function, not {shown(boundaries)}."
        )
    found = []
    for one in listed:
        try:
            offset = operator.index(one)
        except TypeError:
            offset = -1
        if isinstance(one, bool) or not 0 <= offset <= len(text):
            raise SettingError(
                f"the boundary {shown(one)} is not in the text: give offsets in characters, from 0 "
                f"to {len(text)}."
            )
        found.append(offset)
    return found


@lru_cache(maxsize=4)
def _pattern(pattern: str) -> regex.Pattern[str] | Any:
    import regex

    return regex.compile(pattern)
