"""Where completions end: lines, blocks, and what follows the cursor."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from charwise.serve.stop_rules import StopRules

FILLS_IN = {"fills_in": True}
LINE, BLOCK = {"until": "line"}, {"until": "block"}
RETURN = b"\n    return x\n"

#: The text on both sides, the rules, and what is left of each completion.
ENDINGS: list[tuple[bytes, bytes, dict[str, Any], dict[bytes, bytes]]] = [
    (b"x = ", b"", LINE, {b"1\ny": b"1", b"1\r\ny": b"1"}),
    (b"if x:", b"", LINE, {b"\n    pass\n": b"\n    pass"}),
    (b"    if x:", b"", BLOCK, {b"\n        y\n    z\nw": b"\n        y\n    z"}),
    (b"def f():", b"", BLOCK, {b"\n    y\n\nclass A": b"\n    y"}),
    (b"    x = ", b"", {"indent": 4}, {b"1\n    y = 2\nz": b"1\n    y = 2"}),
    (b"    x = ", b"", {"indent": 4}, {b"1\n\n    y = 2": b"1\n\n    y = 2"}),
    # The rest of the line is not written again, and middles that are right stay.
    (b"f(", b")", {}, {b"a)": b"a", b"g(a))": b"g(a)", b"g(a)": b"g(a)", b"a\nb": b"a"}),
    (b"f(", b")", {}, {b"'a\\'b')": b"'a\\'b'"}),
    (b"f(", b") + 1", {}, {b"a + b)": b"a + b"}),
    (b"x = a", b" + b\n", {}, {b" * c + b": b" * c"}),
    (b"x = a", b" + 1", {}, {b" +": b""}),
    (b"x = ", b" + 1", {}, {b"a + b": b"a + b"}),
    (b"for i in rang", b"(10):\n", {}, {b"e(0, 2):": b"e", b"e(len(": b"e"}),
    (b"for i in ra", b"e(10):\n", {}, {b"nge(0, 2):": b"ng"}),
    (b"fn f(", b") {\n", {}, {b"x: &'a str) {": b"x: &'a str"}),
    (b"(it ", b").", {}, {b"isn't).": b"isn't"}),
    (b"print(", b")", {}, {b'":)"': b'":)"'}),
    (b"print(", b"name)", {}, {b"first_n": b"first_n"}),
    (b"x = foo", b"(10)", {}, {b" if bar(3) else baz": b" if bar(3) else baz"}),
    # A model that fills in may write several lines before it.
    (b"f(", b")", FILLS_IN, {b"  # it's\n    a)": b"  # it's\n    a"}),
    (b"f(", b")", FILLS_IN, {b'"""a\nc) """)': b'"""a\nc) """', b'"""a\nc) """': b'"""a\nc) """'}),
    (b"f(", b")", FILLS_IN, {b"\n    a,\n    b,\n)": b"\n    a,\n    b,\n"}),
    (b"f(", b")", FILLS_IN, {b"\n    g(a),\n": b"\n    g(a),\n"}),
    (b"x = [", b"] + y", FILLS_IN, {b"\n    1,\n] + y\nz": b"\n    1,\n"}),
    (b"x = ", b" + 1", FILLS_IN, {b"(a\n + b)": b"(a\n + b)"}),
    (b"x = ", b" + foo", FILLS_IN, {b"(a\n) + fo": b"(a\n) + fo", b"(a\n) +": b"(a\n)"}),
    (b"x = f(", b")", LINE | FILLS_IN, {b"\n    a,\n": b""}),
    *[(b"f(ind", b"ex):" + RETURN, it | FILLS_IN, {b"ex)\n\nx": b""}) for it in (LINE, BLOCK)],
    # Whole lines come before a line.
    (b"", b"x = 1\n", {}, dict.fromkeys((b"import os\n", b"import os\nx = 1\ny"), b"import os\n")),
    (b"y\n", b"x = 1\n", LINE, {b"import os\nimport re": b"import os\n"}),
    # The next line is not written again.
    (b"x = ", RETURN, {}, {b"1" + RETURN: b"1", b"1\n    ret": b"1", b"1\n    y": b"1\n    y"}),
    (b"f():\n    ", RETURN, {}, {b"return x": b"", b"return x\n": b"", b"return y": b"return y"}),
    (b"f():\n    ", RETURN, {}, {b"y = 2" + RETURN: b"y = 2"}),
]


@pytest.mark.parametrize(("before", "after", "rules", "endings"), ENDINGS)
def test_a_completion_ends_by_its_rules(
    before: bytes, after: bytes, rules: dict[str, Any], endings: dict[bytes, bytes]
) -> None:
    for new, kept in endings.items():
        ending = StopRules(before, after, **rules).ending(new, "end")
        assert (new if ending is None else new[: ending.at]) == kept


@pytest.mark.parametrize("finish", ["length", "window", "time"])
def test_a_limit_leaves_one_line_of_a_middle(finish: str) -> None:
    """The model did not come back to the rest of the line."""
    rules = StopRules(b"f(", b")", fills_in=True)
    assert rules.ending(b"a,\nb,\n") is None
    assert rules.ending(b"a,\nb,\n", "end") is None
    ending = rules.ending(b"a,\nb,\n", finish)
    assert ending is not None
    assert ending.at == rules.safe(b"a,\nb,\n") == 2


PARTS = st.lists(
    st.sampled_from(
        [b"a", b"(", b")", b"foo", b"b", b"\n", b"\n\n", b"    ", b" ", b'"', b",", b"]", b"\r\n"]
    ),
    max_size=8,
).map(b"".join)
TEXTS = st.text("ab ()\n", max_size=12).map(str.encode) | PARTS
UNTIL = st.sampled_from([None, "line", "block"])


@settings(max_examples=10 * settings().max_examples)
@given(TEXTS, TEXTS, TEXTS, UNTIL, st.integers(0, 3), st.booleans())
@example(b"y = ", b"foo(a)\n", b"x = foo(b)\nmore", None, 0, True)
@example(b"def f(ind", b"ex):\n    return x\n", b"ex)\n    return", "block", 0, True)
def test_what_is_safe_no_later_ending_takes_back(
    before: bytes, after: bytes, new: bytes, until: str | None, indent: int, fills_in: bool
) -> None:
    """Whatever follows, and whatever ends it: a stream has sent it. An ending stays in the text."""
    rules = StopRules(before, after, until=until, indent=indent, fills_in=fills_in)
    safe = 0
    for size in range(len(new) + 1):
        for finish in ("", "end", "stop", "length", "window", "time"):
            ending = rules.ending(new[:size], finish)
            assert ending is None or safe <= ending.at <= size
        if (ending := rules.ending(new[:size])) is not None:
            later = rules.ending(new)
            assert later is not None
            assert later.at <= ending.at
            break
        safe = max(safe, rules.safe(new[:size]))


@given(TEXTS, TEXTS, TEXTS, st.booleans())
def test_the_rest_of_the_line_is_never_there_twice(
    before: bytes, after: bytes, new: bytes, fills_in: bool
) -> None:
    """Where all that was written ends with the rest of the line, and with no bracket open."""
    rest = after.split(b"\n")[0]
    ending = StopRules(before, after, fills_in=fills_in).ending(new + rest, "end")
    closed = new.count(b"(") == new.count(b")") == 0
    if rest.strip() and before.rsplit(b"\n")[-1].strip() and closed:
        assert ending is not None
        assert ending.at <= len(new)
