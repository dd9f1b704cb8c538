"""What may follow, against the definition: a byte may, if some member goes on with it."""

from __future__ import annotations

import itertools
import random
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from charwise import SortedVocabulary, Vocabulary, constraints
from charwise.constraints.constraint import END, Constraint
from charwise.errors import ConstraintError, MissingExtraError
from conftest import Data
from models import examples

pytest.importorskip("llguidance")

#: Regular expressions that Python and llguidance read alike, on the letters a and b.
ATOMS = st.sampled_from(["a", "b", "[ab]", "ab", "ba", "(a|bb)", "(ab)*", "a?", "b+", "a{2}"])
PATTERNS = st.lists(ATOMS, min_size=1, max_size=3).map("".join) | st.tuples(
    st.lists(ATOMS, min_size=1, max_size=2).map("".join), st.lists(ATOMS, max_size=2).map("".join)
).map("|".join)

EXPRESSIONS = [
    r"(yes|no)\.",
    r"[A-Z][a-z]{1,8}( [A-Z][a-z]{1,8})?",
    r"-?(0|[1-9][0-9]{0,5})(\.[0-9]{1,4})?",
    r"[0-9]{4}-[01][0-9]-[0-3][0-9]",
    r"(naï|é){2,5}ve",
    r'"([^"\\\x00-\x1f\x80-\U0010ffff]|\\["\\/bfnrt]){0,12}"',
    r"(foo|foobar|bar)+;",
    r"#[0-9a-fA-F]{6}",
]


@cache
def words(letters: bytes, longest: int) -> list[bytes]:
    """All words over some letters."""
    sizes = range(longest + 1)
    return [bytes(word) for size in sizes for word in itertools.product(letters, repeat=size)]


def check(constraint: Constraint, members: set[bytes], letters: bytes, longest: int) -> None:
    """`allowed` after every word is what the members say; words that leave them are refused."""
    for word in words(letters, longest):
        going_on = {one[len(word)] for one in members if one.startswith(word) and one != word}
        if not any(one.startswith(word) for one in members):
            with pytest.raises(ConstraintError) as caught:
                constraint.after(word)
            known = caught.value.position
            for size in (known, known + 1):
                assert any(one.startswith(word[:size]) for one in members) == (size == known)
            continue
        allowed = constraint.after(word).allowed()
        assert allowed[END] == (word in members), word
        assert set(np.flatnonzero(allowed[:END]).tolist()) == going_on, word
        assert constraint.after(word).is_closed == (not going_on)


@given(st.sets(st.binary(max_size=4), min_size=1, max_size=12))
@examples(200)
def test_choices_allow_what_some_member_goes_on_with(members: set[bytes]) -> None:
    letters = bytes(sorted(set(b"".join(members)) | {0, 0xFF}))[:5]
    constraint = constraints.choices(members)
    check(constraint, members, letters, longest=2)
    for member in members:
        assert constraint.after(member).allowed()[END]
    assert constraint.members(len(members)) == sorted(members)
    assert constraint.members(len(members) - 1) is None


@given(PATTERNS)
@examples(150)
def test_a_regular_expression_allows_what_python_matches(pattern: str) -> None:
    # Every way to go on is seen within seven letters more: three atoms have six.
    members = {word for word in words(b"ab", 10) if re.fullmatch(pattern.encode(), word)}
    check(constraints.regex(pattern), members, b"ab", longest=3)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_real_expressions_allow_what_the_regex_module_matches_in_part(expression: str) -> None:
    """Along random members, byte by byte."""
    rng, pattern = random.Random(1), regex.compile(expression)
    for _ in range(20):
        here, text = constraints.regex(expression), ""
        while len(text) < 60:
            allowed = np.flatnonzero(here.allowed()).tolist()
            assert (END in allowed) == bool(pattern.fullmatch(text))
            every = [chr(code) for code in (*range(128), *map(ord, "éïü"))]
            going_on = [c for c in every if pattern.fullmatch(text + c, partial=True)]
            assert {c.encode()[0] for c in going_on} == set(allowed) - {END}
            if not going_on:
                break
            text += (character := rng.choice(going_on))
            lead, rest = character.encode()[:1], character.encode()[1:]
            here = here.after(lead)
            if rest:
                others = {c.encode()[1] for c in going_on if c.encode()[:1] == lead}
                assert set(np.flatnonzero(here.allowed()).tolist()) == others
                here = here.after(rest)


