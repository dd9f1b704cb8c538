"""llama.cpp's grammars, GBNF, written in Lark's notation.

llguidance takes the longest match of a terminal, and GBNF knows no terminals. So a grammar without
recursion becomes one regular expression. In any other each terminal is one character, and no match
of one is longer than another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from charwise.errors import ConstraintError, shown

_ESCAPE = r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[trn\\\"\[\]-])"
_CHARACTER = re.compile(rf"{_ESCAPE}|[^\\]", re.S)
_TOKEN = re.compile(
    rf"""(?P<space>(?:\s|\#[^\r\n]*)+) | (?P<rule>[\w-]+\s*::=) | (?P<name>[\w-]+)
    | "(?P<text>(?:{_ESCAPE}|[^\\"])*)" | \[(?P<set>\^?(?:{_ESCAPE}|[^\\\]])*)\]
    | (?P<times>[*+?] | \{{\s*\d+\s*(?:,\s*\d*\s*)?\}}) | (?P<mark>[().|])""",
    re.X | re.S | re.A,
)
_HEAD = re.compile(r"^[ \t]*[\w-]+\s*::=", re.M | re.A)
_ESCAPED = {"t": "\t", "r": "\r", "n": "\n"}

#: Any one character, line ends too.
_ANY = "/(?s:.)/"


class _Node(NamedTuple):
    """A part of a rule.

    Attributes:
        kind: "text" (a string), "set" (an expression that matches one character), "rule" (a name),
            "all" and "any" (of a list of parts), or "times" (a part, least, most).
        value: as the kind says.
        place: where it is written.
    """

    kind: str
    value: Any
    place: int = 0


def is_gbnf(grammar: str) -> bool:
    """Return whether a grammar is GBNF: some line begins with a name and `::=`."""
    return _HEAD.search(grammar) is not None


def lark_of(grammar: str) -> str:
    r"""Return a GBNF grammar in Lark's notation.

    Raises:
        ConstraintError: what is no GBNF, and where.

    >>> print(lark_of('root ::= "ab" | x*\nx ::= [a-c^]'))
    start: R0
    R0: ("ab" | R1{0,})
    R1: /[\u{61}-\u{63}\u{5e}]/
    """
    try:
        rules = _Parser(grammar).rules()
        if "root" not in rules:
            raise wrong(grammar, len(grammar), "there is no rule 'root'")
        uses = {name: list(_rules_in(node)) for name, node in rules.items()}
        for node in (node for nodes in uses.values() for node in nodes):
            if node.value not in rules:
                raise wrong(grammar, node.place, f"there is no rule {node.value!r}")
        return _Lark(rules, recursive=_is_recursive(uses)).text
    except RecursionError:
        raise ConstraintError("the grammar is wrong: it is nested too deeply.") from None


class _Parser:
    """A reader of one grammar. It goes on over line ends, where llama.cpp wants parentheses."""

    def __init__(self, grammar: str) -> None:
        self.grammar, self.place = grammar, 0
        self.kind, self.token, self.begin = "", "", 0
        self.next()

    def next(self) -> None:
        """Go to the next token; its kind is "" at the end."""
        while self.place < len(self.grammar):
            token = _TOKEN.match(self.grammar, self.place)
            if token is None:
                raise self.wrong(f"{shown(self.grammar[self.place : self.place + 20])} is no GBNF")
            self.begin, self.place = self.place, token.end()
            self.kind = token.lastgroup or ""
            self.token = token[self.kind]
            if self.kind != "space":
                return
        self.kind, self.token, self.begin = "", "", self.place

    @property
    def mark(self) -> str:
        """The token, if it is a parenthesis, a bar or a dot."""
        return self.token if self.kind == "mark" else ""

    def wrong(self, what: str, place: int | None = None) -> ConstraintError:
        """The error for a place; by default, for where the reader is."""
        return wrong(self.grammar, self.place if place is None else place, what)

    def rules(self) -> dict[str, _Node]:
        """Read the rules. Of two of one name the last counts, as in llama.cpp."""
        rules: dict[str, _Node] = {}
        while self.kind:
            if self.kind != "rule":
                raise self.wrong("a rule is missing: name ::= …", self.begin)
            name = self.token[:-3].strip()
            self.next()
            rules[name] = self.alternatives()
        return rules

    def alternatives(self) -> _Node:
        """Read sequences between bars."""
        ways = [self.sequence()]
        while self.mark == "|":
            self.next()
            ways.append(self.sequence())
        return ways[0] if len(ways) == 1 else _Node("any", ways)

    def sequence(self) -> _Node:
        """Read one part after another, each with its counts."""
        parts: list[_Node] = []
        while self.kind not in ("", "rule") and self.mark not in ("|", ")"):
            if self.kind == "times":
                if not parts:
                    raise self.wrong("there is nothing to repeat", self.begin)
                parts[-1] = _Node("times", (parts[-1], *self.counts()))
            elif self.mark == "(":
                begin = self.begin
                self.next()
                parts.append(self.alternatives())
                if self.mark != ")":
                    raise self.wrong("a parenthesis is not closed", begin)
            else:
                parts.append(self.part())
            self.next()
        return parts[0] if len(parts) == 1 else _Node("all", parts)

    def part(self) -> _Node:
        """The part that one token is."""
        if self.kind == "text":
            return _Node("text", "".join(self.characters(self.begin + 1, self.place - 1)))
        if self.kind == "set":
            ranges = self.character_set()
            return _Node("set", f"/[{ranges}]/") if ranges.strip("^") else _Node("text", "")
        return _Node("set", _ANY) if self.mark == "." else _Node("rule", self.token, self.begin)

    def counts(self) -> tuple[int, int | None]:
        """The least and the most that a count asks for."""
        signs: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if self.token in signs:
            return signs[self.token]
        least, comma, most = self.token[1:-1].partition(",")
        counts = (int(least), int(most) if most.strip() else None if comma else int(least))
        if counts[1] is not None and counts[1] < counts[0]:
            raise self.wrong("the least count is above the most", self.begin)
        return counts

    def characters(self, begin: int, end: int) -> Iterator[str]:
        """The characters of a text or of a set, escapes resolved; a range stays three of them."""
        for one in _CHARACTER.finditer(self.grammar, begin, end):
            text = one[0]
            if text[0] == "\\":
                code = int(text[2:], 16) if text[1] in "xuU" else 0
                if code > 0x10FFFF or 0xD800 <= code < 0xE000:
                    raise self.wrong(f"{text} is no character", one.start())
                text = chr(code) if text[1] in "xuU" else _ESCAPED.get(text[1], text[1])
            yield text

    def character_set(self) -> str:
        """The set of characters between brackets, as a regular expression has it."""
        negated = self.token.startswith("^")
        place, end = self.begin + 1 + negated, self.place - 1
        ranges = ""
        while place < end:
            ends: list[str] = []
            for _ in range(2):
                one = _CHARACTER.match(self.grammar, place, end)
                assert one is not None
                ends += self.characters(place, one.end())
                place = one.end()
                if len(ends) == 1 and self.grammar[place] == "-" and place + 1 < end:
                    place += 1
                else:
                    break
            if ends[-1] < ends[0]:
                raise self.wrong(f"the range {ends[0]}-{ends[-1]} is empty", self.begin)
            ranges += "-".join(rf"\u{{{ord(one):x}}}" for one in ends)
        return "^" * negated + ranges


class _Lark:
    """The rules in Lark's notation.

    Attributes:
        text: all of them.
    """

    def __init__(self, rules: dict[str, _Node], recursive: bool) -> None:
        self.recursive = recursive
        letter = "r" if recursive else "R"
        self.names = {name: f"{letter}{n}" for n, name in enumerate(rules)}
        self.helpers: list[str] = []
        lines = [f"{self.names[name]}: {self.written(node)}" for name, node in rules.items()]
        self.text = "\n".join([f"start: {self.names['root']}", *lines, *self.helpers])

    def written(self, node: _Node) -> str:
        """A part of a rule."""
        value = node.value
        if node.kind == "rule":
            return self.names[value]
        if node.kind == "text":
            texts = list(value) if self.recursive and value else [value]
            return " ".join(json.dumps(text, ensure_ascii=False) for text in texts)
        if node.kind == "all":
            return " ".join(map(self.written, value)) or '""'
        if node.kind == "any":
            return f"({' | '.join(map(self.written, value))})"
        if node.kind == "times":
            inner, least, most = value
            if most == 0:
                return '""'
            return f"{self.alone(inner)}{{{least},{'' if most is None else most}}}"
        return str(value)

    def alone(self, node: _Node) -> str:
        """A part that can be repeated: in a grammar of characters, a rule."""
        if node.kind in ("set", "rule"):
            return self.written(node)
        if not self.recursive:
            return f"({self.written(node)})"
        name = f"h{len(self.helpers)}"
        self.helpers.append("")
        self.helpers[int(name[1:])] = f"{name}: {self.written(node)}"
        return name


def _rules_in(node: _Node) -> Iterator[_Node]:
    """The names of rules in a part of a rule."""
    if node.kind == "rule":
        yield node
    parts = node.value if node.kind in ("all", "any") else node.value[:1]
    for part in parts if node.kind in ("all", "any", "times") else ():
        yield from _rules_in(part)


def _is_recursive(uses: dict[str, list[_Node]]) -> bool:
    """Whether some rule needs itself."""
    left = {name: {node.value for node in nodes} for name, nodes in uses.items()}
    while leaves := [name for name, needs in left.items() if not needs]:
        left = {name: needs.difference(leaves) for name, needs in left.items() if needs}
    return bool(left)


def wrong(grammar: str, place: int, what: str) -> ConstraintError:
    """Return the error for a place in a grammar."""
    before = grammar[:place]
    line, column = before.count("\n") + 1, place - before.rfind("\n")
    return ConstraintError(
        f"the grammar is wrong: line {line}, column {column}: {what}.",
        len(before.encode("utf-8", "surrogatepass")),
    )
