"""Words and grapheme clusters, in many scripts."""

from __future__ import annotations

import unicodedata
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from charwise.errors import SettingError
from charwise.surprisal.score import Score
from charwise.tokens.words import graphemes, word_edges, words
from models import examples

#: A word each, of scripts that put spaces between words.
SPACED = [
    "word",
    "हिन्दी",
    "क्षत्रिय",
    "தமிழ்",
    "മലയാളം",
    "বাংলা",
    "ગુજરાતી",
    "ਪੰਜਾਬੀ",
    "తెలుగు",
    "ಕನ್ನಡ",
    "සිංහල",
    "שָׁלוֹם",
    "مُدَرِّسَة",
    "می\u200cخواهم",
    "한국어",
    "Ελληνικά",
    "tiếng",
    "አማርኛ",
    "snake_case",
    "don't",
    "l’été",
    "カタカナ",
]
FORMS = [unicodedata.normalize(form, word) for word in SPACED for form in ("NFC", "NFD")]
UNSPACED = ["สวัสดีครับ", "ภาษาลาว ພາສາລາວ", "ភាសាខ្មែរ", "မြန်မာဘာသာ", "你好世界", "ひらがな"]
EMOJI = ["👩‍👩‍👧‍👦", "👍🏽", "🇫🇷", "🏳️‍🌈", "☺️", "e\u0301\u0323", "\u0600 "]


def clusters(text: str) -> set[int]:
    return {0, *(match.end() for match in regex.finditer(r"\X", text))}


TEXTS = st.lists(
    st.one_of(
        st.sampled_from(
            [*FORMS, *UNSPACED, *EMOJI, " ", "\r\n", "\n", ".", ":", "'", "3", "\u0308"]
        ),
        st.text(max_size=3),
    ),
    max_size=8,
).map("".join)


@given(TEXTS)
@examples(300)
def test_no_grapheme_cluster_is_split(text: str) -> None:
    whole = clusters(text)
    assert set(graphemes(text)) == whole
    edges = word_edges(text)
    assert set(edges) <= whole
    assert edges[0] == 0
    assert edges[-1] == len(text)
    assert edges == sorted(set(edges))


@given(TEXTS, st.lists(st.integers(0, 40), max_size=4))
@examples(200)
def test_rows_of_words_split_no_cluster_and_are_all_of_the_text(text: str, at: list[int]) -> None:
    raw = text.encode("utf-8", "replace")
    string = raw.decode()
    zeros = np.zeros(len(raw))
    score = Score(raw, zeros - 1, zeros)
    given: list[Any] = [None, "unicode", [one for one in at if one <= len(string)], word_edges]
    for boundaries in given:
        for convention in ("leading", "trailing", "none"):
            rows = score.words(convention, boundaries=boundaries)  # type: ignore[arg-type]
            assert "".join(row.text for row in rows) == string
            assert {row.end for row in rows} <= clusters(string)
        assert words(string, "ending", boundaries) == words(string, "none", boundaries)
    assert [row.text for row in score.graphemes()] == [
        string[a:b] for a, b in pairwise(sorted(clusters(string)))
    ]


@pytest.mark.parametrize("boundaries", [[6], lambda text: [6]])
def test_boundaries_of_ones_own(boundaries: Any) -> None:
    assert word_edges("สวัสดีครับ", boundaries) == [0, 6, 10]
    assert word_edges("a\u0308b", [1]) == [0, 3]  # not inside a cluster
    with pytest.raises(SettingError):
        word_edges("abc", boundaries)
