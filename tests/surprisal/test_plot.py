"""How a score looks: the bars of a figure, and the HTML of a notebook."""

from __future__ import annotations

import html
import re
from pathlib import Path

import numpy as np
import pytest

import charwise
from charwise.errors import SettingError
from charwise.surprisal.plot import to_html
from charwise.surprisal.score import Score
from charwise.tokens.words import Convention

#: What could be taken for markup, or for mathematics; newlines, wide and invisible characters.
ODD = "a <b>&amp;'\"</b> $x_1$\t語 naïve\r\n\n\x00 end".encode() + b"\xff"


def score_of(text: bytes) -> Score:
    rng = np.random.default_rng(0)
    return Score(text, -rng.exponential(3, len(text)), np.zeros(len(text)))


# ---- figures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("convention", ["leading", "trailing", "none"])
@pytest.mark.filterwarnings("ignore:Glyph .* missing from font")
def test_a_figure_has_a_bar_for_every_word(convention: Convention, tmp_path: Path) -> None:
    score = score_of(ODD)
    figure = score.plot(convention)
    [axes] = figure.axes
    rows = [row for row in score.words(convention) if row.text.strip()]
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == [row.text.strip().replace("\x00", "�") for row in rows]
    assert [bar.get_height() for bar in axes.patches] == [row.surprisal for row in rows]
    assert [bar.get_width() for bar in axes.patches] == [len(row.text.strip()) for row in rows]
    figure.savefig(tmp_path / "score.png")
    assert (tmp_path / "score.png").read_bytes().startswith(b"\x89PNG")


def test_lines_have_all_words_and_one_scale() -> None:
    score = charwise.load().score("def total(values):\n    return sum(values)\n" * 5)
    axes = score.plot().axes
    assert len(axes) > 1
    assert sum(len(each.patches) for each in axes) == len(score.words("none")) // 2
    assert len({each.get_ylim() for each in axes}) == 1
    assert all(bar.get_x() + bar.get_width() <= 80 for each in axes for bar in each.patches)


def test_long_and_empty_texts(tmp_path: Path) -> None:
    score_of(b"").plot().savefig(tmp_path / "empty.png")
    with pytest.raises(SettingError, match="Draw at most 50: score a part"):
        score_of(b"word " * 16 * 51).plot()


# ---- notebooks ----------------------------------------------------------------------------------


def text_of(page: str) -> str:
    return html.unescape(re.sub("<[^>]*>", "", page))


def test_notebooks_show_the_text_itself() -> None:
    score = score_of(ODD + b"<script>alert(1)</script>")
    page = score._repr_html_()
    assert set(re.findall(r"<(\w+)", page)) == {"div", "span"}
    assert (
        text_of(page)
        .replace("⏎\n", "⏎")
        .startswith("a <b>&amp;'\"</b> $x_1$⇥語 naïve↩⏎⏎� end�<script>alert(1)</script>")
    )
    assert f"{score.bits:.1f} bits" in page
    titles = re.findall('title="(.*?)"', page)
    assert titles == [f"{row.surprisal:.2f} bits" for row in score.chars()]


def test_long_texts_are_cut_in_notebooks() -> None:
    page = to_html(score_of(b"a" * 6234).chars(), "")
    assert page.count("<span") == 5000
    assert "… 1,234 more" in page
