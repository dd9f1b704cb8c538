"""How a score looks: a figure of the whole text, and coloured text for notebooks."""

from __future__ import annotations

import html
import math
import unicodedata
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from charwise.errors import SettingError
from charwise.surprisal.spans import Convention, Spans, matches

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from charwise.surprisal.score import Score

#: The colour, red, green and blue, of a character of `HOT` bits or more; less is in proportion.
#: The same for all texts, so that they can be compared.
COLOUR = (228, 87, 46)
HOT = 10.0

#: The most that a figure has, and the characters that are written out in a notebook.
COLUMNS, LINES = 80, 200
WRITTEN = 5_000

# Inches: a column, the strip of text, the room for the words' curve, and what is around them.
CELL, STRIP, CURVE, GAP = 0.09, 0.2, 0.5, 0.17
LEFT, RIGHT, HEAD, FOOT = 0.4, 0.1, 0.42, 0.5

#: Fonts for what the first does not have, tried in this order where they are installed.
FONTS = (
    "DejaVu Sans Mono",
    "DejaVu Sans",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Hiragino Sans",
    "Microsoft YaHei",
    "Arial Unicode MS",
    "Noto Sans Devanagari",
    "Noto Sans Thai",
    "Noto Sans Arabic",
)


class Cell(NamedTuple):
    """Where a character stands: line, first column, and how many columns it takes.

    >>> Cell(0, 2, 1).column
    2
    """

    line: int
    column: int
    width: int


def glyph(character: str) -> str:
    r"""What is shown for a character: itself, or a sign for what one would not see.

    >>> glyph("a"), glyph(" "), glyph("\n"), glyph("\x00")
    ('a', ' ', '⏎', '�')
    """
    shown = {"\n": "⏎", "\r": "↩", "\t": "⇥"}.get(character, character)
    return shown if shown.isprintable() else "�"


def wrap(string: str, columns: int = COLUMNS) -> list[Cell]:
    """A place for each character, in lines that break after newlines and between words.

    A space may hang over the end of a line; characters of East Asian scripts take two columns.

    >>> [cell.line for cell in wrap("to be or", 5)]
    [0, 0, 0, 0, 0, 0, 1, 1]
    """
    cells: list[Cell] = []
    line = column = 0
    for start, end in matches(string, r"\S+|\s"):
        widths = [2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in string[start:end]]
        room = columns + string[start].isspace()
        if column and column + sum(widths) > room:
            line, column = line + 1, 0
        for width in widths:
            if column + width > room:
                line, column = line + 1, 0
            cells.append(Cell(line, column, width))
            column += width
        if string[start] == "\n":
            line, column = line + 1, 0
    return cells


def figure(score: Score, convention: Convention) -> Figure:
    """The body of `Score.plot`."""
    from matplotlib.figure import Figure

    chars = score.chars()
    cells = wrap(_string(chars))
    points = _points(score.words(convention), _string(chars), cells)
    floors = _floors(cells, {point.line for point in points})
    if len(floors) > LINES:
        raise SettingError(
            f"a figure of {len(floors):,} lines of text cannot be read. Draw at most {LINES}: "
            "score a part of the text, with what is before it as context."
        )
    width = CELL * max(50, *(cell.column + cell.width for cell in cells), 0)
    height = STRIP - floors[-1]
    page = Figure(figsize=(LEFT + width + RIGHT, HEAD + height + FOOT))
    across, up = page.get_size_inches()
    axes = page.add_axes((LEFT / across, FOOT / up, width / across, height / up))
    axes.set(xlim=(0, width), ylim=(-height, 0))  # inches
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=7, labelcolor="0.4", bottom=False, labelbottom=False)
    _draw_characters(axes, chars, cells, floors)
    _draw_words(axes, points, floors)
    title = f"{_summary(score)}; {_CHOICE[convention]}"
    page.text(LEFT / across, 1 - 0.14 / up, title, size=9, va="center")
    _draw_scale(page.add_axes((LEFT / across, 0.24 / up, 1.6 / across, 0.09 / up)))
    return page


_CHOICE = {
    "leading": "words with the whitespace before them",
    "trailing": "words with the whitespace after them",
    "none": "words without whitespace",
}


def _string(chars: Spans) -> str:
    """The text with one character for each row: a stray byte's row is spelled with more."""
    return "".join(row.text if len(row.text) == 1 else "�" for row in chars)


def _summary(score: Score) -> str:
    return f"{score.bits:.1f} bits, {score.bits_per_char:.2f} a character"


class Point(NamedTuple):
    """A word in the figure: its line of text, the middle of its letters (inches), its bits."""

    line: int
    x: float
    bits: float


def _points(words: Spans, string: str, cells: list[Cell]) -> list[Point]:
    """The words that have letters; one that goes over several lines stands in its last."""
    points = []
    for word in words:
        letters = [cells[k] for k in range(word.start, word.end) if not string[k].isspace()]
        if letters:
            line = letters[-1].line
            first = next(cell for cell in letters if cell.line == line)
            right = letters[-1].column + letters[-1].width
            points.append(Point(line, (first.column + right) / 2 * CELL, word.surprisal))
    return points


