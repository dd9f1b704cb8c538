"""How a score looks: the lines of a figure, what is drawn, and the HTML of a notebook."""

from __future__ import annotations

import re
import sys
import warnings
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager, get_font

import charwise
from charwise.errors import MissingExtraError, SettingError
from charwise.surprisal import plot
from charwise.surprisal.offsets import Convention
from charwise.surprisal.plot import (
    COLUMN,
    HOT,
    LINES,
    NO_GLYPH,
    WRITTEN,
    Bar,
    glyph,
    peaks,
    to_html,
    wrap,
)
from charwise.surprisal.score import Score
from models import examples

# Which fonts there are depends on the machine.
pytestmark = pytest.mark.filterwarnings("ignore:no installed font has")

#: What could be taken for markup, or for mathematics; newlines, wide and invisible characters.
ODD = "a <b>&amp;'\"</b> $x_1$\t語 naïve\r\n\n\x00 end".encode() + b"\xff"


def score_of(text: bytes) -> Score:
    rng = np.random.default_rng(0)
    return Score(text, -rng.exponential(3, len(text)), np.zeros(len(text)))


# ---- lines --------------------------------------------------------------------------------------


@given(st.text(st.sampled_from("ab \n\t語ï"), max_size=80), st.integers(2, 12))
@examples(300)
def test_lines_keep_every_character_and_break_between_words(string: str, columns: int) -> None:
    boxes = wrap(string, columns)
    assert len(boxes) == len(string)
    taken = [(c.line, c.column + k) for c in boxes for k in range(c.width)]
    assert sorted(set(taken)) == taken  # in the order of the text, none twice
    for char, box in zip(string, boxes, strict=True):
        assert box.width == (2 if char == "語" else 1)
        assert box.column + box.width <= columns + char.isspace()
    for at, char in enumerate(string[:-1]):
        assert (char == "\n") <= (boxes[at + 1].line == boxes[at].line + 1)
    for match in re.finditer(r"\S+", string):
        word = boxes[match.start() : match.end()]
        if sum(box.width for box in word) <= columns:
            assert len({box.line for box in word}) == 1


# ---- figures ------------------------------------------------------------------------------------


def letters(figure: Figure) -> list[str]:
    """What is written in the strip: all but the values of the words."""
    return [t.get_text() for t in figure.axes[0].texts if t.get_fontsize() > 7]


