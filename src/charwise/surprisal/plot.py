"""How a score looks: a figure of the whole text, and coloured text for notebooks."""

from __future__ import annotations

import html
import math
import unicodedata
import warnings
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from charwise.errors import MissingExtraError, SettingError
from charwise.surprisal.offsets import matches
from charwise.surprisal.spans import Spans

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The colour, red, green and blue, of a character of `HOT` bits or more; less is in proportion.
#: The same for all texts, so that they can be compared.
COLOUR = (228, 87, 46)
#: Of what is below 0, as differences of two surprisals may be.
COLD = (46, 134, 228)
HOT = 10.0

#: The most that a figure has, and the characters that are written out in a notebook.
COLUMNS, LINES = 80, 200
WRITTEN = 5_000

#: Stands for a character that no installed font has.
NO_GLYPH = "▯"

# Inches: a column, the strip of text, the room for the words' bars, and what is around them.
COLUMN, STRIP, BARS, GAP = 0.09, 0.2, 0.5, 0.17
LEFT, RIGHT, HEAD, FOOT = 0.5, 0.1, 0.42, 0.5

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


class Box(NamedTuple):
    """Where a character stands: line, first column, and how many columns it takes.

    >>> Box(0, 2, 1).column
    2
    """

    line: int
    column: int
    width: int


def glyph(character: str) -> str:
    r"""Return the sign for a character: itself, or a visible one in the place of an invisible one.

    >>> glyph("a"), glyph(" "), glyph("\n"), glyph("\x00")
    ('a', ' ', '⏎', '�')
    """
    shown = {"\n": "⏎", "\r": "↩", "\t": "⇥"}.get(character, character)
    return shown if shown.isprintable() else "�"


def wrap(string: str, columns: int = COLUMNS) -> list[Box]:
    """A place for each character, in lines that break after newlines and between words.

    A space may hang over the end of a line; characters of East Asian scripts take two columns.

    >>> [box.line for box in wrap("to be or", 5)]
    [0, 0, 0, 0, 0, 0, 1, 1]
    """
    boxes: list[Box] = []
    line = column = 0
    for start, end in matches(string, r"\S+|\s"):
        widths = [2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in string[start:end]]
        room = columns + string[start].isspace()
        if column and column + sum(widths) > room:
            line, column = line + 1, 0
        for width in widths:
            if column + width > room:
                line, column = line + 1, 0
            boxes.append(Box(line, column, width))
            column += width
        if string[start] == "\n":
            line, column = line + 1, 0
    return boxes


def figure(chars: Spans, words: Spans, title: str) -> Figure:
    """A text on the colours of its characters, with a bar for each word that has letters.

    Args:
        chars: a row for each character.
        words: rows of the same text, in characters.
        title: a line above it.

    Raises:
        SettingError: a text of more than `LINES` lines.
        MissingExtraError: matplotlib is not installed.

    >>> import charwise
    >>> score = charwise.load().score("import os")
    >>> [text.get_text() for text in figure(score.chars(), score.words(), "two words").texts]
    ['two words']
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            "a plot needs matplotlib: pip install 'charwise[plots]'."
        ) from error

    boxes = wrap(_string(chars))
    bars = _bars(words, _string(chars), boxes)
    floors = _floors(boxes, {bar.line for bar in bars})
    if len(floors) > LINES:
        raise SettingError(
            f"a figure of {len(floors):,} lines of text cannot be read. Draw at most {LINES}: "
            "score a part of the text, with what is before it as context."
        )
    width = COLUMN * max(50, *(box.column + box.width for box in boxes), 0)
    height = STRIP - floors[-1]
    page = Figure(figsize=(LEFT + width + RIGHT, HEAD + height + FOOT))
    across, up = page.get_size_inches()
    axes = page.add_axes((LEFT / across, FOOT / up, width / across, height / up))
    axes.set(xlim=(0, width), ylim=(-height, 0))  # inches
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=7, labelcolor="0.4", bottom=False, labelbottom=False)
    _draw_characters(axes, chars, boxes, floors)
    _draw_words(axes, bars, floors)
    page.text(LEFT / across, 1 - 0.14 / up, title, size=9, va="center")
    _draw_scale(page.add_axes((LEFT / across, 0.24 / up, 1.6 / across, 0.09 / up)))
    return page


def _string(chars: Spans) -> str:
    """The text with one character for each row: a stray byte's row is spelled with more."""
    return "".join(row.text if len(row.text) == 1 else "�" for row in chars)


class Bar(NamedTuple):
    """A word in the figure: its line of text, where its letters are (inches), its bits."""

    line: int
    left: float
    right: float
    bits: float

    @property
    def middle(self) -> float:
        """Where its value stands."""
        return (self.left + self.right) / 2


def _bars(words: Spans, string: str, boxes: list[Box]) -> list[Bar]:
    """The words that have letters; one that goes over several lines stands in its last."""
    bars = []
    for word in words:
        letters = [boxes[k] for k in range(word.start, word.end) if not string[k].isspace()]
        if letters:
            line = letters[-1].line
            first = next(box for box in letters if box.line == line)
            right = letters[-1].column + letters[-1].width
            bars.append(Bar(line, first.column * COLUMN, right * COLUMN, word.surprisal))
    return bars


