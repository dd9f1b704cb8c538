"""What a healed completion adds to its prompt, against the plain way to say it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charwise import Vocabulary
from charwise.errors import HealingError
from charwise.processors.new_text import Continuation, may_match_in
from models import examples

TOKENS = [b"a", b"b", b"ab", b"\n", b"ba\n", b"\xc3", b"\xa9", b"\xc3\xa9", b"a\xc3", None]
VOCABULARY = Vocabulary.from_bytes(TOKENS, end_ids=[9], special={9: "<end>"})
TEXT_IDS = st.lists(st.integers(0, 8), max_size=12)
STOPS = st.lists(st.sampled_from(["\n", "ab", "ba", "b\n", "é", "aé", "bab"]), max_size=3)


@examples(500)
@given(TEXT_IDS, st.integers(0, 8), STOPS, st.booleans(), st.integers(0, 4), st.data())
def test_however_the_tokens_arrive(ids, cut, stops, include, minimum, data):
    """One token at a time, stop strings end the new text where they are first complete."""
    every = VOCABULARY.decode(ids)
    forced = every[: min(cut, len(every))]
    expected, stopped, tokens = plainly(ids, forced, stops, include, minimum)
    new = Continuation(VOCABULARY, forced, stop=stops, include_stop=include, min_tokens=minimum)
    told = ""
    at = 0
    while at < len(ids):
        step = data.draw(st.integers(1, 4))
        new.add(ids[at : at + step])
        at += step
        told += new.take()
        assert expected.startswith(told)
    assert told + new.take(final=True) == expected
    assert (new.stopped, new.tokens) == (stopped, tokens)


def plainly(ids, forced, stops, include, minimum):
    """(text, stop string, tokens): the text is decoded anew after every token."""
    before = ""
    for count in range(1, len(ids) + 1):
        text = decoded(VOCABULARY.decode(ids[:count]), forced)
        # Of the stop strings that are complete now and were not before, the first to be so.
        ends = [
            (at + len(stop), number)
            for number, stop in enumerate(stops)
            for at in range(len(text))
            if text.startswith(stop, at) and at + len(stop) > len(before)
        ]
        if ends and count > minimum:
            end, number = min(ends)
            stop = stops[number]
            return text[: end if include else end - len(stop)], stop, count
        before = text
    return before, None, len(ids)


def decoded(data: bytes, forced: bytes) -> str:
    """The characters that begin or end beyond the forced text, complete ones only."""
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[: len(forced)])
    return decoder.decode(data[len(forced) :])


def test_a_token_that_leaves_the_forced_text():
    for ids in ([1], [9], [0, 0]):
        with pytest.raises(HealingError, match="must go on with"):
            Continuation(VOCABULARY, b"ab").add(ids)


def test_special_tokens():
    hidden, shown = (Continuation(VOCABULARY, b"a", specials=flag) for flag in (False, True))
    for new in (hidden, shown):
        new.add([2, 9])
    assert (hidden.take(), shown.take()) == ("b", "b<end>")


@examples(300)
@given(st.text("ab\n", max_size=6), st.text("ab\n", min_size=1, max_size=3), st.text("ab\n"))
def test_stop_strings_that_cannot_match_in_the_forced_text(forced, stop, new):
    """Then the engine's own search, in forced and new text, finds the same place."""
    if not may_match_in(forced.encode(), stop):
        found = (forced + new).find(stop)
        assert found == (new.find(stop) + len(forced) if stop in new else -1)
