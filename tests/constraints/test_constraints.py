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
from charwise.errors import ConstraintError
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


class TestChoices:
    @given(st.sets(st.binary(max_size=4), min_size=1, max_size=12))
    @examples(200)
    def test_any_bytes(self, members: set[bytes]) -> None:
        letters = bytes(sorted(set(b"".join(members)) | {0, 0xFF}))[:5]
        check(constraints.choices(members), members, letters, longest=2)
        for member in members:
            assert constraints.choices(members).after(member).allowed()[END]

    @given(st.sets(st.text("ab", max_size=5), min_size=1, max_size=8))
    @examples(50)
    def test_members_are_found_again(self, members: set[str]) -> None:
        constraint = constraints.choices(members)
        assert constraint.members(len(members)) == sorted(member.encode() for member in members)
        if len(members) > 1:
            assert constraint.members(len(members) - 1) is None

    def test_the_byte_that_may_not_follow_is_named(self) -> None:
        with pytest.raises(ConstraintError, match=r"b'x' \(byte 2 of b'yex'\).*b's'") as caught:
            constraints.choices(["yes", "no"]).after(b"yex")
        assert caught.value.position == 2


class TestExpressions:
    @given(PATTERNS)
    @examples(150)
    def test_a_regular_expression_allows_what_python_matches(self, pattern: str) -> None:
        # Every way to go on is seen within seven letters more: three atoms have six.
        members = {word for word in words(b"ab", 10) if re.fullmatch(pattern.encode(), word)}
        check(constraints.regex(pattern), members, b"ab", longest=3)

    @pytest.mark.parametrize(
        ("options", "allowed", "refused"),
        [
            ({}, ["", " ", "\n", "\r\n\t", "\n\n" + 20 * " "], ["  ", "\n\n\n", "\n" + 21 * " "]),
            ({"whitespace_flexible": False}, [""], [" ", "\n"]),
            ({"whitespace_pattern": " +"}, ["", 90 * " "], ["\n"]),
        ],
    )
    def test_whitespace_of_json_has_an_end(
        self, options: dict[str, Any], allowed: list[str], refused: list[str]
    ) -> None:
        schema = {"type": "array", "items": {"enum": [0, 1]}, "x-guidance": options}
        prefix = constraints.json_schema(schema).after(b"[0")
        for space in allowed:
            assert {*b",]"} <= {*prefix.after(space.encode()).allowed().nonzero()[0].tolist()}
        for space in refused:
            with pytest.raises(ConstraintError):
                prefix.after(space.encode()).after(b"]")

    @pytest.mark.parametrize("expression", EXPRESSIONS)
    def test_real_expressions_allow_what_the_regex_module_matches_in_part(
        self, expression: str
    ) -> None:
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


class TestTokens:
    """A token may follow if all of its bytes may."""

    @staticmethod
    def check(constraint: Constraint, index: SortedVocabulary) -> None:
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
        self, constraint: Constraint, tokens: list[bytes], along: int
    ) -> None:
        # Twins, and ends in between.
        listed = [tokens[0], None, None, None, *tokens]
        index = SortedVocabulary(Vocabulary.from_bytes(listed, end_ids=[1, 3]))
        over = constraint.over(index)
        for _ in range(along):
            if len(going_on := np.flatnonzero(constraint.allowed()[:END])):
                byte = bytes([going_on[-1]])
                constraint, over = constraint.after(byte), over.after(byte)
        self.check(constraint, index)
        np.testing.assert_array_equal(over.mask(), constraint.over(index).mask())

    @pytest.mark.parametrize("name", ["llama3", "llama2", "gpt2"])
    def test_real_vocabularies(self, name: str, data: Data) -> None:
        for pattern in (r"(yes|no)\.", "naï?ve|\nx{3}"):
            self.check(constraints.regex(pattern), data.index(name))


def test_threads_share_one() -> None:
    letters = [
        bytes(word) for n in range(1, 6) for word in itertools.product(b"abcdefgh", repeat=n)
    ]
    index = SortedVocabulary(Vocabulary.from_bytes([*letters, None]))
    constraint = constraints.regex("([a-h]{1,3},)*[a-d]{1,40}")
    tokens = constraint.over(index)
    allowed, mask = constraint.allowed(), tokens.mask()
    further = constraint.after(b"ab,").over(index).mask()

    def ask(_: int) -> None:
        for _ in range(100):
            np.testing.assert_array_equal(constraint.allowed(), allowed)
            np.testing.assert_array_equal(tokens.mask(), mask)
            np.testing.assert_array_equal(tokens.after(b"ab,").mask(), further)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(ask, range(8)))
    finally:
        sys.setswitchinterval(before)


def test_the_constraint_that_was_asked_for() -> None:
    assert constraints.constraint_of({"regex": None}) is None
    made = constraints.constraint_of({"regex": "a"})
    assert made is not None
    assert made.allowed()[ord("a")]
    assert constraints.constraint_of({"constraint": made}) is made


class TestNewcomers:
    """What people write first."""

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
    def test_expressions(self, pattern: str, members: list[str]) -> None:
        assert constraints.regex(pattern).members(9) == [one.encode() for one in members]

    def test_schemas_that_refer_to_themselves(self) -> None:
        tree = {
            "type": "object",
            "properties": {"next": {"$ref": "#"}},
            "additionalProperties": False,
        }
        deep = b'{"next":' * 9 + b"{}" + b"}" * 9
        assert constraints.json_schema(tree).after(deep).is_closed

    def test_many_choices(self) -> None:
        many = constraints.choices(f"{n:05d}" for n in range(10_000))
        index = SortedVocabulary(Vocabulary.from_bytes([b"0", b"00", b"09", b"1", b"0100", None]))
        assert many.over(index).mask().tolist() == [True, True, True, False, True, False]
        assert many.after(b"0123").members(10) == [bytes([n]) for n in b"0123456789"]