def check_mask(constraint: Constraint, index: SortedVocabulary) -> None:
    """A token may follow if all of its bytes may."""
    vocabulary, allowed = index.vocabulary, constraint.allowed()
    mask = np.zeros(vocabulary.width, dtype=bool)
    for id, token in enumerate(vocabulary.tokens):
        if token and allowed[token[0]]:
            try:
                constraint.after(token)
                mask[id] = True
            except ConstraintError:
                continue
    mask[list(vocabulary.end_ids)] = allowed[END]
    np.testing.assert_array_equal(constraint.over(index).mask(), mask)


@given(
    PATTERNS.map(constraints.regex)
    | st.sets(st.binary(max_size=3), min_size=1, max_size=8).map(constraints.choices),
    st.lists(st.text("abc", min_size=1, max_size=3).map(str.encode), min_size=1, max_size=9)
    | st.lists(st.binary(min_size=1, max_size=3), min_size=1, max_size=9),
    st.integers(0, 3),
)
@examples(200)
def test_masks_are_those_of_the_definition(
    constraint: Constraint, tokens: list[bytes], along: int
) -> None:
    # Twins, and ends in between.
    listed = [tokens[0], None, None, None, *tokens]
    index = SortedVocabulary(Vocabulary.from_bytes(listed, end_ids=[1, 3]))
    over = constraint.over(index)
    for _ in range(along):
        if len(going_on := np.flatnonzero(constraint.allowed()[:END])):
            byte = bytes([going_on[-1]])
            constraint, over = constraint.after(byte), over.after(byte)
    check_mask(constraint, index)
    np.testing.assert_array_equal(over.mask(), constraint.over(index).mask())


@pytest.mark.parametrize("name", ["llama3", "llama2", "gpt2"])
def test_masks_of_real_vocabularies(name: str, data: Data) -> None:
    for pattern in (r"(yes|no)\.", "naï?ve|\nx{3}"):
        check_mask(constraints.regex(pattern), data.index(name))


def test_threads_share_one() -> None:
    index = SortedVocabulary(Vocabulary.from_bytes([*words(b"abcdefgh", 5)[1:], None]))
    constraint = constraints.regex("([a-h]{1,3},)*[a-d]{1,40}")
    tokens = constraint.over(index)
    allowed, mask = constraint.allowed(), tokens.mask()
    further = constraint.after(b"ab,").over(index).mask()

    def ask(_: int) -> None:
        for _ in range(100):
            np.testing.assert_array_equal(constraint.allowed(), allowed)
            np.testing.assert_array_equal(tokens.mask(), mask)
            np.testing.assert_array_equal(tokens.after(b"ab,").mask(), further)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(ask, range(8)))


@pytest.mark.parametrize(
    ("pattern", "members"),
    [
        ("", [""]),
        ("^(yes|no)$", ["no", "yes"]),
        (r"\Aab\z", ["ab"]),
        ("(?i)no", ["NO", "No", "nO", "no"]),
        ("(?x) a b c", ["abc"]),
        (r"(?P<n>[01])", ["0", "1"]),
        (r"[[:digit:]&&[0-2]]", ["0", "1", "2"]),
        ("a|ab|a", ["a", "ab"]),
        ("a\nb", ["a\nb"]),
        ("[\n]/", ["\n/"]),
        ("(?x)\n a  # the first\n b  # the second\n", ["ab"]),
        ("(?x) a\\\n b", ["a\nb"]),
        ("a\\\nb", ["a\nb"]),
        ("(?x: a\n) b", ["a b"]),
    ],
)
def test_forms_of_expressions(pattern: str, members: list[str]) -> None:
    assert constraints.regex(pattern).members(9) == [one.encode() for one in members]


