"""What may follow, against the definition: a byte may, if some member goes on with it."""

from __future__ import annotations

import itertools
import re
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from charwise import SortedVocabulary, Vocabulary, constraints
from charwise.constraints.constraint import END, Constraint, closed, finite
from charwise.errors import ConstraintError
from conftest import Data
from models import examples

pytest.importorskip("llguidance")

#: Regular expressions that Python and llguidance read alike, on the letters a and b.
ATOMS = st.sampled_from(["a", "b", "[ab]", "ab", "ba", "(a|bb)", "(ab)*", "a?", "b+", "a{2}"])
PATTERNS = st.lists(ATOMS, min_size=1, max_size=3).map("".join) | st.tuples(
    st.lists(ATOMS, min_size=1, max_size=2).map("".join), st.lists(ATOMS, max_size=2).map("".join)
).map("|".join)


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
            with pytest.raises(ConstraintError):
                constraint.after(word)
            continue
        allowed = constraint.after(word).allowed()
        assert allowed[END] == (word in members), word
        assert set(np.flatnonzero(allowed[:END]).tolist()) == going_on, word
        assert closed(constraint.after(word)) == (not going_on)


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
        assert finite(constraint, len(members)) == sorted(member.encode() for member in members)
        if len(members) > 1:
            assert finite(constraint, len(members) - 1) is None

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

    @given(PATTERNS, PATTERNS)
    @examples(60)
    def test_both_of_two_expressions_is_what_both_match(self, one: str, other: str) -> None:
        both = [re.compile(pattern.encode()) for pattern in (one, other)]
        members = {word for word in words(b"ab", 12) if all(p.fullmatch(word) for p in both)}
        if not members:
            with pytest.raises(ConstraintError):
                constraints.both(constraints.regex(one), constraints.regex(other))
            return
        check(constraints.both(constraints.regex(one), constraints.regex(other)), members, b"ab", 2)

    @given(PATTERNS, st.sets(st.text("ab", max_size=5), min_size=1, max_size=8))
    @examples(60)
    def test_both_of_an_expression_and_choices_is_what_they_share(
        self, pattern: str, members: set[str]
    ) -> None:
        one, other = constraints.regex(pattern), constraints.choices(members)
        shared = {member.encode() for member in members if re.fullmatch(pattern, member)}
        for sides in ((one, other), (other, one)):
            if not shared:
                with pytest.raises(ConstraintError, match="nothing satisfies both"):
                    constraints.both(*sides)
            else:
                check(constraints.both(*sides), shared, b"ab", 2)

    def test_both_of_what_has_begun(self) -> None:
        one, other = constraints.regex("(ab)+c").after("ab"), constraints.choices(["xc", "xab"])
        assert finite(constraints.both(one, other.after("x")), 9) == [b"c"]
        with pytest.raises(ConstraintError, match="nothing satisfies both"):
            constraints.both(one, other)

    def test_both_of_others_allows_what_each_allows(self) -> None:
        grammar = constraints.grammar('start: "(" start ")" | /[ab]+/')
        both = constraints.both(constraints.regex(r"\(*a+\)*"), grammar)
        assert both.after("((a").allowed()[ord(")")]
        assert not both.after("((a").allowed()[END]
        assert "(*a+" in repr(both)
        assert both.after("((a))").allowed()[END]

    def test_characters_of_several_bytes(self) -> None:
        constraint = constraints.regex("é+!")
        assert np.flatnonzero(constraint.allowed()).tolist() == [0xC3]
        assert np.flatnonzero(constraint.after(b"\xc3").allowed()).tolist() == [0xA9]
        after = constraint.after("é".encode()).allowed()
        assert np.flatnonzero(after).tolist() == [ord("!"), 0xC3]

    def test_slashes_and_line_breaks_in_both(self) -> None:
        pattern, other = r"a/b\/c\\n", r"a.*"
        shared = constraints.both(constraints.regex(pattern), constraints.regex(other))
        assert finite(shared, 4) == [b"a/b/c\\n"]
        shared = constraints.both(constraints.regex("a\nb|a/b"), constraints.regex("(?s:a.b)"))
        assert finite(shared, 4) == [b"a\nb", b"a/b"]

    def test_json_without_whitespace(self) -> None:
        schema = {"type": "array", "items": {"enum": [0, 1]}}
        schema |= {"x-guidance": {"whitespace_flexible": False}}
        allowed = constraints.json_schema(schema).after(b"[0").allowed().nonzero()[0].tolist()
        assert bytes(allowed) == b",]"

    @pytest.mark.parametrize("make", [constraints.regex, lambda text: constraints.choices([text])])
    def test_a_constraint_goes_on_with_text_or_bytes(self, make: Any) -> None:
        assert (make("ab").after("a").allowed() == make("ab").after(b"a").allowed()).all()

    def test_both_are_over_characters_where_one_is(self) -> None:
        both = constraints.both(constraints.regex("a|b"), constraints.choices(["a"]))
        assert both.characters
        assert not constraints.both(
            constraints.choices(["a"]), constraints.choices(["a"])
        ).characters


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

    @pytest.mark.parametrize("name", ["llama3", "qwen2", "llama2", "gpt2"])
    def test_real_vocabularies(self, name: str, data: Data) -> None:
        for pattern in (r"(yes|no)\.", "naï?ve|\nx{3}"):
            self.check(constraints.regex(pattern), data.index(name))


