"""Cells that can be scored, and are probably mistakes.

Spreadsheets and R write a missing value as "NA". Editors write accents in two code points, and
no-break spaces. All of these are text to a model, which gives them another surprisal.
"""

import unicodedata
from collections.abc import Iterator

import regex

from charwise.tables.rows import BadRow, Columns, Stimulus

#: What programs write for a missing value.
_MISSING = {"NA", "N/A", "#N/A", "NaN", "nan", "NULL", "null", "None"}

#: Characters that look like a space, or like nothing.
_UNSEEN = {
    "\N{NO-BREAK SPACE}": "a no-break space",
    "\N{NARROW NO-BREAK SPACE}": "a narrow no-break space",
    "\N{ZERO WIDTH SPACE}": "a zero-width space",
    "\N{ZERO WIDTH NO-BREAK SPACE}": "a byte order mark",
}
_SPELT_UNSEEN = regex.compile("[" + "".join(_UNSEEN) + "]")

#: A letter with a mark after it that Unicode has in one code point too, perhaps.
_MARKED = regex.compile(r"\P{M}\p{M}+")

#: The end of a word, and the beginning of another one, in scripts that write spaces between words.
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_ENDS = regex.compile(rf"[^\s\p{{Ps}}\p{{Pi}}\p{{Pd}}'’\"/{_UNSPACED}]\Z")
_BEGINS = regex.compile(rf"(?![{_UNSPACED}])[\p{{L}}\p{{N}}]")

#: Items that are kept to be compared with later ones: so many take 10 MB.
_ITEMS = 100_000


class InputWarnings:
    """The probable mistakes of a table's rows; it remembers the items that it has seen."""

    def __init__(self, columns: Columns) -> None:
        self._names = columns.wanted()
        self._bars_in_text = columns.regions in (None, columns.text)
        self._seen: dict[int, int] = {}  # the hash of an item → its row

    def of(self, row: Stimulus) -> Iterator[BadRow]:
        """Yield what may be wrong with a row, each with its column."""
        text, context = (each.decode("utf-8", "replace") for each in (row.text, row.context))
        names = self._names if row.place.table else {}
        cells = {"text": text, "context": context, "item": row.item or ""}
        reasons = [(part, reason) for part, cell in cells.items() for reason in _in_cell(cell)]
        if _ENDS.search(context) and _BEGINS.match(text):
            joined = f"{context[-10:]}{text[:10]}"
            reasons.append(("context", f"no space joins it to the text: {joined!r}."))
        if self._bars_in_text and len(row.regions) == 1:
            reasons.append(("text", "no bar divides it, so all of it is one region."))
        if (before := self._before(row)) is not None:
            reasons.append(("item", f"row {before} has the item {row.item!r} too."))
        for part, reason in reasons:
            yield BadRow(row.place, names.get(part), reason)

    def _before(self, row: Stimulus) -> int | None:
        """The row that has the item, in the same file and with the same cells that are kept."""
        if row.item is None:
            return None
        key = hash((row.place.file, row.item, row.copied))
        if key not in self._seen and len(self._seen) < _ITEMS:
            self._seen[key] = row.place.number
        number = self._seen.get(key, row.place.number)
        return None if number == row.place.number else number


def _in_cell(cell: str) -> Iterator[str]:
    """Yield what may be wrong with the characters of a cell."""
    if cell.strip() in _MISSING:
        yield f"it holds {cell.strip()!r}, which may stand for a missing value."
    if cell and cell.isspace():
        yield "it has only whitespace in it, which the model reads as text."
    if cell.isascii():
        return
    if match := _SPELT_UNSEEN.search(cell):
        sign = match.group()
        name, code = _UNSEEN[sign], f"U+{ord(sign):04X}"
        yield f"{name} ({code}) is in it after {match.start()} characters. Write a space, or none."
    for match in _MARKED.finditer(cell):
        apart, one = match.group(), unicodedata.normalize("NFC", match.group())
        if len(one) < len(apart):
            codes = " ".join(f"U+{ord(code):04X}" for code in apart)
            yield (
                f"{one!r}, after {match.start()} characters, is decomposed ({codes}). Models saw "
                "it in one code point: normalise the table to NFC."
            )
            return
