"""What is wrong with a constraint is said in one line, with the place in what was given."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from charwise import constraints
from charwise.errors import ConstraintError, MissingExtraError

pytest.importorskip("llguidance")


def chain(defines: str) -> str:
    """Rules of a grammar, each of which needs the next."""
    return "".join(f"r{n}{defines}{n + 1}\n" for n in range(1000)) + f'r1000{defines[:-1]}"x"'


#: The maker, what is given, the place (in bytes), and a word of the message.
REFUSED: list[tuple[str, Any, int, str]] = [
    ("regex", "(", 0, r"unclosed group at '\('"),
    ("regex", r"a\/b/(c", 0, r"unclosed group at '\(c'"),
    ("regex", "x" * 3000 + "(", 0, r"unclosed group at '\('"),
    ("regex", "1 | 2(", 0, r"unclosed group at '\('"),  # as a numbered line of a grammar
    ("regex", "(?x) a  # one\n  b(  # two", 0, "unclosed group"),
    ("regex", "ab[z-\na]", 0, "invalid character class range"),
    ("regex", "\\", 0, "lone backslash"),
    ("regex", "é\\\\\\", 0, "lone backslash"),
    ("regex", r"(a)\1", 0, "backreferences"),
    ("regex", r"\ba", 0, "lookarounds"),
    ("regex", r"[a&&b]", 0, "cannot be satisfied|empty"),
    ("regex", "\ud800", 0, "is no text"),
    ("regex", 5, 0, "is a str"),
    ("grammar", 'start: "é" b', 0, "line 1, column 8"),
    ("grammar", 'A: "é"\nstart: A\nA: "b"\n', 0, "line 3, column 4"),
    ("grammar", 'start: "a" (', 0, "line 1, column 13"),
    ("grammar", "start: A\nA: /b/ /a(/", 0, r"unclosed group at '\('"),
    ("grammar", '\nstart: %json {"type": "strin"}', 0, "Invalid type: strin"),
    ("grammar", "start: <[100-200]>", 7, "over characters"),
    ("grammar", 'start: "é" <|end|>', 12, "over characters"),
    ("grammar", "start: a\na[max_tokens=3]: /[a-z]+/", 11, "over characters"),
    ("grammar", "start: a\na[capture, temperature = 0.5]: /[a-z]+/", 20, "over characters"),
    ("grammar", 'start: "\ud800" <|a|>', 13, "."),
    ("grammar", "nonsense", 0, "line 1, column 9"),
    ("grammar", "root ::= (", 9, "line 1, column 10: a parenthesis is not closed"),
    ("grammar", 'root ::= "é" | x', 16, "line 1, column 16: there is no rule 'x'"),
    ("grammar", 'root ::= "a"\nx ::= * "b"', 19, "line 2, column 7: there is nothing to repeat"),
    ("grammar", 'x ::= "a"', 9, "there is no rule 'root'"),
    ("grammar", 'root ::= "a', 9, "column 10.*is no GBNF"),
    ("grammar", r'root ::= "\n\q"', 9, r"column 10: '\"\\\\n\\\\q\"' is no GBNF"),
    ("grammar", r"root ::= [a\d]", 9, "column 10.*is no GBNF"),
    ("grammar", r'root ::= "\ud800"', 10, "is no character"),
    ("grammar", r'root ::= "\UFFFFFFFF"', 10, "is no character"),
    ("grammar", "root ::= [z-a]", 9, "the range 'z' to 'a' is empty"),
    ("grammar", 'root ::= "a"{3,2}', 12, "the least count is above the most"),
    ("grammar", 'root ::= "a" )', 13, "no parenthesis to close"),
    ("grammar", 'root ::= "a"\nx = "b"', 15, "line 2, column 3.*is no GBNF"),
    ("grammar", 'root ::= "a" <[1]>', 13, "is no GBNF"),
    ("grammar", "root ::= " + "(" * 9999 + ")" * 9999, 0, "too deeply nested"),
    ("grammar", 'root ::= root "a"', 0, "no text is in it"),
    ("json_schema", '{"é": }', 0, "no JSON: .*line 1 column 7"),
    ("json_schema", "[" * 100_000, 0, "no JSON"),
    ("json_schema", "1" * 10_000, 0, "no JSON"),
    (
        "json_schema",
        {"properties": {"x": {"type": "string", "pattern": "a(b"}}},
        0,
        "unclosed group",
    ),
    ("json_schema", {"type": "strin"}, 0, "Invalid type: strin"),
    ("grammar", f"root ::= r0\n{chain(' ::= r')}", 0, "1,000 rules"),
    ("grammar", f"start: r0\n{chain(': r')}", 0, "1,000 rules"),
    (
        "json_schema",
        {"$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(1001)}},
        0,
        "1,000 references",
    ),
    ("json_schema", False, 0, "schema is false"),
    ("json_schema", [1], 0, "is an object"),
    ("json_schema", {"a": {1, 2}}, 0, "cannot be written"),
    ("json_schema", '{"type": "null", "type": "string"}', 0, "the key 'type' is repeated"),
    ("json_schema", {"const": float("nan")}, 0, "cannot be written as JSON"),
    ("json_schema", {"exclusiveMinimum": True, "minimum": 2}, 0, r"at \['exclusiveMinimum'\]"),
    ("json_schema", {"items": {"pattern": r"\p{L}"}}, 0, r"at \['items'\]\['pattern'\]"),
    ("json_schema", {"properties": {"a": {"const": 2**64 + 1}}}, 0, "const 18446744073709551617"),
    ("json_schema", '{"const": 0.123456789012345678901234}', 0, "const 0.123456789012345678901234"),
    ("json_schema", '{"const": 1e99999}', 0, "cannot be matched exactly"),
    ("json_schema", '{"const": 1e99999999999999999999}', 0, "no JSON"),
    ("json_schema", '{"multipleOf": 1e9}', 0, "cannot be matched exactly"),
    ("json_schema", {"multipleOf": 0.123456789}, 0, "multipleOf 0.123456789"),
    ("json_schema", {"multipleOf": 0}, 0, "."),
    ("json_schema", '{"const": NaN}', 0, "NaN is no number of JSON"),
    ("json_schema", {"$schema": 5}, 0, "schema is 5"),
    ("json_schema", {"$schema": None}, 0, "schema is None"),
    ("json_schema", {"items": {"$schema": 5}}, 0, "5 is not of type 'string'"),
    ("json_schema", {"x-guidance": 5}, 0, "x-guidance is 5"),
    ("json_schema", {"x-guidance": {"lenient": 5}}, 0, "lenient|invalid type"),
    ("json_schema", {"$id": 5}, 0, "5 is not of type 'string'"),
    ("json_schema", {"$schema": "https://example.org/no-such-draft"}, 0, "schema is wrong"),
    ("json_schema", {"format": 5}, 0, "Expected string"),
    ("json_schema", {"const": "\ud800"}, 0, "."),
    ("json_schema", {"$ref": "#"}, 0, "no text is in it"),
    ("json_schema", {"$ref": "#/$defs/tree"}, 0, "does not exist"),
    *(
        ("json_schema", {"properties": {"a\nb": {"$ref": reference}}}, 0, "schema is wrong")
        for reference in ("#/a\nb", "#/$defs/\r\n", "o\u2028.json", "https://x/\x00z", "#/\x85")
    ),
]


@pytest.mark.parametrize(("make", "value", "position", "says"), REFUSED)
def test_the_place_of_a_mistake(make: str, value: Any, position: int, says: str) -> None:
    with pytest.raises(ConstraintError, match=says) as caught:
        getattr(constraints, make)(value)
    assert caught.value.position == position
    assert str(caught.value).isprintable()
    assert "<state>" not in str(caught.value)


@pytest.mark.parametrize(
    ("grammar", "members"),
    [
        ('start: "<a>" /<[01]>/  // <|end|>', ["<a><0>", "<a><1>"]),
        ('# <a> "\nstart: max_tokens\nmax_tokens: "b"', ["b"]),
        ('start: %json {"enum": ["<|a|>", "max_tokens=3"]}', ['"<|a|>"', '"max_tokens=3"']),
        (r'start: /[\/"]<x>/ "\"<"', ['"<x>"<', '/<x>"<']),
    ],
)
def test_what_only_looks_like_tokens_is_text(grammar: str, members: list[str]) -> None:
    assert constraints.grammar(grammar).members(9) == [one.encode() for one in members]


def test_a_schema_that_is_too_large_says_so_where_it_is() -> None:
    names = [f"k{n}" for n in range(1000)]
    schema = {"properties": {name: {} for name in names}, "additionalProperties": False}
    constraint = constraints.json_schema({"type": "object", **schema})
    with pytest.raises(ConstraintError, match=r"cannot be followed.*2000"):
        constraint.after(b'{"k1')
    # One way at a time is no trouble.
    required = constraints.json_schema({"type": "object", **schema, "required": names})
    assert required.after(b'{"k0":1,"k1":').allowed()[ord("2")]


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'charwise\[constraints\]'"):
        constraints.json_schema({"type": "null"})
