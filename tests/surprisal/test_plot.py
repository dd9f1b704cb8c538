"""How a score looks: the lines of a figure, what is drawn, and the HTML of a notebook."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure

import charwise
from charwise.errors import SettingError
from charwise.surprisal.plot import HOT, LINES, WRITTEN, glyph, to_html, wrap
from charwise.surprisal.score import Score
from models import examples

# Whether a font has each character depends on the machine.
pytestmark = pytest.mark.filterwarnings("ignore:Glyph .* missing from font")

#: What could be taken for markup, or for mathematics; newlines, wide and invisible characters.
ODD = "a <b>&amp;'\"</b> $x_1$\t語 naïve\r\n\n\x00 end".encode() + b"\xff"


def score_of(text: bytes) -> Score:
    rng = np.random.default_rng(0)
    zeros = np.zeros(len(text))
    return Score(text, -rng.exponential(3, len(text)), zeros, zeros, contexts=0, calls=0)


# ---- lines --------------------------------------------------------------------------------------


@given(st.text(st.sampled_from("ab \n\t語ï"), max_size=80), st.integers(2, 12))
@examples(300)
def test_lines_keep_every_character_and_break_between_words(string: str, columns: int) -> None:
    cells = wrap(string, columns)
    assert len(cells) == len(string)
    taken = [(c.line, c.column + k) for c in cells for k in range(c.width)]
    assert sorted(set(taken)) == taken  # in the order of the text, none twice
    for char, cell in zip(string, cells, strict=True):
        assert cell.width == (2 if char == "語" else 1)
        assert cell.column + cell.width <= columns + char.isspace()
    for at, char in enumerate(string[:-1]):
        assert (char == "\n") <= (cells[at + 1].line == cells[at].line + 1)
    for match in re.finditer(r"\S+", string):
        word = cells[match.start() : match.end()]
        if sum(cell.width for cell in word) <= columns:
            assert len({cell.line for cell in word}) == 1


# ---- figures ------------------------------------------------------------------------------------


def letters(figure: Figure) -> list[str]:
    """What is written in the strip."""
    return [text.get_text() for text in figure.axes[0].texts if text.get_text() != "word (bits)"]


@pytest.mark.parametrize("convention", ["leading", "trailing", "none"])
def test_a_figure_shows_every_character_and_every_word(convention: str, tmp_path: Path) -> None:
    score = score_of(ODD)
    figure = score.plot(convention)  # type: ignore[arg-type]
    strip = figure.axes[0]
    string = ODD[:-1].decode() + "�"
    assert letters(figure) == [glyph(char) for char in string if char != " "]
    [patches] = [found for found in strip.collections if isinstance(found, PatchCollection)]
    heat = 1 - patches.get_facecolors()[:, 2]  # the more bits, the less blue
    bits = [min(HOT, row.surprisal) for row in score.chars()]
    assert np.corrcoef(heat, bits)[0, 1] == pytest.approx(1)
    points = sum(len(line.get_xdata()) for line in strip.lines if line.get_marker() == "o")
    assert points == len(string.split())
    figure.savefig(tmp_path / "score.png")
    figure.savefig(tmp_path / "score.svg")
    assert (tmp_path / "score.png").read_bytes().startswith(b"\x89PNG")
    assert b"</svg>" in (tmp_path / "score.svg").read_bytes()


def test_points_stand_at_their_bits() -> None:
    score = charwise.load().score("def total(values):")
    axes = score.plot().axes[0]
    low, high = axes.get_yticks()
    floor, top = (float(label.get_text()) for label in axes.get_yticklabels())
    [curve] = [line for line in axes.lines if line.get_marker() == "o"]
    found = floor + (np.array(curve.get_ydata()) - low) / (high - low) * (top - floor)
    assert found == pytest.approx([word.surprisal for word in score.words()])


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
    page = Page(to_html(score_of(b"a" * (WRITTEN + 1234))))
    assert sum(tag == "span" for tag, _ in page.tags) == WRITTEN
    assert "… 1,234 more" in page.text
