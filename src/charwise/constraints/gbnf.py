"""llama.cpp's grammars, GBNF, written in Lark's notation.

llguidance takes the longest match of a terminal, and GBNF knows no terminals. So a grammar without
recursion becomes one regular expression. In any other each terminal is one character, and no match
of one is longer than another.
"""

import json
import re
from graphlib import CycleError, TopologicalSorter

from charwise.errors import ConstraintError, quote

_ESCAPE = r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[trn\\\"\[\]-])"
_CHARACTER = re.compile(rf"{_ESCAPE}|[^\\]", re.S)
_TOKEN = re.compile(
    rf"""(?:\s|\#[^\r\n]*)+ | (?P<rule>[\w-]+)\s*::= | (?P<name>[\w-]+)
    | "(?P<text>(?:{_ESCAPE}|[^\\"])*)" | \[(?P<set>\^?(?:{_ESCAPE}|[^\\\]])*)\]
    | (?P<times>[*+?] | \{{\s*\d+\s*(?:,\s*\d*\s*)?\}}) | (?P<any>\.)
    | (?P<mark>[()|]) | (?P<other>.)""",
    re.X | re.S | re.A,
)
_HEAD = re.compile(r"^[ \t]*[\w-]+\s*::=", re.M | re.A)
_ESCAPED = {"t": "\t", "r": "\r", "n": "\n"}
_TIMES = {"*": "{0,}", "+": "{1,}", "?": "{0,1}"}


def lark_of(grammar: str) -> str:
    """Return a GBNF grammar, in which a line begins with `name ::=`, in Lark's notation."""
    if not _HEAD.search(grammar):
        return grammar
    reader = _Reader(grammar, recursive=False)
    return _Reader(grammar, recursive=True).lark if reader.is_recursive else reader.lark


class _Reader:
    """A reader of one grammar. It goes on over line ends, where llama.cpp wants parentheses."""

    def __init__(self, grammar: str, recursive: bool) -> None:
        self.grammar, self.recursive = grammar, recursive  # then each terminal is one character
        #: name → its parts in Lark's notation, and the rules that it names, with their places.
        self.rules, self.needs = dict[str, list[str]](), dict[str, dict[str, int]]()
        self._names = {"root": "r0" if recursive else "R0"}
        parts, needed = list[str](), dict[str, int]()
        last: int | None = None  # where the last item of a sequence begins in the parts
        opened = list[tuple[int, int]]()  # parentheses: places in the grammar and in the parts
        for token in _TOKEN.finditer(grammar):
            kind, place, raw = token.lastgroup, token.start(), token[0]
            if kind is None:
                continue
            if kind == "other":
                raise wrong(grammar, place, f"{quote(grammar[place : place + 20])} is no GBNF")
            if kind != "rule" and not self.rules:
                raise wrong(grammar, place, "a rule is missing: name ::= …")
            if last is None and (kind == "rule" or raw in ("|", ")")):
                parts.append('""')
            if kind == "rule":
                self._closed(opened)
                parts, needed, last = [], {}, None
                self.rules[token[kind]], self.needs[token[kind]] = parts, needed
            elif kind == "mark":
                if raw == ")" and not opened:
                    raise wrong(grammar, place, "there is no parenthesis to close")
                if raw == "(":
                    opened.append((place, len(parts)))
                last = opened.pop()[1] if raw == ")" else None
                parts.append(raw)
            elif kind == "times":
                if last is None:
                    raise wrong(grammar, place, "there is nothing to repeat")
                parts[last:] = [self._times(" ".join(parts[last:]), raw, place)]
            else:
                if kind == "name":
                    needed.setdefault(raw, place)
                last = len(parts)
                parts.append(self._terminal(kind, token.start(kind), token.end(kind)))
        if last is None:
            parts.append('""')
        self._closed(opened)
        for name, place in [pair for names in self.needs.values() for pair in names.items()]:
            if name not in self.rules:
                raise wrong(grammar, place, f"there is no rule {name!r}")
        if "root" not in self.rules:
            raise wrong(grammar, len(grammar), "there is no rule 'root'")

    def _closed(self, opened: list[tuple[int, int]]) -> None:
        if opened:
            raise wrong(self.grammar, opened[-1][0], "a parenthesis is not closed")

    @property
    def is_recursive(self) -> bool:
        """Whether some rule needs itself."""
        try:
            TopologicalSorter(self.needs).prepare()
        except CycleError:
            return True
        return False

    @property
    def lark(self) -> str:
        """All rules in Lark's notation."""
        rules = [f"{self._name(name)}: {' '.join(parts)}" for name, parts in self.rules.items()]
        return "\n".join([f"start: {self._name('root')}", *rules])

    def _name(self, name: str) -> str:
        """Lark's name for a rule: in capitals, it is a terminal."""
        return self._names.setdefault(name, f"{'r' if self.recursive else 'R'}{len(self._names)}")

    def _times(self, part: str, counts: str, place: int) -> str:
        """A part, repeated."""
        low, comma, high = _TIMES.get(counts, counts)[1:-1].partition(",")
        least, most = int(low), high.strip() if comma else low.strip()
        if most and int(most) < least:
            raise wrong(self.grammar, place, "the least count is above the most")
        return '""' if most and int(most) == 0 else f"({part}){{{least},{most}}}"

    def _terminal(self, kind: str, begin: int, end: int) -> str:
        """A text, a set of characters, any character, or the name of a rule."""
        if kind == "name":
            return self._name(self.grammar[begin:end])
        if kind == "any":
            return "/(?s:.)/"  # line ends too
        if kind == "set":
            ranges = self._ranges(begin, end)
            return f"/[{ranges}]/" if ranges.strip("^") else '""'
        characters = [text for text, _ in self._characters(begin, end)]
        texts = characters if self.recursive and characters else ["".join(characters)]
        return " ".join(json.dumps(text, ensure_ascii=False) for text in texts)

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

    def _ranges(self, begin: int, end: int) -> str:
        """What is between brackets, as a regular expression has it."""
        negated = self.grammar.startswith("^", begin) and begin < end
        characters = self._characters(begin + negated, end)
        ranges = "^" * negated
        while characters:
            ends = [characters.pop(0)[0]]
            if len(characters) > 1 and characters[0][1] == "-":
                ends.append(characters[1][0])
                del characters[:2]
            if ends[-1] < ends[0]:
                what = f"the range {ends[0]!r} to {ends[-1]!r} is empty"
                raise wrong(self.grammar, begin - 1, what)
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
