"""Stop strings, against a search at every byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charwise.errors import SettingError
from charwise.tokens.stops import Stops
from models import examples

STRINGS = st.lists(st.text("ab\n", min_size=1, max_size=3), max_size=4)
TEXTS = st.text("ab\n", max_size=9).map(str.encode)


@examples(500)
@given(TEXTS, STRINGS, st.integers(0, 9))
def test_the_one_that_is_complete_first(text, strings, since):
    found = [
        (end, begin)
        for end in range(since + 1, len(text) + 1)
        for begin in range(end)
        if text[begin:end].decode() in strings
    ]
    expected = (min(found)[1], min(found)[0]) if found else None
    assert Stops(strings).first(text, since) == expected
    assert Stops(strings).first(bytearray(text), since) == expected


@examples(300)
@given(TEXTS, STRINGS, st.text("ab\n", max_size=4).map(str.encode))
def test_what_is_held_back_is_enough_and_no_more(text, strings, more):
    stops = Stops(strings)
    held = stops.held(text)
    sent = len(text) - held
    match = stops.first(text + more, since=len(text))
    if match is not None:
        assert match[0] >= sent
    if held:
        assert any(string.encode().startswith(text[sent:]) for string in strings)


@examples(300)
@given(TEXTS, STRINGS, TEXTS)
def test_those_apart_are_found_where_the_new_text_alone_would_have_them(forced, strings, new):
    """So an engine may search them in all that it writes."""
    apart = Stops(strings).safe_after(forced)
    assert set(apart) <= set(strings)
    for string in apart:
        found = (forced + new).find(string.encode())
        alone = new.find(string.encode())
        assert found == (alone + len(forced) if alone >= 0 else -1)


def test_those_that_cannot_be_apart():
    assert Stops(["a", "ba", "c"]).safe_after(b"ab") == ["c"]
    assert Stops([b"\xff", "c"]).safe_after(b"ab") == ["c"]  # no engine searches such a byte


def test_what_is_given():
    assert Stops().strings == Stops(None).strings == Stops([]).strings == ()
    assert Stops("ab").strings == Stops([b"ab"]).strings == Stops(("ab",)).strings == (b"ab",)
    assert not Stops()
    for wrong in ("", b"", [""], ["a", b""], 5, [5], [None], {"a": 1}, 1.5, [["a"]]):
        with pytest.raises(SettingError, match="stop"):
            Stops(wrong)  # type: ignore[arg-type]
