"""Next characters and next words: against enumeration, and on distributions from a table."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import pytest

import charwise
import charwise.scoring.rounds
from charwise import CharLM, State
from charwise.constraints.constraint import END
from charwise.cursor import expansion
from charwise.cursor.distributions import NextBytes
from charwise.cursor.expansion import next_chars
from models import SPACES, Model, entropy, model_of

approx = pytest.approx

TOKENS = [b"a", b"b", b" ", b"\n", b"a ", b" b", b"ab", b"ba\n"]


def words_after(model: Model, text: bytes, least: float = 1e-7) -> dict[bytes, float]:
    """Every word of some probability, by enumeration of its beginnings."""
    result, open_ = dict[bytes, float](), [(b"", 1.0)]
    while open_:
        word, mass = open_.pop()
        row = mass * model.next(text + word)
        result[word] = float(row[[*SPACES, 256]].sum())
        open_ += [(word + bytes([code]), float(row[code])) for code in b"ab" if row[code] > least]
    return result


@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize("text", ["", "a", "ab ", " "])
def test_words_and_bounds_are_those_of_the_definition(seed: int, text: str) -> None:
    model = model_of(TOKENS, 2, seed, power=4.0)
    true = words_after(model, text.encode())
    exact = entropy(true.values())  # but for 1e-7 of beginnings, which hide little
    for coverage in (0.3, 0.9, 0.999):
        words = model.exact().next_words(text, coverage=coverage)
        assert list(words.probs.values()) == sorted(words.probs.values(), reverse=True)
        for word, p in words.probs.items():
            assert p == approx(true[word.encode()], rel=1e-9, abs=1e-12)
        assert words.missing == approx(1 - sum(words.probs.values()), abs=1e-12)
        assert words.missing <= 1 - coverage + 1e-12
        assert words.entropy <= exact + 1e-4
        assert words.entropy_most >= exact - 1e-4
        hidden = sum(p for word, p in true.items() if word.decode() not in words.probs)
        assert words.missing == approx(hidden, abs=1e-4)
    assert words.entropy >= exact - 0.05


@pytest.mark.parametrize("seed", range(3))
def test_a_score_has_the_entropies_at_the_beginnings_of_words(seed: int) -> None:
    lm = model_of(TOKENS, 2, seed, power=2.0).exact()
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


def test_a_search_that_is_cut_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expansion, "MOST_WORDS", 5)
    result = charwise.load().next_words("import ")
    assert result.missing > 0.1
    assert result.entropy_most == approx(result.entropy + 20 * result.missing)


def test_states_begin_again_on_new_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = model_of(TOKENS, 2, 1, power=2.0).exact()
    once = lm.next_words("ab ", coverage=0.99)
    monkeypatch.setattr(expansion, "_GENERATION", 3)
    renewals, renewed = [], State.renewed
    monkeypatch.setattr(State, "renewed", lambda state: renewals.append(1) or renewed(state))
    again = lm.next_words("ab ", coverage=0.99)
    assert len(renewals) > 10
    assert again.top(5) == [(word, approx(p, rel=1e-9)) for word, p in once.top(5)]
    assert again.entropy == approx(once.entropy, rel=1e-9)


@pytest.mark.slow
def test_a_word_that_takes_too_much_work_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charwise.scoring.rounds, "MOST_CONTEXTS", 40)
    state = charwise.load().state("x", preset="exact")
    assert state.next_words(coverage=0.99).missing > 0.01


def test_words_complete_a_character_and_hold_bytes_that_are_none() -> None:
    model = model_of([b"\xc3", b"\xa9", b" ", b"a"], 2, 0, power=2.0)
    result = model.exact().next_words(b"a\xc3", coverage=0.9)
    ended = model.next(b"a\xc3\xa9")[[*SPACES, 256]].sum()
    assert result.probs["é"] == approx(model.next(b"a\xc3")[0xA9] * ended, rel=1e-9)
    assert "\udcff" in model_of([b"\xff", b" "], 1, 0).exact().next_words("", coverage=1.0)


def test_progress_counts_the_words_of_each_text() -> None:
    lm, calls = CharLM(model_of(TOKENS, 2, 0).lm), list[tuple[int, int]]()
    lm.scores(["ab a", "b"], entropy="word", progress=lambda *done: calls.append(done))
    assert calls == [(4, 5), (5, 5)]


# ---- characters ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class FixedState:
    """A state after `raw`; what follows it is in the table."""

    table: dict[bytes, NextBytes]
    raw: bytes = b""

    def next(self) -> NextBytes:
        return self.table[self.raw]

    def __add__(self, more: bytes) -> Self:
        return type(self)(self.table, self.raw + more)

    def renewed(self) -> Self:
        return self


def next_bytes(probs: dict[int, float], error: float = 0.0) -> NextBytes:
    row = np.zeros(END + 1)
    row[list(probs)] = list(probs.values())
    return NextBytes(row, error)


#: `a`, the end, a character of two bytes, and one of three.
TABLE = {
    b"": next_bytes({ord("a"): 0.3, END: 0.1, 0xC3: 0.4, 0xE2: 0.2}, error=0.01),
    b"\xc3": next_bytes({0xA9: 0.75, 0xAF: 0.25}, error=0.02),
    b"\xe2": next_bytes({0x82: 1.0}, error=0.03),
    b"\xe2\x82": next_bytes({0xAC: 1.0}, error=0.04),
}


def test_the_error_of_a_byte_counts_by_its_weight():
    result = next_chars(FixedState(TABLE), 1.0)
    assert result.error == approx(0.01 + 0.4 * 0.02 + 0.2 * (0.03 + 0.04))
    assert next_chars(FixedState(TABLE), 0.1).error == 0.01
    assert next_chars(FixedState(TABLE, b"\xe2"), 1.0).error == approx(0.07)
    sure = {b"": next_bytes({0xC3: 1.0}, error=0.9), b"\xc3": next_bytes({0xA9: 1.0}, error=0.9)}
    assert next_chars(FixedState(sure), 1.0).error == 1.0


def test_characters_are_listed_until_there_are_so_many():
    few, more = next_chars(FixedState(TABLE), 0.4), next_chars(FixedState(TABLE), 0.4, least=3)
    assert (list(few), list(more)) == (["é"], ["é", "a", "€"])
    assert list(next_chars(FixedState(TABLE), 0.4, least=100)) == ["é", "a", "€", "ï"]
