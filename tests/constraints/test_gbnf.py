"""llama.cpp's grammars: what they mean, by listing texts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charwise import constraints
from models import examples, is_member

pytest.importorskip("llguidance")

#: The longest texts that are listed.
LONGEST = 4

NAMES = ["root", "x-1", "x_1", "start", "Item", "item", "1st"]
SETS = {"a": "a", "a-b": "ab", "b-": "b-", "+--": "-", "b~~": "b", "^a": "b-", "&&a": "a", "^": ""}

#: A part: its kind, and what it is made of.
Part = tuple[str, Any]


def parts() -> st.SearchStrategy[Part]:
    counts = st.sampled_from([(0, None), (1, None), (0, 1), (2, 2), (0, 2), (1, 3), (2, None)])
    return st.recursive(
        st.tuples(st.just("text"), st.text("ab-", max_size=2))
        | st.tuples(st.just("set"), st.sampled_from(list(SETS)))
        | st.tuples(st.just("rule"), st.sampled_from(NAMES)),
        lambda inner: (
            st.tuples(st.just("all"), st.lists(inner, max_size=3))
            | st.tuples(st.just("any"), st.lists(inner, min_size=1, max_size=3))
            | st.tuples(st.just("times"), st.tuples(inner, counts))
        ),
        max_leaves=6,
    )


def gbnf_of(part: Part) -> str:
    """A part in GBNF."""
    kind, value = part
    if kind == "times":
        inner, (least, most) = value
        short = {(0, None): "*", (1, None): "+", (0, 1): "?", (least, least): f"{{{least}}}"}
        return f"({gbnf_of(inner)})" + short.get(
            (least, most), f"{{{least}, {'' if most is None else most}}}"
        )
    if kind in ("all", "any"):
        return f"({(' ' if kind == 'all' else ' |').join(map(gbnf_of, value))} )"
    return {"text": f'"{value}"', "set": f"[{value}]", "rule": value}[kind]


def texts(part: Part, of_rules: dict[str, set[str]]) -> set[str]:
    """The texts of a part up to a length, by definition."""
    kind, value = part
    if kind == "rule":
        return of_rules[value]
    if kind == "text":
        return {value}
    if kind == "set":
        return set(SETS[value]) or {""}  # llama.cpp passes over a set that is empty
    if kind == "any":
        return set().union(*(texts(one, of_rules) for one in value))
    if kind == "all":
        lists = [texts(one, of_rules) for one in value]
    else:
        inner, (least, most) = value
        once = texts(inner, of_rules)
        lists = [once] * least + [once | {""}] * (LONGEST if most is None else most - least)
    joined = {""}
    for after in lists:
        joined = {one + two for one in joined for two in after if len(one + two) <= LONGEST}
    return joined


@given(st.lists(parts(), min_size=len(NAMES), max_size=len(NAMES)))
@examples(150)
def test_a_grammar_has_the_texts_of_its_definition(made: list[Part]) -> None:
    rules = dict(zip(NAMES, made, strict=True))
    of_rules: dict[str, set[str]] = {name: set() for name in rules}
    while (longer := {name: texts(part, of_rules) for name, part in rules.items()}) != of_rules:
        of_rules = longer
    grammar = "\n".join(f"{name} ::= {gbnf_of(part)}" for name, part in rules.items())
    if not of_rules["root"]:
        return
    constraint = constraints.grammar(grammar)
    words = [""]
    while words:
        word = words.pop()
        assert is_member(constraint, word) == (word in of_rules["root"]), grammar
        words += [word + letter for letter in "ab-"] if len(word) < LONGEST else []


@pytest.mark.parametrize(
    ("grammar", "members"),
    [
        (r'root ::= "\u00e9" "\U0001F600" "\xe9" | [\u00e8-\u00e9]', ["è", "é", "é😀é"]),
        ("root ::= [^\\x01-\\U0010ffff]", ["\0"]),
        (r'root ::= "\t\r\n\\\"[]\[" # a comment: "x"', ['\t\r\n\\"[][']),
        (r'root ::= [+\-9] | "\-" "a"{0} [] [^]', ["+", "-", "9"]),
        (r"root ::= [\]\[\\/-]", ["-", "/", "[", "\\", "]"]),
        ("root ::= [a&&b~-]", ["&", "-", "a", "b", "~"]),
        ("root ::= [+--]", ["+", ",", "-"]),
        ("root ::= [a~~b-]", ["-", "a", "b", "~"]),
        ('start ::= "x"\nroot ::= start a-b a_b\na-b ::= "1"\na_b ::= [2]', ["x12"]),
        ('root ::= Item item\nItem ::= "I"\nitem ::= "i"', ["Ii"]),
        (
            'root ::= (("a")?)? ("b"?){2} 1st\n1st ::= "1" |',
            ["", "1", "a", "a1", "ab", "ab1", "abb", "abb1", "b", "b1", "bb", "bb1"],
        ),
        ('root ::= "a" | "ab"\n  | "abc" (\n "d"? )', ["a", "ab", "abc", "abcd"]),
        ('# start: no Lark\nroot ::=\n  "a:" x\r\nx::="b"', ["a:b"]),
        # In Lark's notation, what only looks like tokens.
        ('start: "<a>" /<[01]>/  // <|end|>', ["<a><0>", "<a><1>"]),
        ('# <a> "\nstart: max_tokens\nmax_tokens: "b"', ["b"]),
        ('start: %json {"enum": ["<|a|>", "max_tokens=3"]}', ['"<|a|>"', '"max_tokens=3"']),
        (r'start: /[\/"]<x>/ "\"<"', ['"<x>"<', '/<x>"<']),
    ],
)
def test_what_a_grammar_means(grammar: str, members: list[str]) -> None:
    assert constraints.grammar(grammar).members(99) == sorted(one.encode() for one in members)


#: After llama.cpp's examples.
JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
"""


def test_a_grammar_of_llama_cpp() -> None:
    constraint = constraints.grammar(JSON)
    for text in ('{"a": [1, -2.5e3, "\\u00e9é\\n"], "b":{}}', "{}\n\t"):
        assert is_member(constraint, text), text
    for text in ("[1]", "{a}", '{"a": 01}'):
        assert not is_member(constraint, text), text
    for text in ("\n", "\r", "é", "\0"):
        assert is_member(constraints.grammar('root ::= . "x"'), text + "x")
