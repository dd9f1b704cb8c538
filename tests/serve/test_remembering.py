"""What is known of texts: a server that remembers answers as a model that does not."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import charwise
from charwise import CharLM
from charwise.cursor.options import GenerationOptions, Limit
from charwise.serve.completions import Completions
from charwise.serve.memory import Memory, _common
from charwise.serve.stoppable import Stopped
from charwise.serve.suggestion_cache import SuggestionCache, _rest_of
from charwise.serve.task import Candidate, CompletionTask, Piece
from models import After, Case, cases, examples

SEEDED = GenerationOptions(seed=0)

CODE = b"import os\n\n\ndef names(path):\n    return [n for n in os.listdir(path) if n]\n"


@given(cases(), st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3)), max_size=6))
@examples(40)
def test_states_from_memory_are_those_of_the_model(
    case: Case, edits: list[tuple[int, int]]
) -> None:
    lm = CharLM(case.model.lm, preset="exact")
    memory, text = Memory(lm), case.text
    for cut, more in edits:
        text = text[:cut] + case.text[:more]
        opening, whole = lm.vocabulary.split_prompt(text)
        try:
            expected = lm.next(text).probs
        except charwise.errors.CharwiseError:
            with pytest.raises(charwise.errors.CharwiseError):
                memory.after(opening, whole).state.next()
            continue
        found = memory.after(opening, whole).state
        assert found.raw == text
        np.testing.assert_allclose(found.next().probs, expected, rtol=1e-9, atol=1e-12)


def assert_near(memory: Memory, at: int) -> None:
    """What is known after a part of the code is near what a new state says."""
    state = memory.after(memory.lm.vocabulary.split_prompt("")[0], CODE[:at]).state
    assert state.raw == CODE[:at]
    assert np.abs(state.next().probs - memory.lm.next(CODE[:at]).probs).sum() / 2 < 0.05


@pytest.mark.slow
def test_typing_and_deleting_stays_near_a_new_state() -> None:
    memory, rng, at = Memory(charwise.load()), random.Random(3), 12
    for _ in range(60):
        at = min(len(CODE), max(1, at + rng.choice([1, 1, 1, -1, 7, -4])))
        assert_near(memory, at)
    assert memory.trees < 6


@pytest.mark.parametrize("calls", range(6))
def test_a_prompt_that_was_given_up_is_not_read_again(calls: int) -> None:
    """A key that comes while a prompt is read goes on from what was read."""
    completions = Completions(charwise.load())
    lm, code = completions.lm, (CODE * 20).decode()
    with pytest.raises(Stopped):
        completions.answer(CompletionTask(code, max_tokens=20), Limit(cancel=After(calls)))
    made = completions.engine.calls
    assert made <= calls
    trees = completions.memory.trees
    found = completions.answer(
        CompletionTask(code + "\ndef na", max_bytes=3, options=SEEDED), Limit()
    )
    assert completions.memory.trees == 1
    assert trees == (calls > 0)
    assert found.candidates[0].raw == lm.complete(code + "\ndef na", max_new_bytes=3)[0].raw
    state = completions.memory.after(*lm.vocabulary.split_prompt(code + "\ndef na")).state
    expected = lm.next(code + "\ndef na").probs
    assert np.abs(state.next().probs - expected).sum() / 2 < 0.05


def test_two_texts_do_not_disturb_each_other() -> None:
    lm = charwise.load()
    memory, opening = Memory(lm), lm.vocabulary.split_prompt("")[0]
    other = b"class Tree:\n    def __init__(self):\n        self.root = None\n"
    for at in range(8, 40):
        for text in (CODE, other):
            assert memory.after(opening, text[:at]).state.raw == text[:at]
    assert memory.trees == 2
    assert len(memory) == 2


def test_what_is_kept_is_bounded() -> None:
    most = 2**23
    completions = Completions(charwise.load(), most_bytes=most)
    free, largest = Completions(charwise.load()), 0
    for number in range(9):
        text = f"x{number} = " + CODE.decode() * 2
        for typed in ("", "for"):
            asked = CompletionTask(text + typed, max_bytes=4, options=SEEDED)
            found = completions.answer(asked, Limit()).candidates
            assert completions.size <= most
            assert found[0].raw == free.answer(asked, Limit()).candidates[0].raw
            assert found[0].logprob == pytest.approx(
                free.answer(asked, Limit()).candidates[0].logprob, abs=0.02
            )
        largest = max(largest, completions.size)
    assert largest > most // 2
    assert free.size > 2 * most
    assert len(completions.memory) < 9


def test_what_is_cut_is_evaluated_again() -> None:
    """After the contexts before a state were dropped, deletions and additions go on."""
    lm = charwise.load()
    memory, opening = Memory(lm), lm.vocabulary.split_prompt("")[0]
    for at in range(30, 60):
        memory.after(opening, CODE[:at])
    size = memory.size
    memory.thin(2**40)
    assert memory.size < size / 2
    for at in (59, 45, 46, 70, 31, 60):
        memory.thin(2**40)
        assert_near(memory, at)
    assert memory.trees == 1
    busy = memory.after(opening, CODE[:60]).state.shared
    size = memory.size
    memory.thin(2**40, {id(busy)})
    assert memory.size == size


@given(st.binary(max_size=12), st.binary(max_size=12))
def test_common(one: bytes, other: bytes) -> None:
    size = _common(one, other)
    assert one[:size] == other[:size]
    assert one[size : size + 1] != other[size : size + 1] or size == min(len(one), len(other))


def candidate(text: bytes, finish: str = "line") -> Candidate:
    pieces = tuple(Piece(text[at : at + 3], -0.5, at) for at in range(0, len(text), 3))
    return Candidate(text.decode(), text, -0.5 * len(pieces), finish, None, pieces)


def test_what_is_left_of_an_offer() -> None:
    rest = _rest_of(candidate(b"numpy as np"), b"nump", b"import nump")
    assert rest is not None
    assert rest.text == "y as np"
    assert b"".join(piece.raw for piece in rest.pieces) == b"y as np"
    assert rest.logprob == -1.5
    assert _rest_of(candidate(b"numpy"), b"numb", b"numb") is None
    assert _rest_of(candidate(b"numpy"), b"numpy", b"numpy") is None
    assert _rest_of(candidate(b"numpy", "length"), b"num", b"num") is None  # too little of it
    assert _rest_of(candidate(b"numpy", "length"), b"nu", b"nu") is not None
    assert _rest_of(candidate(b"numpy", "time"), b"", b"") is None
    assert _rest_of(candidate(b"numpy", "time"), b"n", b"n") is None  # more time may be there now


@pytest.mark.parametrize("finish", ["time", "length", "window"])
def test_a_last_line_that_was_cut_is_not_offered_for_a_whole_one(finish: str) -> None:
    cut = candidate(b"er()\n    parser.add_argument('---', act", finish)
    assert _rest_of(cut, b"er(", b"er(") is not None
    assert _rest_of(cut, b"er()\n  ", b"er()\n  ") is None
    assert _rest_of(cut, b"er()", b"er()") is None  # the end of a line is no whole one
    assert _rest_of(candidate(b"s\r\nimport o", finish), b"s", b"s") is None
    assert _rest_of(candidate(b"s\n\nx = 1\ny", finish), b"s", b"s") is not None
    whole = replace(cut, finish="stop")
    assert _rest_of(whole, b"er()\n  ", b"er()\n  ") is not None


def test_a_cut_line_is_drawn_anew_where_the_cursor_has_come_to_it() -> None:
    completions, fresh = Completions(charwise.load()), Completions(charwise.load())
    text = "def main():\n    parser = argparse.ArgumentParser("
    offer = completions.answer(CompletionTask(text, max_tokens=18), Limit()).candidates[0].text
    line, cut = offer.split("\n")
    assert line == ")"
    for typed in (line, f"{line}\n{cut[:9]}"):
        asked = CompletionTask(text + typed, max_tokens=18)
        answer = completions.answer(asked, Limit())
        assert not answer.from_memory
        assert answer.candidates[0].text == fresh.answer(asked, Limit()).candidates[0].text


def test_deleting_and_typing_again_shows_what_was_offered_there() -> None:
    cache = SuggestionCache()
    cache.add("key", b"import nu", (candidate(b"mpy as np\nimport os\n", "length"),))
    cache.add("key", b"import n", (candidate(b"umpy as np\nimport", "length"),))
    [again] = cache.lookup("key", b"import nu")
    assert again.text == "mpy as np\nimport os\n"
    [other] = cache.lookup("key", b"import num")  # the latest that it goes on from
    assert other.text == "py as np\nimport"


def test_offers_are_kept_by_request_and_text() -> None:
    cache = SuggestionCache()
    cache.add("one", b"import ", (candidate(b"numpy as np"), candidate(b"os")))
    assert [rest.text for rest in cache.lookup("one", b"import n")] == ["umpy as np"]
    assert [rest.text for rest in cache.lookup("one", b"import o")] == ["s"]
    assert cache.lookup("one", b"import x") == ()
    assert cache.lookup("other", b"import n") == ()
    for number in range(600):
        cache.add("one", b"%d" % number, ())
    assert len(cache) == 512


def test_typing_along_an_offer_asks_no_model() -> None:
    completions = Completions(charwise.load())
    text = "import os\nimport sys\nimport nu"
    first = completions.answer(CompletionTask(text, until="line", max_tokens=20), Limit())
    offer = first.candidates[0].text
    assert not first.from_memory
    calls = completions.engine.calls
    for size in range(1, len(offer)):
        asked = CompletionTask(text + offer[:size], until="line", max_tokens=20)
        again = completions.answer(asked, Limit())
        assert again.from_memory
        assert again.candidates[0].text == offer[size:]
    assert completions.engine.calls == calls


def test_who_asks_with_a_seed_gets_no_remembered_answer() -> None:
    completions = Completions(charwise.load())
    for _ in range(2):
        asked = CompletionTask("import nump", max_tokens=2, options=SEEDED)
        assert not completions.answer(asked, Limit()).from_memory


def test_several_candidates_come_with_their_probability() -> None:
    lm = charwise.load()
    completions = Completions(lm)
    found = completions.answer(
        CompletionTask("import s", options=GenerationOptions(n=4), max_bytes=12, until="line"),
        Limit(),
    )
    texts = [one.raw for one in found.candidates]
    assert len(set(texts)) == len(texts) > 2
    whole = lm.score("import s" + found.candidates[0].text, context="").logprobs[8:].sum()
    # That of the tokens drawn is at most that of all tokens that spell the text.
    assert found.candidates[0].logprob <= whole + 0.05
    assert found.candidates[0].logprob == pytest.approx(whole, abs=0.5)
