"""A document in an editor: text by offset, by line and character, and changed piece by piece.

Editors count a position as a line and a character in it, and the character in units of UTF-16, or
whatever was agreed on: an emoji is two units, one code point and four bytes. A line ends with
`\\n`, `\\r\\n` or `\\r`, and with nothing else: `str.splitlines` knows more ends than editors do.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

#: In what a position counts the characters of its line.
Units = Literal["utf-8", "utf-16", "utf-32"]

_LINE_END = re.compile(r"\r\n|\n|\r")

#: Of what is longer than may be read, so many parts are left out at a time.
_PARTS = 4


@dataclass(frozen=True)
class Document:
    """The text of a document; a change makes another one.

    Offsets count code points, as in a Python string.

    >>> document = Document("x = '😀'\\ny")
    >>> document.offset(0, 7), document.position(6)
    (6, (0, 7))
    >>> document.edited(5, 6, "é").text
    "x = 'é'\\ny"
    """

    text: str

    @cached_property
    def starts(self) -> list[int]:
        """Where each line begins."""
        return [0, *(end.end() for end in _LINE_END.finditer(self.text))]

    def line(self, number: int) -> str:
        """A line without its end; empty beyond the last one.

        >>> Document("a\\r\\nb").line(0)
        'a'
        """
        if not 0 <= number < len(self.starts):
            return ""
        end = _LINE_END.search(self.text, self.starts[number])
        return self.text[self.starts[number] : end.start() if end else len(self.text)]

    def offset(self, line: int, character: int, units: Units = "utf-16") -> int:
        """The offset of a position. Beyond a line it is its end, beyond the text the text's.

        A position inside a character is where that begins.

        >>> document = Document("a😀b\\r\\n")
        >>> [document.offset(0, n) for n in range(6)], document.offset(1, 0), document.offset(9, 0)
        ([0, 1, 1, 2, 3, 3], 5, 5)
        >>> document.offset(0, 5, "utf-8"), document.offset(0, 2, "utf-32")
        (2, 2)
        """
        if line >= len(self.starts):
            return len(self.text)
        seen = 0
        for n, letter in enumerate(content := self.line(line)):
            seen += _size(letter, units)
            if seen > character:
                return self.starts[line] + n
        return self.starts[line] + len(content)

    def position(self, offset: int, units: Units = "utf-16") -> tuple[int, int]:
        """The line and the character of an offset.

        >>> Document("a😀b\\nc").position(5), Document("é").position(1, "utf-8")
        ((1, 1), (0, 2))
        """
        line = bisect_right(self.starts, offset) - 1
        letters = self.text[self.starts[line] : offset]
        return line, sum(_size(letter, units) for letter in letters)

    def edited(self, start: int, end: int, new: str) -> Document:
        """The document with the text between two offsets replaced."""
        return Document(self.text[:start] + new + self.text[end:])

    def before(self, offset: int, most: int) -> str:
        """What is before an offset, the last `most` code points of it.

        Of a longer text a beginning is left out that stays the same while one types, up to the end
        of a line where there is one near: what is known of the text before stays of use.

        >>> Document("one\\ntwo\\nthree").before(9, 100), Document("one\\ntwo\\nthree").before(9, 5)
        ('one\\ntwo\\nt', 'two\\nt')
        """
        if offset <= most:
            return self.text[:offset]
        part = max(1, most // _PARTS)
        least = -(-(offset - most) // part) * part
        end = _LINE_END.search(self.text, least, min(offset, least + part))
        return self.text[end.end() if end else least : offset]

    def after(self, offset: int, most: int) -> str:
        """What is after an offset, `most` code points at most.

        >>> Document("one two").after(4, 2)
        'tw'
        """
        return self.text[offset : offset + most]


def lines_of(text: str) -> list[str]:
    """The lines of a text with their ends; what follows the last end counts if there is any.

    >>> lines_of("a\\r\\nb\\n"), lines_of("\\x0c")
    (['a\\r\\n', 'b\\n'], ['\\x0c'])
    """
    starts = [0, *(end.end() for end in _LINE_END.finditer(text))]
    return [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True) if a < b]


def _size(letter: str, units: Units) -> int:
    """How many units a character has."""
    if units == "utf-32":
        return 1
    if units == "utf-16":
        return 1 + (letter > "\uffff")
    return len(letter.encode("utf-8", "surrogatepass"))
