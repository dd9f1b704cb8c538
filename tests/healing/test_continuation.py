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

TOKENS = [b"a", b"b", b"ab", b"\n", b"ba\n", b"\xc3", b"\xa9", b"\xc3\xa9", b"a\xc3", None, None]
VOCABULARY = Vocabulary.from_bytes(TOKENS, end_ids=[9], special={9: "<end>", 10: "<other>"})
STOPS = st.lists(st.sampled_from(["\n", "ab", "ba", "b\n", "é", "aé", "bab"]), max_size=3)


def after(forced: bytes, ending: bytes = b"") -> HealedPrompt:
    return HealedPrompt([], forced, 0, ending, before=forced[-3:])


@st.composite
def completions(draw):
    """Token ids, what is forced of them, and bounds."""
    ids = draw(st.lists(st.integers(0, 8), max_size=12))
    forced = VOCABULARY.decode(ids)[: draw(st.integers(0, 8))]
    ids += draw(st.lists(st.integers(0, 10), max_size=6))
    most = [draw(st.none() | st.integers(1, high)) for high in (5, 9)]
    ends = draw(st.sampled_from([(), (9,)]))
    return (
        ids,
        forced,
        Bounds(draw(STOPS), draw(st.booleans()), draw(st.integers(0, 4)), *most, ends),
    )


@examples(500)
@given(completions(), st.data())
def test_the_new_text_ends_where_a_bound_is_first_reached(case, data):
    """However many tokens arrive at once, by a stop string, an end token, or a count."""
    ids, forced, bounds = case
    expected, stopped, tokens, ended = plainly(ids, forced, bounds)
    new = Continuation(VOCABULARY, after(forced), bounds)
    text, at = "", 0
    while at < len(ids):
        step = data.draw(st.integers(1, 4))
        new.add(ids[at : at + step])
        at += step
        text += new.take()
        assert decoded(forced, expected).startswith(text)
    assert text + new.take(final=True) == decoded(forced, expected)
    assert (new.raw, new.stopped, new.tokens, new.ended) == (expected, stopped, tokens, ended)
    assert new.counted == beyond(ids[:tokens], forced)
    assert new.closed == (ended and ids[tokens - 1] in bounds.ends)


def beyond(ids, forced):
    """How many of the tokens go beyond the forced text; one without bytes may."""
    sizes = [len(VOCABULARY.decode(ids[:n])) for n in range(len(ids) + 1)]
    return sum(sizes[n] >= len(forced) or sizes[n + 1] > len(forced) for n in range(len(ids)))


def plainly(ids, forced, bounds):
    """(bytes, stop string, tokens, ended): the new bytes are searched anew after every token."""
    before = b""
    for count in range(1, len(ids) + 1):
        if (
            len(VOCABULARY.decode(ids[: count - 1])) >= len(forced)
            and ids[count - 1] in bounds.ends
        ):
            return before, None, count, True
        new = VOCABULARY.decode(ids[:count])[len(forced) :]
        # Of the stop strings that are complete now and were not before, the first to be so.
        ends = [
            (begin + len(stop.encode()), begin, stop)
            for stop in bounds.stop
            for begin in range(len(new))
            if new.startswith(stop.encode(), begin) and begin + len(stop.encode()) > len(before)
        ]
        stopped, full = None, bounds.max_tokens
        if ends and beyond(ids[:count], forced) > bounds.min_tokens:
            end, begin, stopped = min(ends)
            new = new[: end if bounds.include_stop else begin]
        short = new[: bounds.max_bytes]
        if stopped or beyond(ids[:count], forced) == full or len(short) == bounds.max_bytes:
            return short, stopped, count, True
        before = new
    return before, None, len(ids), False


def decoded(forced: bytes, new: bytes) -> str:
    """The characters that begin or end beyond the forced text, complete ones only."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(forced)
    return decoder.decode(new)


def test_a_token_that_leaves_the_forced_text_is_an_error():
    for ids in ([1], [9], [0, 0]):
        with pytest.raises(VocabularyError, match="must go on with"):
            Continuation(VOCABULARY, after(b"ab")).add(ids)


def test_a_character_may_begin_before_the_forced_text():
    vocabulary = Vocabulary.from_bytes([b"x\xe6", b"\x97", b"\xa5"])
    healed = heal_prompt([0, 1], SortedVocabulary(vocabulary), 2)  # the first token stays
    assert (healed.kept, healed.forced, healed.removed_tokens) == ([0], b"\x97", 1)
    new = Continuation(vocabulary, healed)
    new.add([1, 2])
    assert new.take(final=True) == "日"


def test_the_ending_of_a_middle_is_held_back_and_taken_off():
    vocabulary = Vocabulary.from_bytes([b"in", b"de", b"x", b"e", b"y", None], end_ids=[5])
    new = Continuation(vocabulary, after(b"i", b"dex"), Bounds(ends=[5]))
    for id, text in ((0, "n"), (1, ""), (2, ""), (4, "dexy"), (1, ""), (2, ""), (5, "")):
        new.add([id])
        assert new.take() == text
    assert (new.take(final=True), new.raw) == ("", b"ndexy")
    for bounds, ids, text in (
        (Bounds(max_tokens=2), [0, 1], "inde"),  # it did not end: the rest is not known
        (Bounds("y"), [1, 2, 4], "dex"),
    ):
        short = Continuation(vocabulary, after(b"", b"dex"), bounds)
        short.add(ids)
        assert short.take() == text
