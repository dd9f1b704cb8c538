"""What a healed completion adds to its prompt, against the plain way to say it."""

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charwise import SortedVocabulary, Vocabulary
from charwise.errors import SettingError, VocabularyError
from charwise.healing.continuation import Bounds, Continuation, Reader
from charwise.healing.prompt import HealedPrompt, heal_prompt
from models import examples

TOKENS = [b"a", b"b", b"ab", b"\n", b"ba\n", b"\xc3", b"\xa9", b"\xc3\xa9", b"a\xc3", None]
VOCABULARY = Vocabulary.from_bytes(TOKENS, end_ids=[9], special={9: "<end>"})
TEXT_IDS = st.lists(st.integers(0, 8), max_size=12)
STOPS = st.lists(st.sampled_from(["\n", "ab", "ba", "b\n", "é", "aé", "bab"]), max_size=3)


def after(forced: bytes, ending: bytes = b"", until: bytes = b"") -> HealedPrompt:
    return HealedPrompt([], forced, 0, ending, until)


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
    told = ""
    at = 0
    while at < len(ids):
        step = data.draw(st.integers(1, 4))
        new.add(ids[at : at + step])
        at += step
        told += new.take()
        assert expected.startswith(told)
        assert new.text.startswith(told)
    assert told + new.take(final=True) == expected == new.text
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


def test_special_tokens():
    hidden, shown = (Continuation(VOCABULARY, after(b"a"), specials=flag) for flag in (False, True))
    for new in (hidden, shown):
        new.add([2, 9])
    assert (hidden.take(), shown.take()) == ("b", "b<end>")


def test_a_token_without_text_that_ends_the_completion_counts():
    new = Continuation(VOCABULARY, after(b"a"), Bounds(max_tokens=2))
    new.add([0])
    assert (new.tokens, new.counted) == (1, 0)  # all of it is the prompt's
    new.add([1])
    new.add_silent()
    assert (new.tokens, new.counted, new.ended) == (3, 2, True)
    new.add_silent()
    assert new.tokens == 3


def test_a_character_that_begins_before_the_forced_text():
    vocabulary = Vocabulary.from_bytes([b"x\xe6", b"\x97", b"\xa5"])
    new = Continuation(vocabulary, HealedPrompt([0], b"\x97", 1))
    new.add([1, 2])
    assert new.take(final=True) == "日"


def test_every_completion_of_a_prompt_is_read_for_itself():
    reader = Reader(VOCABULARY, after(b"ab"), Bounds(("\n",), max_tokens=2))
    assert [reader.text(ids) for ids in ([2, 0, 1], [0, 4], [0, 1, 1, 1, 1])] == ["ab", "a", "bb"]
    assert reader.continuation() is not reader.continuation()


def test_what_is_no_healed_prompt():
    for wrong in ("ab", None, 5, b"ab"):
        with pytest.raises(SettingError, match="give the healed prompt"):
            Continuation(VOCABULARY, wrong)


def test_what_a_middle_must_end_with_is_not_part_of_it():
    """Held back until it shows whether the text ends there, and taken off if it does."""
    vocabulary = Vocabulary.from_bytes([b"in", b"de", b"x", b"e", b"y", None], end_ids=[5])
    new = Continuation(vocabulary, after(b"i", b"dex"))
    taken = []
    for id in (0, 1, 2, 4, 1):  # "in", "de", "x", "y", "de"
        new.add([id])
        taken.append(new.take())
    assert taken == ["n", "", "", "dexy", ""]
    new.add([2])
    assert new.take() == ""
    new.add_silent()
    assert (new.take(final=True), new.text) == ("", "ndexy")
    short = Continuation(vocabulary, after(b"", b"dex"), Bounds(max_tokens=2))
    short.add([0, 1])
    assert short.take() == "inde"  # it did not end: what it would have come to is not known
    stopped = Continuation(vocabulary, after(b"", b"dex"), Bounds("y"))
    stopped.add([1, 2, 4])
    assert (stopped.take(), stopped.stopped) == ("dex", "y")


def test_a_middle_ends_where_it_writes_the_suffix():
    vocabulary = Vocabulary.from_bytes([b"in", b"de", b"x", b"e", b"y", None], end_ids=[5])
    new = Continuation(vocabulary, after(b"i", b"de", b"dexy"), Bounds(include_stop=True))
    taken = []
    for id in (0, 1, 3, 1, 2):  # "in", "de", "e", "de", "x"
        new.add([id])
        taken.append(new.take())
    assert taken == ["n", "", "dee", "", ""]
    new.add([4, 0])
    assert (new.ended, new.closed, new.stopped) == (True, True, None)
    assert (new.take(final=True), new.text) == ("", "ndee")


def test_a_healed_prompt_knows_how_much_it_gave_back():
    index = SortedVocabulary(VOCABULARY)
    assert heal_prompt("aba", index, 2) == ([2], b"a", 1, b"", b"")  # the first token stays
    with pytest.raises(SettingError, match="SortedVocabulary"):
        heal_prompt("aba", VOCABULARY)  # type: ignore[arg-type]
