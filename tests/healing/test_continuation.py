"""What a healed completion adds to its prompt, against the plain way to say it."""

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charwise import SortedVocabulary, Vocabulary
from charwise.errors import VocabularyError
from charwise.healing.continuation import Bounds, Continuation
from charwise.healing.forced import HealedPrompt
from charwise.healing.prompt import heal_prompt
from models import examples

TOKENS = [b"a", b"b", b"ab", b"\n", b"ba\n", b"\xc3", b"\xa9", b"\xc3\xa9", b"a\xc3", None]
VOCABULARY = Vocabulary.from_bytes(TOKENS, end_ids=[9], special={9: "<end>"})
TEXT_IDS = st.lists(st.integers(0, 8), max_size=12)
STOPS = st.lists(st.sampled_from(["\n", "ab", "ba", "b\n", "é", "aé", "bab"]), max_size=3)


def after(forced: bytes, ending: bytes = b"") -> HealedPrompt:
    return HealedPrompt([], forced, 0, ending, before=forced[-3:])


@examples(500)
@given(
    TEXT_IDS,
    st.integers(0, 8),
    STOPS,
    st.booleans(),
    st.integers(0, 4),
    st.one_of(st.none(), st.integers(1, 5)),
    st.data(),
)
def test_however_the_tokens_arrive(ids, cut, stops, include, minimum, most, data):
    """One token at a time, stop strings end the new text where they are first complete."""
    every = VOCABULARY.decode(ids)
    forced = every[: min(cut, len(every))]
    expected, stopped, tokens = plainly(ids, forced, stops, include, minimum, most)
    new = Continuation(
        VOCABULARY,
        after(forced),
        Bounds(stops, include, minimum, most),
    )
    text = ""
    at = 0
    while at < len(ids):
        step = data.draw(st.integers(1, 4))
        new.add(ids[at : at + step])
        at += step
        text += new.take()
        assert expected.startswith(text)
    assert text + new.take(final=True) == expected
    assert (new.stopped, new.tokens) == (stopped, tokens)
    assert new.counted == beyond(ids[:tokens], forced)
    assert new.ended == (stopped is not None or new.counted == most)


def beyond(ids, forced):
    """How many of the tokens go beyond the forced text."""
    return sum(len(VOCABULARY.decode(ids[: n + 1])) > len(forced) for n in range(len(ids)))


def plainly(ids, forced, stops, include, minimum, most):
    """(text, stop string, tokens): the new bytes are searched anew after every token."""
    before = b""
    for count in range(1, len(ids) + 1):
        new = VOCABULARY.decode(ids[:count])[len(forced) :]
        # Of the stop strings that are complete now and were not before, the first to be so.
        ends = [
            (begin + len(stop.encode()), begin, stop)
            for stop in stops
            for begin in range(len(new))
            if new.startswith(stop.encode(), begin) and begin + len(stop.encode()) > len(before)
        ]
        if ends and beyond(ids[:count], forced) > minimum:
            end, begin, stop = min(ends)
            return decoded(forced, new[: end if include else begin]), stop, count
        before = new
        if beyond(ids[:count], forced) == most:
            return decoded(forced, new), None, count
    return decoded(forced, before), None, len(ids)


def decoded(forced: bytes, new: bytes) -> str:
    """The characters that begin or end beyond the forced text, complete ones only."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(forced)
    return decoder.decode(new)


def test_a_token_that_leaves_the_forced_text():
    for ids in ([1], [9], [0, 0]):
        with pytest.raises(VocabularyError, match="must go on with"):
            Continuation(VOCABULARY, after(b"ab")).add(ids)


def test_special_tokens_have_no_text():
    new = Continuation(VOCABULARY, after(b"a"))
    new.add([2, 9, 1])
    assert (new.take(), new.tokens, new.ended) == ("bb", 3, False)


def test_a_token_that_ends_the_text_counts():
    new = Continuation(VOCABULARY, after(b"a"), Bounds(ends=[9]))
    new.add([0])
    assert (new.tokens, new.counted) == (1, 0)  # all of it is the prompt's
    new.add([1, 9, 1])
    assert (new.tokens, new.counted, new.closed, new.ended) == (3, 2, True, True)
    assert new.take() == "b"


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_bytes_are_counted_beyond_the_forced_text(most):
    new = Continuation(VOCABULARY, after(b"a"), Bounds(max_bytes=most))
    new.add([2, 7, 1, 1, 1])
    assert new.raw == "béb".encode()[:most]
    assert new.ended
    assert new.take() == ("b" if most < 3 else "béb"[: most - 1])


def test_a_character_that_begins_before_the_forced_text():
    vocabulary = Vocabulary.from_bytes([b"x\xe6", b"\x97", b"\xa5"])
    healed = heal_prompt([0, 1], SortedVocabulary(vocabulary), 1)
    assert (healed.kept, healed.forced) == ([0], b"\x97")
    new = Continuation(vocabulary, healed)
    new.add([1, 2])
    assert new.take(final=True) == "日"


def test_what_a_middle_must_end_with_is_not_part_of_it():
    """Held back until it shows whether the text ends there, and taken off if it does."""
    vocabulary = Vocabulary.from_bytes([b"in", b"de", b"x", b"e", b"y", None], end_ids=[5])
    new = Continuation(vocabulary, after(b"i", b"dex"), Bounds(ends=[5]))
    taken = []
    for id in (0, 1, 2, 4, 1):  # "in", "de", "x", "y", "de"
        new.add([id])
        taken.append(new.take())
    assert taken == ["n", "", "", "dexy", ""]
    new.add([2])
    assert new.take() == ""
    new.add([5])
    assert (new.take(final=True), new.raw) == ("", b"ndexy")
    short = Continuation(vocabulary, after(b"", b"dex"), Bounds(max_tokens=2))
    short.add([0, 1])
    assert short.take() == "inde"  # it did not end: what it would have come to is not known
    stopped = Continuation(vocabulary, after(b"", b"dex"), Bounds("y"))
    stopped.add([1, 2, 4])
    assert (stopped.take(), stopped.stopped) == ("dex", "y")


def test_a_healed_prompt_knows_how_much_it_gave_back():
    index = SortedVocabulary(VOCABULARY)
    assert heal_prompt("aba", index, 2) == HealedPrompt(
        [2], b"a", 1, before=b"aba"
    )  # the first token stays
