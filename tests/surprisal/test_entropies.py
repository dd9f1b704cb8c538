"""Entropies, ranks and reductions: against brute force, and at the letters they belong to."""

import codecs
import math
import random
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import charwise
from charwise import CharLM
from charwise.cursor import expansion
from charwise.errors import VocabularyError, ZeroProbabilityError
from charwise.scoring.effort import Effort
from charwise.surprisal.score import Score
from charwise.surprisal.spans import Span, Spans
from charwise.tokens.words import characters_of
from models import SPACES, Case, Model, cases, entropy, examples, model_of

approx = pytest.approx


# ---- bytes --------------------------------------------------------------------------------------


@given(cases())
@examples(300)
def test_entropies_and_ranks_of_bytes_are_those_of_the_definition(case: Case) -> None:
    """And those after a context are those of the whole text."""
    model, text, lm = case.model, case.text, case.model.exact()
    try:
        plain = lm.score(text)
    except (ZeroProbabilityError, VocabularyError) as error:
        assert model.prefix(text) == 0
        with pytest.raises(type(error)):
            lm.score(text, entropy="byte")
        return
    score = lm.score(text, entropy="byte")
    assert (score.logprobs == plain.logprobs).all()
    assert plain.entropies is plain.ranks is score.distributions is score.char_entropies is None
    rows = np.array([model.next(text[:t]) for t in range(len(text))]).reshape(-1, 257)
    assert score.entropies == approx([entropy(row) for row in rows], rel=1e-9, abs=1e-9)
    for t, byte in enumerate(text):
        above = [1 + int((rows[t] > rows[t, byte] * share).sum()) for share in (1 + 1e-9, 1 - 1e-9)]
        assert above[0] <= score.ranks[t] <= above[1]
    half = len(text) // 2
    part = lm.score(text[half:], context=text[:half], entropy="byte")
    assert part.entropies == approx(score.entropies[half:], rel=1e-9, abs=1e-9)
    assert (part.ranks == score.ranks[half:]).all()


def test_many_texts_have_the_numbers_of_each() -> None:
    lm = charwise.load()
    bos = lm.vocabulary.bos_ids[0]
    texts = ["import os", [bos, "for i in range("], "", "x = 'naïve'", b"\xff\xfe", "a = 1\n" * 90]
    contexts = ["", "x", "import os", "# a long one\n", "", "a"]
    together = lm.scores(texts, contexts=contexts, entropy="byte")
    for text, context, score in zip(texts, contexts, together, strict=True):
        alone = lm.score(text, context=context, entropy="byte")
        assert score.text == alone.text
        assert score.token_ends.tolist() == alone.token_ends.tolist()
        assert score.entropies == approx(alone.entropies, abs=1e-3)
        assert score.logprobs == approx(lm.score(text, context=context).logprobs, abs=1e-4)


@pytest.mark.parametrize("window", [None, 120])
def test_a_long_text_in_windows_and_portions(window: int | None) -> None:
    """A model of the last token alone forgets, at each space, all that came before it."""
    lm = CharLM(model_of([b"a", b"b", b" ", b"ab", b"ba"], 2, 3).windowed(window).lm)
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
    result: defaultdict[str, float] = defaultdict(float)

    def walk(start: bytes, mass: float) -> None:
        row = mass * model.next(text + start)
        for code in np.flatnonzero(row).tolist():
            longer = start + (bytes([code]) if code < 256 else b"|")
            try:
                partial = not codecs.getincrementaldecoder("utf-8")().decode(longer)
            except UnicodeDecodeError:
                partial = False
            if code < 256 and partial:
                walk(longer, float(row[code]))
            else:
                ended = code == 256 and not start
                character = "" if ended else longer.decode("utf-8", "surrogateescape")[0]
                result[character] += row[code]

    walk(b"", 1.0)
    return dict(result)


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
    assert len(score.char_entropies) == len(string)
    starts = edges[:-1].tolist()
    expected = [entropy(characters_after(model, text[:start]).values()) for start in starts]
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
    raw, edges = text.encode(), characters_of(text.encode())[1]
    at = np.arange(len(raw))
    more = {"char_entropies": 1000.0 + edges[:-1]} if chars else {}
    return Score(raw, at * 0.0 - 1, at * 0.0, entropies=at * 1.0, ranks=at + 100, **more)


