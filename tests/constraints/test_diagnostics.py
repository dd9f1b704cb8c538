"""What is wrong with an expression is said in one line, with the place."""

from __future__ import annotations

from typing import Any

import pytest

from charwise import constraints
from charwise.constraints.constraint import finite
from charwise.errors import ConstraintError

pytest.importorskip("llguidance")


@pytest.mark.parametrize(
    ("make", "text", "position", "says"),
    [
        (constraints.regex, "(", 0, r"at character 0, '\(': unclosed group"),
        (constraints.regex, "a(b|c", 1, r"at character 1, '\(b\|c': unclosed group"),
        (constraints.regex, "a/b(c", 3, r"at character 3, '\(c': unclosed group"),
        (constraints.regex, r"a\/b/(c", 5, r"at character 5, '\(c': unclosed group"),
        (constraints.regex, "é(", 2, r"at character 1, '\(': unclosed group"),
        (constraints.regex, "x" * 3000 + "(", 3000, "at character 3000"),
        (constraints.regex, "1 | 2(", 5, "at character 5"),  # as a numbered line of a grammar
        (constraints.regex, "(?x) a  # one\n  b(  # two", 17, r"at character 17, '\(  # two'"),
        (constraints.regex, "a" + "\n" * 12 + "(b", 13, "at character 13"),
        (constraints.regex, "ab[z-\na]", 3, "at character 3.*invalid character class range"),
        (constraints.regex, "\\", 0, "ends in a lone backslash"),
        (constraints.regex, "é\\\\\\", 4, "ends in a lone backslash"),
        (constraints.grammar, 'start: "é" b', 7, 'line 1, column 8: unknown name: "b"'),
        (constraints.grammar, 'A: "é"\nstart: A\nA: "b"\n', 20, "line 3, column 4: duplicate"),
        (constraints.grammar, 'start: "a" (', 12, "line 1, column 13: Expected token"),
        (
            constraints.grammar,
            "start: A\nA: /b/ /a(/",
            12,
            r"line 2, column 4: in the pattern 'a\(', at character 1",
        ),
        (
            constraints.grammar,
            '\nstart: %json {"type": "strin"}',
            8,
            "line 2, column 8: Invalid type",
        ),
    ],
)
def test_the_place_of_a_mistake(make: Any, text: str, position: int, says: str) -> None:
    with pytest.raises(ConstraintError, match=says) as caught:
        make(text)
    assert caught.value.position == position
    assert "\n" not in str(caught.value)
    assert " | " not in str(caught.value).removeprefix("the regular expression '1 | 2('")


def test_patterns_of_schemas() -> None:
    with pytest.raises(ConstraintError, match=r"in the pattern 'a\(b', at character 1, '\(b': unc"):
        constraints.json_schema({"properties": {"x": {"type": "string", "pattern": "a(b"}}})


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 10_000, '{"a": '])
def test_schemas_that_are_no_json(text: str) -> None:
    with pytest.raises(ConstraintError, match="is no JSON"):
        constraints.json_schema(text)


def test_where_a_schema_is_no_json() -> None:
    with pytest.raises(ConstraintError, match="is no JSON") as caught:
        constraints.json_schema('{"é": }')
    assert caught.value.position == 7


def test_a_grammar_that_is_no_text() -> None:
    with pytest.raises(ConstraintError):
        constraints.grammar('start: "\ud800" <|a|>')


@pytest.mark.parametrize(
    ("grammar", "position"),
    [
        ("start: <[100-200]>", 7),
        ('start: "é" <|end|>', 12),
        ('start: "a" <end> "b"', 11),
        ("start: a\na[max_tokens=3]: /[a-z]+/", 11),
        ("start: a\na[capture, temperature = 0.5]: /[a-z]+/", 20),
    ],
)
def test_what_a_grammar_says_of_tokens_is_refused(grammar: str, position: int) -> None:
    with pytest.raises(ConstraintError, match="constraint is over characters") as caught:
        constraints.grammar(grammar)
    assert caught.value.position == position


@pytest.mark.parametrize(
    ("grammar", "members"),
    [
        ('start: "<a>" /<[01]>/  // <|end|>', ["<a><0>", "<a><1>"]),
        ('# <a> "\nstart: max_tokens\nmax_tokens: "b"', ["b"]),
        ('start: %json {"enum": ["<|a|>", "max_tokens=3"]}', ['"<|a|>"', '"max_tokens=3"']),
        (r'start: /[\/"]<x>/ "\"<"', ['"<x>"<', '/<x>"<']),
    ],
)
def test_what_only_looks_so_is_not(grammar: str, members: list[str]) -> None:
    assert finite(constraints.grammar(grammar), 9) == [one.encode() for one in members]


@pytest.mark.parametrize(
    ("pattern", "member"),
    [
        ("a\nb", "a\nb"),
        ("[\n]/", "\n/"),
        ("(?x) a\n b", "ab"),
        ("(?x)\n a  # the first\n b  # the second\n", "ab"),
        ("(?x) a\\\n b", "a\nb"),
        ("a\\\nb", "a\nb"),
        ("(?x: a\n) b", "a b"),
    ],
)
def test_line_breaks(pattern: str, member: str) -> None:
    assert finite(constraints.regex(pattern), 9) == [member.encode()]
