"""llama.cpp's grammars, GBNF, written in Lark's notation.

llguidance takes the longest match of a terminal, and GBNF knows no terminals. So a grammar without
recursion becomes one regular expression. In any other each terminal is one character, and no match
of one is longer than another.
"""

from __future__ import annotations

import json
import re

from charwise.errors import ConstraintError, shown

_ESCAPE = r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[trn\\\"\[\]-])"
_BACKSLASH = re.compile(rf"{_ESCAPE}|\\")
_CHARACTER = re.compile(rf"{_ESCAPE}|[^\\]", re.S)
_TOKEN = re.compile(
    rf"""(?P<space>(?:\s|\#[^\r\n]*)+) | (?P<rule>[\w-]+\s*::=) | (?P<name>[\w-]+)
    | "(?P<text>(?:{_ESCAPE}|[^\\"])*)" | \[(?P<set>\^?(?:{_ESCAPE}|[^\\\]])*)\]
    | (?P<times>[*+?] | \{{\s*\d+\s*(?:,\s*\d*\s*)?\}}) | (?P<mark>[().|])""",
    re.X | re.S | re.A,
)
_HEAD = re.compile(r"^[ \t]*[\w-]+\s*::=", re.M | re.A)
_ESCAPED = {"t": "\t", "r": "\r", "n": "\n"}


def is_gbnf(grammar: str) -> bool:
    """Return whether a grammar is GBNF: some line begins with a name and `::=`."""
    return _HEAD.search(grammar) is not None


def lark_of(grammar: str) -> str:
    r"""Return a GBNF grammar in Lark's notation.

    Raises:
        ConstraintError: what is no GBNF, and where.

    >>> print(lark_of('root ::= "ab" | x*\nx ::= [a-c^]'))
    start: R0
    R0: "ab" | R1{0,}
    R1: /[\u{61}-\u{63}\u{5e}]/
    """
    try:
        reader = _Reader(grammar, recursive=False)
        return _Reader(grammar, recursive=True).lark if reader.is_recursive else reader.lark
    except RecursionError:
        raise ConstraintError("the grammar is wrong: it is nested too deeply.") from None


class _Reader:
    """A reader of one grammar. It goes on over line ends, where llama.cpp wants parentheses.

    Attributes:
        recursive: whether each terminal is one character, and what is repeated a rule.
        rules: name → the rule in Lark's notation. Of two of one name the last counts.
        needs: name → the rules in a rule, and where they are named.
    """

    def __init__(self, grammar: str, recursive: bool) -> None:
        self.grammar, self.recursive = grammar, recursive
        self.rules: dict[str, str] = {}
        self.needs: dict[str, dict[str, int]] = {}
        self._names = {"root": "r0" if recursive else "R0"}
        self._helpers: list[str] = []
        self._kind, self._token, self._begin, self._end = "", "", 0, 0
        self._next()
        while self._kind:
            if self._kind != "rule":
                raise self._wrong("a rule is missing: name ::= …")
            name = self._token[:-3].strip()
            self._needed = self.needs[name] = {}
            self._next()
            self.rules[name] = self._alternatives()
        for name, place in [pair for names in self.needs.values() for pair in names.items()]:
            if name not in self.rules:
                raise wrong(grammar, place, f"there is no rule {name!r}")
        if "root" not in self.rules:
            raise self._wrong("there is no rule 'root'")

    @property
    def is_recursive(self) -> bool:
        """Whether some rule needs itself."""
        left = {name: set(needed) for name, needed in self.needs.items()}
        while leaves := [name for name, needed in left.items() if not needed]:
            left = {name: needed.difference(leaves) for name, needed in left.items() if needed}
        return bool(left)

    @property
    def lark(self) -> str:
        """All rules in Lark's notation."""
        rules = [f"{self._name(name)}: {rule}" for name, rule in self.rules.items()]
        return "\n".join([f"start: {self._name('root')}", *rules, *self._helpers])

    def _name(self, name: str) -> str:
        """Lark's name for a rule: in capitals, it is a terminal."""
        return self._names.setdefault(name, f"{'r' if self.recursive else 'R'}{len(self._names)}")

    def _next(self) -> None:
        """Go to the next token; its kind is "" at the end."""
        self._kind = "space"
        while self._kind == "space":
            self._begin = self._end
            if self._begin == len(self.grammar):
                self._kind = self._token = ""
                return
            token = _TOKEN.match(self.grammar, self._begin)
            if token is None:
                here = self.grammar[self._begin : self._begin + 20]
                escapes = _BACKSLASH.finditer(self.grammar, self._begin) if here[0] in '"[' else ()
                for one in escapes:
                    if one[0] == "\\":
                        raise wrong(self.grammar, one.start(), "GBNF has no such escape")
                raise self._wrong(f"{shown(here)} is no GBNF")
            self._end, self._kind = token.end(), token.lastgroup or ""
            self._token = token[self._kind]

    def _wrong(self, what: str) -> ConstraintError:
        """The error for the token that is read."""
        return wrong(self.grammar, self._begin, what)

    def _at(self, marks: str) -> bool:
        """Whether the token is one of these marks."""
        return self._kind == "mark" and self._token in marks

    def _alternatives(self) -> str:
        """Read sequences between bars."""
        ways = [self._sequence()]
        while self._at("|"):
            self._next()
            ways.append(self._sequence())
        return " | ".join(ways)

    def _sequence(self) -> str:
        """Read one part after another, each with its counts."""
        parts: list[str] = []
        while self._kind not in ("", "rule") and not self._at("|)"):
            if self._kind == "times":
                if not parts:
                    raise self._wrong("there is nothing to repeat")
                parts[-1] = self._times(parts[-1])
            elif self._at("("):
                begin = self._begin
                self._next()
                parts.append(f"({self._alternatives()})")
                if not self._at(")"):
                    raise wrong(self.grammar, begin, "a parenthesis is not closed")
            else:
                parts.append(self._part())
            self._next()
        return " ".join(parts) or '""'

    def _part(self) -> str:
        """The part that one token is: a text, a set of characters, or the name of a rule."""
        if self._kind == "name":
            self._needed.setdefault(self._token, self._begin)
            return self._name(self._token)
        if self._kind == "mark":
            return "/(?s:.)/"  # any character, line ends too
        if self._kind == "set":
            ranges = self._ranges()
            return f"/[{ranges}]/" if ranges.strip("^") else '""'
        characters = [text for text, _ in self._characters(self._begin + 1, self._end - 1)]
        texts = characters if self.recursive and characters else ["".join(characters)]
        return " ".join(json.dumps(text, ensure_ascii=False) for text in texts)

    def _times(self, part: str) -> str:
        """A part, repeated as the token says."""
        signs = {"*": "{0,}", "+": "{1,}", "?": "{0,1}"}
        low, comma, high = signs.get(self._token, self._token)[1:-1].partition(",")
        least, most = int(low), high.strip() if comma else low.strip()
        if most and int(most) < least:
            raise self._wrong("the least count is above the most")
        if most and int(most) == 0:
            return '""'
        if re.fullmatch(r"[rRh]\d+|/[^{]*(\{\w+\}[^{]*)*/", part) is None:
            if self.recursive:
                self._helpers.append(f"h{len(self._helpers)}: {part}")
            part = f"h{len(self._helpers) - 1}" if self.recursive else f"({part})"
        return f"{part}{{{least},{most}}}"

    def _characters(self, begin: int, end: int) -> list[tuple[str, str]]:
        """The characters between two places, and how each is written."""
        characters = []
        for one in _CHARACTER.finditer(self.grammar, begin, end):
            text = raw = one[0]
            if text[0] == "\\":
                code = int(text[2:], 16) if text[1] in "xuU" else 0
                if code > 0x10FFFF or 0xD800 <= code < 0xE000:
                    raise wrong(self.grammar, one.start(), f"{text} is no character")
                text = chr(code) if text[1] in "xuU" else _ESCAPED.get(text[1], text[1])
            characters.append((text, raw))
        return characters

    def _ranges(self) -> str:
        """What is between brackets, as a regular expression has it."""
        negated = self._token.startswith("^")
        left = self._characters(self._begin + 1 + negated, self._end - 1)
        ranges = "^" * negated
        while left:
            ends = [left.pop(0)[0]]
            if len(left) > 1 and left[0][1] == "-":
                ends.append(left[1][0])
                del left[:2]
            if ends[-1] < ends[0]:
                raise self._wrong(f"the range {ends[0]!r} to {ends[-1]!r} is empty")
            ranges += "-".join(rf"\u{{{ord(one):x}}}" for one in ends)
        return ranges


def wrong(grammar: str, place: int, what: str) -> ConstraintError:
    """Return the error for a place in a grammar."""
    before = grammar[:place]
    line, column = before.count("\n") + 1, place - before.rfind("\n")
    return ConstraintError(
        f"the grammar is wrong: line {line}, column {column}: {what}.",
        len(before.encode("utf-8", "surrogatepass")),
    )