WORDS, SHORT = score_of(), score_of("a é")
CHARS = score_of("a é", chars=True)


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        (WORDS.words("leading")[1:3], [("  way,", 4, -5, 104), (" é", 9, None, 109)]),
        (WORDS.words("leading")[3:], [(" ", 11, None, 111)]),
        (WORDS.words("trailing")[:2], [("no  ", 0, -4, 100), ("way, ", 4, -5, 104)]),
        (WORDS.words("none")[1:2], [("  ", 2, -2, 102)]),
        (WORDS.spans([(2, 6), (7, 9)]), [("  wa", 4, -2, 104), (", ", 7, -2, 107)]),
        (WORDS.spans([(2, 6)], unit="byte"), [("  wa", 4, -2, 104)]),
        (SHORT.bytes()[1:3], [(" ", 1, -1, 101), ("\\xc3", 2, -1, 102)]),
        (SHORT.chars(), [("a", 0, -1, 100), (" ", 1, -1, 101), ("é", 2, None, 102)]),
        # Characters take their own entropies where there are some.
        (CHARS.chars(), [("a", 1000, -1, 100), (" ", 1001, -1, 101), ("é", 1002, None, 102)]),
        (CHARS.words()[1:], [(" é", 1002, None, 102)]),
        (CHARS.bytes()[:1], [("a", 0, -1, 100)]),
    ],
)
def test_spans_have_the_entropy_at_their_first_letters(spans: Spans, expected: list[Any]) -> None:
    """And bytes and characters that where they are."""
    assert [(row.text, row.entropy, row.reduction, row.rank) for row in spans] == expected
    table = spans.to_pandas()
    assert spans.columns == spans[:1].columns == (*Span._fields[:6], "entropy", "reduction", "rank")
    assert tuple(table) == spans.columns
    assert table.reduction.isna().tolist() == [reduction is None for _, _, reduction, _ in expected]
    assert repr(spans).split()[:9] == list(spans.columns)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("coverage", [0.3, 0.9, 1.0])
def test_the_entropy_of_listed_characters_has_bounds(seed: int, coverage: float) -> None:
    model = model_of(CHARACTERS, 2, seed, power=2.0)
    lm = model.exact()
    for text in ("", "a", "aé"):
        result = lm.next_chars(text, coverage=coverage)
        true = entropy(characters_after(model, text.encode()).values())
        assert result.entropy - 1e-9 <= true <= result.entropy_most + 1e-9
    assert coverage < 1 or result.entropy == approx(result.entropy_most, abs=1e-9)


# ---- the convention "ending" --------------------------------------------------------------------

WITH_SPACES = [
    b"a", b"b", b" ", b"\n", b"a ", b" b", b"ab", b"\n ", b"\xc2", b"\xa0", b"\xc2\xa0", b"b\xc2",
]  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("text", ["ab a\nb", " a b ", "a\u00a0b", "a", "  ", ""])
@pytest.mark.parametrize("context", ["", "b "])
def test_a_word_pays_for_its_end_by_any_whitespace(seed: int, text: str, context: str) -> None:
    model = model_of(WITH_SPACES, 2, seed, zeros=0.1, power=2.0)
    before, raw = context.encode(), text.encode()

    def prefix(t: int) -> float:
        return model.prefix(before + raw[:t])

    try:
        score = model.exact().score(text, context=context, entropy="byte", end=True)
        rows = score.words("ending")
    except ZeroProbabilityError:
        if prefix(len(raw)) > 0:
            after = model.next(before + raw)
            assert after[[*SPACES, 256]].sum() < 1e-12
        return
    plain = score.words("none")
    assert [row.text for row in rows] == [row.text for row in plain]
    cumulative, at = 0.0, 0
    for row in rows:
        begin, at = at, at + len(row.text.encode())
        if not row.text.isspace():
            after = model.next(before + raw[:at])
            ends = after[[*SPACES, 256]].sum()
            if text[row.end : row.end + 1] == "\u00a0":
                ends += prefix(at + 2) / prefix(at)
            expected = -math.log2(prefix(at) * ends / prefix(begin))
            assert row.surprisal == approx(expected, rel=1e-9, abs=1e-9)
        cumulative += row.surprisal
        assert row.cumulative == approx(cumulative, rel=1e-9, abs=1e-9)
        assert row.surprisal >= -1e-12
    total = prefix(len(raw)) / prefix(0)
    if rows and not rows[-1].text.isspace():
        total *= ends
    assert cumulative == approx(-math.log2(total), rel=1e-9, abs=1e-9)


def test_all_sums_of_rows_are_exact() -> None:
    text = "if x:\n    return the_last(of, them)  # é\u00a0à la carte " * 3
    score = charwise.load().score(text, entropy="byte", end=True)
    rows = score.words("ending")
    rng = random.Random(0)
    costs = [row.surprisal for row in rows]
    assert min(costs) >= 0
    for _ in range(50):
        rng.shuffle(costs)
        assert sum(costs) == rows[-1].cumulative


def test_the_error_of_a_word_counts_its_end() -> None:
    ends = np.log([0.5, 0.5, 0.5, 0.5])
    error = np.array([1.0, 2.0, 4.0]) * math.log(2)
    score = Score(b"a b", ends[:3], error, word_ends=ends)
    assert [row.error for row in score.words("ending")] == [3.0, 2.0, 8.0]
