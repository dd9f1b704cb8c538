"""Entropies, ranks and reductions: against brute force, and at the letters they belong to."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

import charwise
from charwise import CharLM, Vocabulary
from charwise.cursor import expansion
from charwise.errors import VocabularyError, ZeroProbabilityError
from charwise.scoring.effort import Effort
from charwise.surprisal.score import Score
from charwise.surprisal.spans import Span, Spans
from charwise.tokens.words import characters_of
from models import Case, Model, cases, examples, model_of, random_lm

approx = pytest.approx


def entropy(probabilities: NDArray[np.float64] | list[float]) -> float:
    return -math.fsum(p * math.log2(p) for p in probabilities if p > 0)


def truth(model: Model, text: bytes) -> NDArray[np.float64]:
    """`[len(text), 257]` next-byte distributions, by enumeration."""
    rows = [model.next(text[:t]) for t in range(len(text))]
    return np.array(rows).reshape(-1, 257)


# ---- bytes --------------------------------------------------------------------------------------


@given(cases())
@examples(300)
def test_entropies_and_ranks_of_bytes_are_those_of_the_definition(case: Case) -> None:
    model, text, lm = case.model, case.text, CharLM(case.model.lm)
    try:
        plain = lm.score(text, preset="exact")
    except (ZeroProbabilityError, VocabularyError) as error:
        assert model.prefix(text) == 0
        with pytest.raises(type(error)):
            lm.score(text, preset="exact", entropy="byte")
        return
    score = lm.score(text, preset="exact", entropy="byte")
    assert (score.logprobs == plain.logprobs).all()
    assert score.entropies is not None
    assert score.ranks is not None
    assert plain.entropies is plain.ranks is score.distributions is score.char_entropies is None
    rows = truth(model, text)
    assert score.entropies == approx([entropy(row) for row in rows], rel=1e-9, abs=1e-9)
    for t, byte in enumerate(text):
        above = [1 + int((rows[t] > rows[t, byte] * share).sum()) for share in (1 + 1e-9, 1 - 1e-9)]
        assert above[0] <= score.ranks[t] <= above[1]


@given(cases())
@examples(100)
def test_what_was_given_has_no_entropies_and_changes_none(case: Case) -> None:
    lm, text = CharLM(case.model.lm), case.text
    try:
        whole = lm.score(text, preset="exact", entropy="byte")
    except (ZeroProbabilityError, VocabularyError):
        assert case.model.prefix(text) == 0
        return
    half = len(text) // 2
    part = lm.score(text[half:], context=text[:half], preset="exact", entropy="byte")
    assert part.entropies == approx(whole.entropies[half:], rel=1e-9, abs=1e-9)
    assert (part.ranks == whole.ranks[half:]).all()


def test_many_texts_have_the_entropies_of_each() -> None:
    lm = charwise.load()
    texts = ["import os", "for i in range(", "", "x = 'naïve'"]
    together = lm.scores(texts, entropy="byte")
    for text, score in zip(texts, together, strict=True):
        alone = lm.score(text, entropy="byte")
        assert score.entropies == approx(alone.entropies, abs=1e-3)
        assert score.logprobs == approx(lm.score(text).logprobs, abs=1e-4)


@pytest.mark.parametrize("window", [None, 120])
def test_a_long_text_in_windows_and_portions(window: int | None) -> None:
    """A model of the last token alone forgets, at each space, all that came before it."""
    vocabulary = Vocabulary.from_bytes(
        [b"a", b"b", b" ", b"ab", b"ba", None], end_ids=[5], bos_ids=[5]
    )
    lm = CharLM(random_lm(vocabulary, 2, 3, window=window))
    text = bytes(np.random.default_rng(0).choice(list(b"aabb "), size=400).tolist())
    effort = Effort(9)  # who agrees on one token says the same
    score = lm.score(text, preset=effort, entropy="byte", end=True)
    assert score.entropies.shape == (400,)
    assert score.word_ends.shape == (401,)
    for t in range(100, 400, 7):
        since = text.rindex(b" ", 0, t)
        short = lm.score(text[since : t + 1], preset=effort, entropy="byte", end=True)
        assert score.entropies[t] == approx(short.entropies[-1], abs=1e-9)
        assert score.word_ends[t + 1] == approx(short.word_ends[-1], abs=0.01)


# ---- characters ---------------------------------------------------------------------------------


def characters_after(model: Model, text: bytes) -> dict[str, float]:
    """p(character | text), "" for the end of text, by walking all bytes of all characters."""
    found: defaultdict[str, float] = defaultdict(float)

    def walk(begun: bytes, mass: float) -> None:
        row = model.next(text + begun)
        for code in np.flatnonzero(row).tolist():
            longer = begun + (bytes([code]) if code < 256 else b"|")
            string = longer.decode("utf-8", "surrogateescape")
            if code == 256 and not begun:
                found[""] += mass * row[code]
            elif is_begun(longer):
                walk(longer, mass * float(row[code]))
            else:
                found[string[0]] += mass * row[code]

    walk(b"", 1.0)
    return dict(found)


def is_begun(raw: bytes) -> bool:
    """Whether these bytes are the beginning of a character, and not all of it."""
    return any(
        len(characters_of(raw + more)[0]) == 1 for more in (b"\x80", b"\x80\x80", b"\xa0\x80")
    )


CHARACTERS = [
    b"a", b" ", b"\xc3", b"\xa9", b"\xc3\xa9", b"a\xc3", b"\xa9 ", b"\xe8", b"\xaa", b"\x9e",
    b"\xe8\xaa\x9e", b"\xe8\xaa", b"\xaa\x9ea",
]  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("tolerance", [0.0, 0.3])
def test_entropies_of_characters_are_those_of_the_definition(
    seed: int, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expansion, "HIDDEN_BITS", tolerance)
    model = model_of(CHARACTERS, 2, seed, zeros=0.2, power=2.0)
    lm, text = CharLM(model.lm), "aé 語a".encode()
    try:
        score = lm.score(text, preset="exact", entropy="char")
    except ZeroProbabilityError:
        assert model.prefix(text) == 0
        pytest.skip("this model cannot write it")
    string, edges = characters_of(text)
    assert score.char_entropies is not None
    assert len(score.char_entropies) == len(string)
    expected = [
        entropy(list(characters_after(model, text[:t]).values())) for t in edges[:-1].tolist()
    ]
    if tolerance == 0:
        assert score.char_entropies == approx(expected, rel=1e-9, abs=1e-9)
    else:
        off = np.abs(np.array(expected) - score.char_entropies)
        assert (off <= tolerance).all()
        assert off.max() > 1e-9  # else nothing was spared
    assert [row.entropy for row in score.chars()] == score.char_entropies.tolist()


# ---- spans --------------------------------------------------------------------------------------

TEXT = "no  way, é "


def score_of(text: str = TEXT, chars: bool = False) -> Score:
    """A score whose entropy before each byte is its offset, and rank 100 more."""
    raw = text.encode()
    at = np.arange(len(raw))
    edges = characters_of(raw)[1]
    return Score(
        raw,
        -np.ones(len(raw)),
        np.zeros(len(raw)),
        entropies=at.astype(float),
        ranks=at + 100,
        char_entropies=1000.0 + edges[:-1] if chars else None,
    )


WORDS, SHORT = score_of(), score_of("a é")
CHARS = score_of("a é", chars=True)


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        (
            WORDS.words("leading"),
            [
                ("no", 0, -4, 100),
                ("  way,", 4, -5, 104),
                (" é", 9, None, 109),
                (" ", 11, None, 111),
            ],
        ),
        (
            WORDS.words("trailing"),
            [("no  ", 0, -4, 100), ("way, ", 4, -5, 104), ("é ", 9, None, 109)],
        ),
        (WORDS.words("none")[1:2], [("  ", 2, -2, 102)]),
        (WORDS.spans([(2, 6), (7, 9)]), [("  wa", 4, -2, 104), (", ", 7, -2, 107)]),
        (WORDS.spans([(2, 6)], unit="byte"), [("  wa", 4, -2, 104)]),
        (SHORT.bytes()[:3], [("a", 0, -1, 100), (" ", 1, -1, 101), ("\\xc3", 2, -1, 102)]),
        (SHORT.chars(), [("a", 0, -1, 100), (" ", 1, -1, 101), ("é", 2, None, 102)]),
        # Characters take their own entropies where there are some.
        (CHARS.chars(), [("a", 1000, -1, 100), (" ", 1001, -1, 101), ("é", 1002, None, 102)]),
        (CHARS.words()[1:], [(" é", 1002, None, 102)]),
        (CHARS.bytes()[:1], [("a", 0, -1, 100)]),
    ],
)
def test_spans_are_looked_at_where_their_letters_begin(
    spans: Spans, expected: list[tuple[str, float | None, float | None, int | None]]
) -> None:
    """And bytes and characters where they are."""
    assert [(row.text, row.entropy, row.reduction, row.rank) for row in spans] == expected


def test_tables_have_the_columns_only_where_there_are_entropies() -> None:
    more = ("entropy", "reduction", "rank")
    spans = score_of().words()
    assert spans.columns == (*Span._fields[:6], *more)
    assert spans[:1].columns == spans.columns
    assert "entropy  reduction  rank" in repr(spans)
    assert repr(spans).splitlines()[3].split()[-2:] == ["9.000", "109"]
    plain = charwise.load().score("import os").words()
    assert plain.columns == Span._fields[:6]
    assert "entropy" not in repr(plain)
    pytest.importorskip("pandas", reason="data frames need: pip install 'charwise[tables]'")
    assert tuple(spans.to_pandas().columns[-3:]) == more
    assert spans.to_pandas().reduction.isna().tolist() == [False, False, True, True]
    assert tuple(plain.to_pandas().columns) == Span._fields[:6]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("coverage", [0.3, 0.9, 1.0])
def test_the_entropy_of_listed_characters_has_bounds(seed: int, coverage: float) -> None:
    model = model_of(CHARACTERS, 2, seed, power=2.0)
    lm = model.exact()
    for text in ("", "a", "aé"):
        found = lm.next_chars(text, coverage=coverage)
        true = entropy(list(characters_after(model, text.encode()).values()))
        assert found.entropy - 1e-9 <= true <= found.entropy_most + 1e-9
    assert coverage < 1 or found.entropy == approx(found.entropy_most, abs=1e-9)
