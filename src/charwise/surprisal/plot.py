"""How a score looks: a figure of its words, and coloured text for notebooks."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from charwise.errors import SettingError, needs
from charwise.surprisal.spans import Span, Spans

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The colour, red, green and blue, of a character of 10 bits or more; less is in proportion. The
#: same for all texts, so that they can be compared.
COLOUR = (228, 87, 46)


def figure(words: Spans, title: str) -> Figure:
    """Draw a bar for each word that has letters, as wide as the word, over the word."""
    with needs("plots", "a plot needs matplotlib"):
        from matplotlib.figure import Figure

    columns = 80  # characters of a line
    lines = _lines(words, columns) or [[]]
    if len(lines) > 50:
        raise SettingError(
            f"a figure of {len(lines):,} lines of text cannot be read. Draw at most 50: "
            "score a part of the text, with what is before it as context."
        )
    page = Figure(figsize=(8, 0.6 + 0.9 * len(lines)), layout="constrained")
    page.suptitle(title, size=9)
    top = max([1.0, *(word.surprisal for line in lines for _, word in line)])
    rows = page.subplots(len(lines), squeeze=False, sharey=True)[:, 0]
    for axes, line in zip(rows, lines, strict=True):
        starts = [column for column, _ in line]
        width = [len(word.text.strip()) for _, word in line]
        bits = [word.surprisal for _, word in line]
        axes.bar(starts, bits, width, align="edge", color=tuple(part / 255 for part in COLOUR))
        middle = [a + b / 2 for a, b in zip(starts, width, strict=True)]
        labels = ["".join(map(_glyph, word.text.strip())) for _, word in line]
        axes.set_xticks(middle, labels, size=7, family="monospace", parse_math=False)
        axes.set(xlim=(0, max([columns, *(a + b for a, b in zip(starts, width, strict=True))])))
        axes.set(ylim=(0, top), ylabel="bits")
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(length=0, labelsize=7)
    return page


def _lines(words: Spans, columns: int) -> list[list[tuple[int, Span]]]:
    """The words that have letters in lines, each with its first column."""
    lines: list[list[tuple[int, Span]]] = []
    column = columns
    for word in words:
        size = len(word.text.strip())
        if size and column + size > columns:
            lines.append([])
            column = 0
        if size:
            lines[-1].append((column, word))
            column += size + 1
    return lines


def _glyph(character: str) -> str:
    """The sign for a character: itself, or a visible one in the place of an invisible one."""
    sign = {"\n": "⏎", "\r": "↩", "\t": "⇥"}.get(character, character)
    return sign if sign.isprintable() else "�"


def to_html(chars: Spans, summary: str) -> str:
    """Return the HTML of every character on its colour, bits where one points; and a line below."""
    spans, most = [], 5_000
    for row in chars[:most]:
        # A byte that is no character is spelled with more than one.
        char = row.text if len(row.text) == 1 else "�"
        strength = min(1.0, max(0.0, row.surprisal / 10))
        colour = f"rgba{(*COLOUR, round(strength, 2))}"
        sign = html.escape(_glyph(char)) + ("\n" if char == "\n" else "")
        title = f"{row.surprisal:.2f} bits"
        spans.append(f'<span style="background:{colour}" title="{title}">{sign}</span>')
    more = f" … {len(chars) - most:,} more" if len(chars) > most else ""
    text = f'<div style="white-space:pre-wrap;font-family:monospace">{"".join(spans)}{more}</div>'
    return f'{text}<div style="opacity:0.6;font-size:smaller">{html.escape(summary)}</div>'