@pytest.fixture
def every_glyph(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine whose fonts have all characters."""
    monkeypatch.setattr(plot, "_without_glyph", lambda characters, families: set())


@pytest.mark.parametrize("convention", ["leading", "trailing", "none"])
@pytest.mark.filterwarnings("ignore:Glyph .* missing from font")
def test_a_figure_shows_every_character_and_every_word(
    convention: Convention, tmp_path: Path, every_glyph: None
) -> None:
    score = score_of(ODD)
    figure = score.plot(convention)
    strip = figure.axes[0]
    string = ODD[:-1].decode() + "�"
    assert letters(figure) == [glyph(char) for char in string if char != " "]
    [patches] = [found for found in strip.collections if isinstance(found, PatchCollection)]
    heat = 1 - patches.get_facecolors()[:, 2]  # the more bits, the less blue
    bits = [min(HOT, row.surprisal) for row in score.chars()]
    assert np.corrcoef(heat, bits)[0, 1] == pytest.approx(1)
    assert len(strip.patches) == len(string.split())
    figure.savefig(tmp_path / "score.png")
    figure.savefig(tmp_path / "score.svg")
    assert (tmp_path / "score.png").read_bytes().startswith(b"\x89PNG")
    assert b"</svg>" in (tmp_path / "score.svg").read_bytes()


def test_bars_are_as_high_as_their_bits_and_as_wide_as_their_words() -> None:
    score = charwise.load().score("def total(values):")
    axes = score.plot().axes[0]
    low, _, high = axes.get_yticks()
    floor, middle, top = (float(label.get_text()) for label in axes.get_yticklabels())
    assert middle == (floor + top) / 2
    found = [floor + bar.get_height() / (high - low) * (top - floor) for bar in axes.patches]
    assert found == pytest.approx([word.surprisal for word in score.words()])
    assert [bar.get_x() for bar in axes.patches] == pytest.approx([0, 4 * COLUMN])
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([3 * COLUMN, 14 * COLUMN])
    assert {line.get_ydata()[0] for line in axes.lines} == set(axes.get_yticks())  # no other line


def test_peaks_have_their_values() -> None:
    score = score_of(b"a peak is where both neighbours are lower")
    figure = score.plot()
    bits = [word.surprisal for word in score.words()]
    highest = [
        b for a, b, c in zip([-1.0, *bits], bits, [*bits[1:], -1.0], strict=False) if a < b >= c
    ]
    values = [t.get_text() for t in figure.axes[0].texts if t.get_fontsize() < 7]
    assert len(values) >= 2
    assert values == [f"{b:.1f}" for b in highest]


@given(st.lists(st.floats(0, 50), max_size=20))
@examples(100)
def test_values_of_peaks_do_not_overlap(heights: list[float]) -> None:
    bars = [Bar(0, n * 0.1, n * 0.1 + 0.08, bits) for n, bits in enumerate(heights)]
    found = peaks(bars)
    assert (max(bars, key=lambda bar: bar.bits).bits in [bar.bits for bar in found]) if bars else 1
    gaps = np.diff([bar.middle for bar in found])
    assert (gaps >= 0.3).all()


def test_characters_that_no_font_has_are_named_once(tmp_path: Path) -> None:
    """U+10FFFF is a character of nobody, and Egyptian hieroglyphs are in hardly any font."""
    fonts = [font for font in fontManager.ttflist if "Last Resort" not in font.name]
    if any(get_font(font.fname).get_char_index(ord("𓀀")) for font in fonts):
        pytest.skip("this machine has hieroglyphs")
    text = "a 𓀀𓀁 𓀀 b"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure = score_of(text.encode()).plot()
        figure.savefig(tmp_path / "score.png")
    [warning] = caught
    assert "no installed font has 2 of the characters" in str(warning.message)
    assert "𓀀 𓀁" in str(warning.message)
    assert warning.filename == __file__
    assert letters(figure) == ["a", NO_GLYPH, NO_GLYPH, NO_GLYPH, "b"]


def test_without_matplotlib_a_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'charwise\[plots\]'"):
        score_of(b"a").plot()


def test_long_and_empty_texts(tmp_path: Path) -> None:
    short, long = score_of(b"word " * 10).plot(), score_of(b"word " * 100).plot()
    assert long.get_figheight() > short.get_figheight()
    assert long.get_figwidth() < 10
    score_of(b"").plot().savefig(tmp_path / "empty.png")
    with pytest.raises(SettingError, match=f"Draw at most {LINES}: score a part"):
        score_of(b"\n" * (LINES + 1)).plot()


# ---- notebooks ----------------------------------------------------------------------------------


class Page(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_notebooks_show_the_text_itself() -> None:
    score = score_of(ODD + b"<script>alert(1)</script>")
    page = Page(score._repr_html_())
    assert {tag for tag, _ in page.tags} == {"div", "span"}
    assert page.text.replace("⏎\n", "⏎").startswith(
        "a <b>&amp;'\"</b> $x_1$⇥語 naïve↩⏎⏎� end�<script>alert(1)</script>"
    )
    assert f"{score.bits:.1f} bits" in page.text
    titles = [attributes["title"] for tag, attributes in page.tags if tag == "span"]
    assert titles == [f"{row.surprisal:.2f} bits" for row in score.chars()]


def test_long_texts_are_cut_in_notebooks() -> None:
    page = Page(to_html(score_of(b"a" * (WRITTEN + 1234)).chars(), ""))
    assert sum(tag == "span" for tag, _ in page.tags) == WRITTEN
    assert "… 1,234 more" in page.text
