"""The next word: against enumeration on tiny models."""

from __future__ import annotations

import math

import numpy as np
import pytest

import charwise
import charwise.scoring.rounds
from charwise import CharLM, State
from charwise.combine import mixture
from charwise.coverings.reference import next_character_probability
from charwise.cursor import next_words
from charwise.cursor.next_words import NextWords
from charwise.errors import SettingError, TokenizationError
from models import Model, model_of
from near import approx

TOKENS = [b"a", b"b", b" ", b"\n", b"a ", b" b", b"ab", b"ba\n"]
SPACES = [byte for byte in range(128) if chr(byte).isspace()]


def words_after(model: Model, text: bytes, least: float = 1e-7) -> dict[bytes, float]:
    """Every word of some probability, by enumeration of its beginnings."""
    found, open_ = dict[bytes, float](), [(b"", 1.0)]
    while open_:
        word, mass = open_.pop()
        row = mass * next_character_probability(text + word, model.p, model.vocabulary)
        found[word] = float(row[[*SPACES, 256]].sum())
        open_ += [(word + bytes([code]), float(row[code])) for code in b"ab" if row[code] > least]
    return found


def entropy(masses: list[float]) -> float:
    return -math.fsum(p * math.log2(p) for p in masses if p > 0)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("text", ["", "a", "ab ", " "])
@pytest.mark.parametrize("coverage", [0.3, 0.9, 0.999])
def test_words_and_bounds_are_those_of_the_definition(
    seed: int, text: str, coverage: float
) -> None:
    model = model_of(TOKENS, 2, seed, power=2.0)
    true = words_after(model, text.encode())
    found = CharLM(model.lm, preset="exact").next_words(text, coverage=coverage)
    assert list(found.probs.values()) == sorted(found.probs.values(), reverse=True)
    for word, p in found.probs.items():
        assert p == approx(true[word.encode()], rel=1e-9, abs=1e-12)
    assert found.missing == approx(1 - sum(found.probs.values()), abs=1e-12)
    assert found.missing <= 1 - coverage + 1e-12
    exact = entropy(list(true.values()))  # but for 1e-7 of beginnings, which hide little
    assert found.entropy <= exact + 1e-4
    assert found.entropy_most >= exact - 1e-4
    hidden = sum(p for word, p in true.items() if word.decode() not in found.probs)
    assert found.missing == approx(hidden, abs=1e-4)
    if coverage == 0.999:
        assert found.entropy >= exact - 0.05
    assert not found.limited


@pytest.mark.parametrize("seed", range(3))
def test_a_score_has_the_entropies_at_the_beginnings_of_words(seed: int) -> None:
    lm = CharLM(model_of(TOKENS, 2, seed, power=2.0).lm, preset="exact")
    score = lm.score("ab a\n b", context="b ", entropy="word", coverage=0.99)
    rows = score.words()
    for row, start in zip(rows, [0, 3, 6], strict=True):
        nxt = lm.next_words("b " + score.text[:start], coverage=0.99)
        assert row.entropy == approx(nxt.entropy, abs=1e-9)
        assert row.entropy_most == approx(nxt.entropy_most, abs=1e-9)
    assert {row.reduction for row in rows} == {None}  # of two lower bounds it would say nothing
    assert [row.start for row in score.chars() if row.entropy is not None] == [0, 3, 6]
    assert [row.start for row in score.bytes() if row.entropy is not None] == [0, 3, 6]
    byte = lm.score("ab a\n b", context="b ", entropy="byte")
    assert [row.rank for row in rows] == [row.rank for row in byte.words()]
    assert (score.logprobs == byte.logprobs).all()
    [inside] = score.spans([(1, 2)])
    assert inside.entropy is inside.entropy_most is inside.reduction is None
    assert score.to_pandas().entropy_most.notna().sum() == 3


def test_a_search_that_is_limited_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(next_words, "MOST", 5)
    found = charwise.load().next_words("import ")
    assert found.limited
    assert found.missing > 0.1
    assert found.entropy_most == found.entropy + 20 * found.missing


def test_states_begin_again_on_new_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = charwise.load()
    once = lm.next_words("import ", coverage=0.3)
    monkeypatch.setattr(next_words, "_GENERATION", 3)
    begun, renewed = [], State._renewed
    monkeypatch.setattr(State, "_renewed", lambda state: begun.append(1) or renewed(state))
    again = lm.next_words("import ", coverage=0.3)
    assert len(begun) > 10
    assert again.top(5) == [(word, approx(p, abs=1e-4)) for word, p in once.top(5)]
    assert again.entropy == approx(once.entropy, abs=1e-3)


def test_a_word_that_is_too_much_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charwise.scoring.rounds, "MOST_CONTEXTS", 40)
    state = charwise.load().state("x", preset="exact")
    found = state.next_words(coverage=0.99)
    assert found.limited
    assert found.missing > 0.01


def test_a_text_that_ends_inside_a_character() -> None:
    model = model_of([b"\xc3", b"\xa9", b" ", b"a"], 2, 0, power=2.0)
    lm = CharLM(model.lm, preset="exact")
    found = lm.next_words(b"a\xc3", coverage=0.999)
    following = next_character_probability(b"a\xc3", model.p, model.vocabulary)
    ended = next_character_probability(b"a\xc3\xa9", model.p, model.vocabulary)
    assert found.probs["é"] == approx(following[0xA9] * ended[[*SPACES, 256]].sum(), rel=1e-9)


def test_progress_is_told_after_the_words_of_each_text() -> None:
    lm, told = CharLM(model_of(TOKENS, 2, 0).lm), list[tuple[int, int]]()
    lm.scores(["ab a", "b"], entropy="word", progress=lambda *done: told.append(done))
    assert told == [(4, 5), (5, 5)]


def test_a_combination_has_words() -> None:
    lm = charwise.load()
    one, two = (
        lm.next_words("raise Val", coverage=0.4),
        mixture([lm, lm]).next_words("raise Val", coverage=0.4),
    )
    assert one.top(1)[0][0] == two.top(1)[0][0] == "ueError"
    assert two.entropy == approx(one.entropy, abs=0.01)


def test_bytes_that_are_no_character_are_words() -> None:
    lm = CharLM(model_of([b"\xff", b" "], 1, 0).lm, preset="exact")
    found = lm.next_words("", coverage=1.0)
    assert "\udcff" in found.probs
    assert "\udcff".encode("utf-8", "surrogateescape") == b"\xff"


def test_what_cannot_be_asked() -> None:
    lm = charwise.load()
    for coverage in (0, 1.5, float("nan"), "all"):
        with pytest.raises(SettingError, match="coverage"):
            lm.next_words("a", coverage=coverage)  # type: ignore[arg-type]
    with pytest.raises(TokenizationError, match="no token of this vocabulary spells"):
        CharLM(model_of([b"a", b"b"], 1, 0).lm).next_words("c")
    with pytest.raises(SettingError, match="k is -1"):
        NextWords({}, 1.0, 0.0).top(-1)
    assert np.isnan(lm.score(" a", entropy="word", coverage=0.01).word_entropies[0]).all()
