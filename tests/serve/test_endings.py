"""Where completions end: lines, blocks, and what follows the cursor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charwise.serve.endings import Rules
from charwise.serve.task import Candidate


@pytest.mark.parametrize(
    ("before", "after", "rules", "new", "kept"),
    [
        (b"x = ", b"", {"until": "line"}, b"1\ny", b"1"),
        (b"x = ", b"", {"until": "line"}, b"1\r\ny", b"1"),
        (b"if x:", b"", {"until": "line"}, b"\n    pass\n", b"\n    pass"),
        (b"    if x:", b"", {"until": "block"}, b"\n        y\n    z\nw", b"\n        y\n    z"),
        (b"def f():", b"", {"until": "block"}, b"\n    y\n\nclass A", b"\n    y"),
        (b"    x = ", b"", {"indent": 4}, b"1\n    y = 2\nz", b"1\n    y = 2"),
        (b"    x = ", b"", {"indent": 4}, b"1\n\n    y = 2", b"1\n\n    y = 2"),
        (b"f(", b")", {}, b"a)", b"a"),
        (b"f(", b")", {}, b"g(a))", b"g(a)"),
        (b"f(", b")", {}, b"g(a)", b"g(a)"),
        (b"x = a", b" + b\n", {}, b" * c + b", b" * c"),
        (b"x = ", b"\n    return x\n", {}, b"1\n    return x\n", b"1"),
        (b"x = ", b"\n    return x\n", {}, b"1\n    ret", b"1"),
        (b"x = ", b"\n    return x\n", {}, b"1\n    y = 2", b"1\n    y = 2"),
    ],
)
def test_endings(
    before: bytes, after: bytes, rules: dict[str, object], new: bytes, kept: bytes
) -> None:
    ending = Rules(before, after, **rules).ending(new, True)  # type: ignore[arg-type]
    assert (new if ending is None else new[: ending.at]) == kept


@given(
    st.text("ab ()\n", max_size=12).map(str.encode),
    st.text("ab ()\n", max_size=12).map(str.encode),
    st.text("ab ()\n", max_size=16).map(str.encode),
    st.sampled_from([None, "line", "block"]),
    st.integers(0, 3),
)
def test_an_ending_is_in_the_text_and_stays_where_it_is(
    before: bytes, after: bytes, new: bytes, until: str | None, indent: int
) -> None:
    rules = Rules(before, after, until=until, indent=indent)
    for size in range(len(new) + 1):
        ending = rules.ending(new[:size], False)
        if ending is not None:
            assert 0 <= ending.at <= size
            later = rules.ending(new, False)
            assert later is not None
            assert later.at <= ending.at
            break


@given(st.text("ab_ ()\n\r", max_size=16))
def test_lengths_to_accept(text: str) -> None:
    one = Candidate(text, text.encode(), 0.0, "stop", None, ())
    assert 0 <= one.accept_word <= len(text)
    assert (one.accept_word > 0) == bool(text)
    assert 0 <= one.accept_line <= len(text)
    assert text[: one.accept_line].strip("\r\n").count("\n") == 0