class TestAsked:
    def test_one_of_them(self) -> None:
        assert constraints.constraint_of({}) is None
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
        assert finite(constraints.regex(pattern), 9) == [one.encode() for one in members]

    def test_classes_of_characters(self) -> None:
        assert constraints.regex(r"\p{Greek}+").after("λόγος".encode()).allowed()[END]
        with pytest.raises(ConstraintError):
            constraints.regex(r"\p{Lu}").after("ä")

    def test_schemas_that_refer_to_themselves(self) -> None:
        tree = {
            "type": "object",
            "properties": {"next": {"$ref": "#"}},
            "additionalProperties": False,
        }
        deep = b'{"next":' * 9 + b"{}" + b"}" * 9
        assert closed(constraints.json_schema(tree).after(deep))

    def test_many_choices(self) -> None:
        many = constraints.choices(f"{n:05d}" for n in range(10_000))
        index = SortedVocabulary(Vocabulary.from_bytes([b"0", b"00", b"09", b"1", b"0100", None]))
        assert many.over(index).mask().tolist() == [True, True, True, False, True, False]
        assert finite(many.after(b"0123"), 10) == [bytes([n]) for n in b"0123456789"]

    @given(st.sets(st.text("abé", max_size=4), min_size=1, max_size=9), st.text("abé", max_size=5))
    @examples(150)
    def test_choices_after_a_text_are_those_that_begin_with_it(
        self, members: set[str], text: str
    ) -> None:
        left = sorted(m[len(text) :].encode() for m in members if m.startswith(text))
        one = constraints.choices(members)
        if not left:
            with pytest.raises(ConstraintError) as caught:
                one.after(text)
            known, raw = caught.value.position, text.encode()
            begins = [any(m.encode().startswith(raw[:n]) for m in members) for n in range(len(raw))]
            assert begins == [n <= known for n in range(len(raw))]
            return
        for after in (one.after(text), one.after(text[:1]).after(text[1:])):
            assert list(after.left) == left
            expected = sorted({m[0] if m else END for m in left})
            assert after.allowed().nonzero()[0].tolist() == expected

    def test_the_first_byte_that_one_of_both_refuses(self) -> None:
        one, other = (constraints.grammar(f'start: "{word}" | "x"') for word in ("abcd", "abxy"))
        for both in (constraints.both(one, other), constraints.both(other, one)):
            with pytest.raises(ConstraintError) as caught:
                both.after(b"abce")
            assert caught.value.position == 2