def test_many_choices() -> None:
    many = constraints.choices(f"{n:05d}" for n in range(10_000))
    index = SortedVocabulary(Vocabulary.from_bytes([b"0", b"00", b"09", b"1", b"0100", None]))
    assert many.over(index).mask().tolist() == [True, True, True, False, True, False]
    assert many.after(b"0123").members(10) == [bytes([n]) for n in b"0123456789"]


#: The maker, what is given, the place (in bytes), and a word of the message.
REFUSED: list[tuple[str, Any, int, str]] = [
    ("regex", "(", 0, r"unclosed group at '\('"),
    ("regex", r"1 | a\/b/(c", 0, r"unclosed group at '\(c'"),  # as a numbered line of a grammar
    ("regex", "\\", 0, "lone backslash"),
    ("regex", r"(a)\1", 0, "backreferences"),
    ("regex", r"[a&&b]", 0, "cannot be satisfied|empty"),
    ("regex", "\ud800", 0, "is no text"),
    ("grammar", 'start: "é" b', 0, "line 1, column 8"),
    ("grammar", "start: A\nA: /b/ /a(/", 0, r"unclosed group at '\('"),
    ("grammar", '\nstart: %json {"type": "strin"}', 0, "Invalid type: strin"),
    ("grammar", 'start: "é" <|end|>', 12, "over characters"),
    ("grammar", "start: a\na[max_tokens=3]: /[a-z]+/", 11, "over characters"),
    ("grammar", "root ::= (", 9, "line 1, column 10: a parenthesis is not closed"),
    ("grammar", 'root ::= "é" | x', 16, "line 1, column 16: there is no rule 'x'"),
    ("grammar", 'root ::= "a"\nx ::= * "b"', 19, "line 2, column 7: there is nothing to repeat"),
    ("grammar", 'root ::= "a', 9, "column 10.*is no GBNF"),
    ("grammar", r'root ::= "\ud800"', 10, "is no character"),
    ("grammar", "root ::= [z-a]", 9, "the range 'z' to 'a' is empty"),
    ("grammar", 'root ::= "a"{3,2}', 12, "the least count is above the most"),
    ("grammar", 'root ::= "a" )', 13, "no parenthesis to close"),
    ("grammar", "root ::= " + "(" * 9999 + ")" * 9999, 0, "too deeply nested"),
    ("grammar", 'root ::= root "a"', 0, "no text is in it"),
    ("json_schema", '{"é": }', 0, "no JSON: .*line 1 column 7"),
    ("json_schema", {"type": "strin"}, 0, "Invalid type: strin"),
    ("grammar", "start: r0\n" + 1000 * "r: s\n", 0, "1,000 rules"),
    ("json_schema", {"allOf": 1001 * [{"$ref": "#/$defs/d"}]}, 0, "1,000 references"),
    ("json_schema", False, 0, "schema is false"),
    ("json_schema", {"a": {1, 2}}, 0, "cannot be written"),
    ("json_schema", '{"type": "null", "type": "string"}', 0, "the key 'type' is repeated"),
    ("json_schema", {"exclusiveMinimum": True, "minimum": 2}, 0, r"at \['exclusiveMinimum'\]"),
    ("json_schema", '{"const": 1e99999}', 0, "cannot be matched exactly"),
    ("json_schema", '{"const": NaN}', 0, "NaN is no number of JSON"),
    ("json_schema", {"$schema": 5}, 0, "schema is 5"),
    ("json_schema", {"x-guidance": 5}, 0, "x-guidance is 5"),
    ("json_schema", {"$schema": "https://example.org/no-such-draft"}, 0, "schema is wrong"),
    ("json_schema", {"$ref": "#"}, 0, "no text is in it"),
    ("json_schema", {"properties": {"a\nb": {"$ref": "#/\u2028\n"}}}, 0, "schema is wrong"),
]


@pytest.mark.parametrize(("make", "value", "position", "says"), REFUSED)
def test_the_place_of_a_mistake(make: str, value: Any, position: int, says: str) -> None:
    with pytest.raises(ConstraintError, match=says) as caught:
        getattr(constraints, make)(value)
    assert caught.value.position == position
    assert str(caught.value).isprintable()
    assert "<state>" not in str(caught.value)


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