def peaks(bars: Sequence[Bar]) -> list[Bar]:
    """The bars of a line that are higher than both neighbours; of near ones, the higher.

    >>> [bar.bits for bar in peaks([Bar(0, n, n + 1, bits) for n, bits in enumerate([3, 9, 1, 2])])]
    [9, 2]
    """
    heights = [-math.inf, *(bar.bits for bar in bars), -math.inf]
    high = [bar for n, bar in enumerate(bars) if heights[n] < bar.bits >= heights[n + 2]]
    found: list[Bar] = []
    for bar in sorted(high, key=lambda bar: -bar.bits):
        # Nearer peaks would have labels that overlap.
        if all(abs(bar.middle - other.middle) >= 0.3 for other in found):
            found.append(bar)
    return sorted(found, key=lambda bar: bar.left)


def _floors(boxes: list[Box], with_words: set[int]) -> list[float]:
    """The top of each line's strip, downwards from 0; bars stand on it if there are words."""
    floors = [0.0]
    for line in range(1 + max((box.line for box in boxes), default=0)):
        above = GAP + BARS if line in with_words else GAP
        floors.append(floors[-1] - above - (STRIP if line else 0.0))
    return floors[1:]


def _draw_characters(axes: Axes, chars: Spans, boxes: list[Box], floors: list[float]) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    family = _families()
    string = _string(chars)
    missing = _without_glyph({glyph(char) for char in string}, family)
    strips = []
    for char, box in zip(string, boxes, strict=True):
        left, width, top = box.column * COLUMN, box.width * COLUMN, floors[box.line]
        strips.append(Rectangle((left, top - STRIP), width, STRIP))
        if char == " ":
            continue
        shown = NO_GLYPH if glyph(char) in missing else glyph(char)
        axes.text(
            left + width / 2,
            top - 0.72 * STRIP,
            shown,
            family=family,
            size=9.5,
            color="black" if shown == char else "0.45",
            ha="center",
            va="baseline",
            parse_math=False,
            usetex=False,
        )
    heat = [_shade(row.surprisal) for row in chars]
    axes.add_collection(PatchCollection(strips, facecolors=heat, edgecolors="none"))


def _draw_words(axes: Axes, bars: list[Bar], floors: list[float]) -> None:
    """A bar over each word, all on one scale; the values of the highest in each neighbourhood."""
    top = _round_up(max((bar.bits for bar in bars), default=0.0))
    ticks = []
    for line, group in groupby(bars, key=lambda bar: bar.line):
        row, bottom = list(group), floors[line] + 0.03
        heights = [max(0.0, bar.bits) / top * BARS for bar in row]
        axes.bar(
            [bar.left for bar in row],
            heights,
            [bar.right - bar.left for bar in row],
            bottom,
            align="edge",
            color="0.72",
        )
        for bar in peaks(row):
            at = bottom + max(0.0, bar.bits) / top * BARS + 0.02
            axes.text(bar.middle, at, f"{bar.bits:.1f}", size=6.5, color="0.25", ha="center")
        ticks += [(bottom + part * BARS, part * top) for part in (0.0, 0.5, 1.0)]
    for at, _ in ticks:
        axes.axhline(at, color="0.9", linewidth=0.6, zorder=0)
    axes.set_yticks([at for at, _ in ticks], [f"{bits:g}" for _, bits in ticks])
    if bars:
        axes.set_ylabel("word (bits)", size=7, color="0.4")


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


def _without_glyph(characters: set[str], families: list[str]) -> set[str]:
    """The characters that no font has; warns of them, once."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    fonts = [get_font(findfont(FontProperties(family=[name]))) for name in families]
    missing = {c for c in characters if not any(font.get_char_index(ord(c)) for font in fonts)}
    if missing:
        some = " ".join(sorted(missing)[:10]) + (" …" if len(missing) > 10 else "")
        warnings.warn(
            f"no installed font has {len(missing)} of the characters, which are drawn as "
            f"{NO_GLYPH}: {some} Install one that has them, such as Noto Sans CJK for Chinese, "
            "or name it in matplotlib.rcParams['font.family'].",
            stacklevel=5,
        )
    return missing


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


def to_html(chars: Spans, summary: str) -> str:
    """Every character on its colour, its bits where one points; and a line below.

    >>> import charwise
    >>> '>&lt;</span>' in to_html(charwise.load().score("a < b").chars(), "three")
    True
    """
    spans = []
    for char, row in zip(_string(chars[:WRITTEN]), chars, strict=False):
        red, green, blue = COLOUR if row.surprisal >= 0 else COLD
        colour = f"rgba({red},{green},{blue},{_strength(abs(row.surprisal)):.2f})"
        shown = html.escape(glyph(char)) + ("\n" if char == "\n" else "")
        title = f"{row.surprisal:.2f} bits"
        spans.append(f'<span style="background:{colour}" title="{title}">{shown}</span>')
    more = f" … {len(chars) - WRITTEN:,} more" if len(chars) > WRITTEN else ""
    text = f'<div style="white-space:pre-wrap;font-family:monospace">{"".join(spans)}{more}</div>'
    return f'{text}<div style="opacity:0.6;font-size:smaller">{html.escape(summary)}</div>'