def _floors(cells: list[Cell], with_words: set[int]) -> list[float]:
    """The top of each line's strip, downwards from 0; a curve stands on it if there are words."""
    floors = [0.0]
    for line in range(1 + max((cell.line for cell in cells), default=0)):
        above = GAP + CURVE if line in with_words else GAP
        floors.append(floors[-1] - above - (STRIP if line else 0.0))
    return floors[1:]


def _draw_characters(axes: Axes, chars: Spans, cells: list[Cell], floors: list[float]) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    family = _families()
    boxes = []
    for char, cell in zip(_string(chars), cells, strict=True):
        left, width, top = cell.column * CELL, cell.width * CELL, floors[cell.line]
        boxes.append(Rectangle((left, top - STRIP), width, STRIP))
        if char == " ":
            continue
        axes.text(
            left + width / 2,
            top - 0.72 * STRIP,
            glyph(char),
            family=family,
            size=9.5,
            color="black" if glyph(char) == char else "0.45",
            ha="center",
            va="baseline",
            parse_math=False,
            usetex=False,
        )
    heat = [_shade(row.surprisal) for row in chars]
    axes.add_collection(PatchCollection(boxes, facecolors=heat, edgecolors="none"))


def _draw_words(axes: Axes, points: list[Point], floors: list[float]) -> None:
    """A line through the points of each line of text."""
    top = _round_up(max((point.bits for point in points), default=0.0))
    for line, row in groupby(points, key=lambda point: point.line):
        bottom = floors[line] + 0.03
        curve = [(x, bottom + max(0.0, bits) / top * CURVE) for _, x, bits in row]
        axes.plot(*zip(*curve, strict=True), color="0.25", linewidth=1, marker="o", markersize=2.6)
    lines = sorted({point.line for point in points})
    ticks = [(floors[line] + 0.03 + part * CURVE, part * top) for line in lines for part in (0, 1)]
    for at, _ in ticks:
        axes.axhline(at, color="0.9", linewidth=0.6, zorder=0)
    axes.set_yticks([at for at, _ in ticks], [f"{bits:g}" for _, bits in ticks])
    if points:
        axes.text(0, 0, "word (bits)", size=7, color="0.4", va="bottom")


def _draw_scale(axes: Axes) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colorbar import Colorbar
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    colours = LinearSegmentedColormap.from_list("surprisal", [_shade(0), _shade(HOT)])
    scale = ScalarMappable(Normalize(0, HOT), colours)
    Colorbar(axes, scale, orientation="horizontal", extend="max", ticks=[0, HOT / 2, HOT])
    axes.tick_params(length=0, labelsize=7, labelcolor="0.4")
    for edge in axes.spines.values():
        edge.set_visible(False)
    axes.annotate(
        "character (bits)", (1.12, 0.5), xycoords="axes fraction", size=7, color="0.4", va="center"
    )


def _families() -> list[str]:
    """The installed of the fonts, and those that the user's settings name."""
    import matplotlib
    from matplotlib.font_manager import fontManager

    installed = set(fontManager.get_font_names())
    return [*(font for font in FONTS if font in installed), *matplotlib.rcParams["font.family"]]


def _strength(bits: float) -> float:
    return min(1.0, max(0.0, bits / HOT))


def _shade(bits: float) -> tuple[float, ...]:
    """The colour on white."""
    strength = _strength(bits)
    return tuple(1 - strength * (1 - part / 255) for part in COLOUR)


def _round_up(bits: float) -> float:
    """The least of 1, 1.5, 2, 3, …, 10, 15, 20, … that is not less.

    >>> _round_up(3.2), _round_up(0.0), _round_up(101)
    (4.0, 1.0, 150.0)
    """
    step = 10.0 ** math.floor(math.log10(max(1.0, bits)))
    return next(
        n * step for n in (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0) if n * step >= bits
    )


def to_html(score: Score) -> str:
    """The body of `Score._repr_html_`: every character on its colour, its bits where one points.

    >>> import charwise
    >>> '>&lt;</span>' in to_html(charwise.load().score("a < b"))
    True
    """
    chars = score.chars()
    red, green, blue = COLOUR
    spans = []
    for char, row in zip(_string(chars[:WRITTEN]), chars, strict=False):
        colour = f"rgba({red},{green},{blue},{_strength(row.surprisal):.2f})"
        shown = html.escape(glyph(char)) + ("\n" if char == "\n" else "")
        title = f"{row.surprisal:.2f} bits"
        spans.append(f'<span style="background:{colour}" title="{title}">{shown}</span>')
    more = f" … {len(chars) - WRITTEN:,} more" if len(chars) > WRITTEN else ""
    text = f'<div style="white-space:pre-wrap;font-family:monospace">{"".join(spans)}{more}</div>'
    return f'{text}<div style="opacity:0.6;font-size:smaller">{_summary(score)}</div>'
