"""The faults of an expression, a schema or a grammar: llguidance's messages as a sentence.

llguidance draws the place below the text, over several lines, and shows the grammar that was made
of an expression. Here a place is a number, and the text that begins there.
"""

from __future__ import annotations

import re

from charwise.errors import ConstraintError, reason, shown

#: Where a grammar is wrong: its line and column.
_AT = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")

#: An expression that is wrong: its lines, with a mark below the place, and what is wrong.
_DRAWN = re.compile(r"regex parse error:\n(.*?)\nerror: ([^\n]*)", re.S)
_SPANS_LINES = re.compile(r"^on line (\d+) \(column (\d+)\)", re.M)

#: In what llguidance wraps what is wrong, and the lines of the grammar after it.
_WRAPPED = re.compile(r"(invalid regex .*?\(in regex\)|failed to \w+ JSON schema): ", re.S)
_LINES = re.compile(r"\n +\d+ \|.*", re.S)

#: Where nothing is said of tokens: comments, strings, expressions.
_WRITTEN = re.compile(r'//[^\n]*|#[^\n]*|"(?:\\.|[^"\\])*"|/(?:\\.|[^/\\])+/', re.S)
_OF_TOKENS = re.compile(r"<[^<>\n]*>?|\b(?:max_tokens|temperature)\s*=")


def why(message: str) -> str:
    """llguidance's message without its state.

    >>> why("too complex<state>\\nmuch</state>")
    'too complex'
    """
    return reason(message.split("<state>")[0])


def diagnosis(
    message: str, *, pattern: str | None = None, grammar: str | None = None
) -> tuple[str, int]:
    """Return the fault of a constraint, and its place.

    Args:
        message: llguidance's.
        pattern: what was written, if it is a regular expression.
        grammar: what was written, if it is a grammar.

    Returns:
        What is wrong, and the offset in bytes in what was written; 0 if it is not known.

    >>> diagnosis("regex parse error:\\n    a(\\n     ^\\nerror: unclosed group", pattern="a(")
    ("at character 1, '(': unclosed group", 1)
    >>> diagnosis('at 2(8): unknown name: "b"\\n   1 | start: a', grammar='a: "x"\\nstart: b')
    ('line 2, column 8: unknown name: "b"', 14)
    """
    message = message.split("<state>")[0]
    at, drawn = _AT.match(message), _DRAWN.search(message)
    if drawn is not None:
        what, where = _expression(drawn[1], drawn[2], pattern)
        if pattern is not None:
            return what, where
    else:
        rest = message[at.end() :] if at else message
        what = reason(_WRAPPED.sub("", _LINES.sub("", rest)))
    if at is None or grammar is None:
        return what, 0
    line, column = int(at[1]), int(at[2])
    return f"line {line}, column {column}: {what}", _offset(grammar, line, column)


def refuse_tokens(grammar: str) -> None:
    """Refuse a grammar that speaks of tokens, which are not the same for every model.

    Raises:
        ConstraintError: where it does.

    >>> refuse_tokens('start: "<a>" /<[0-9]>/  // <|end|>')
    """
    bare = _WRITTEN.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), grammar)
    found = _OF_TOKENS.search(bare)
    if found is None:
        return
    before = grammar[: found.start()]
    line, column = before.count("\n") + 1, found.start() - before.rfind("\n")
    raise ConstraintError(
        f"the grammar is wrong: line {line}, column {column}: {found[0]!r} speaks of tokens or of "
        "how they are drawn, and a constraint is over characters. Write them as text, and say how "
        "many in the expression: /.{0,20}/.",
        _offset(grammar, line, column),
    )


def _expression(picture: str, what: str, pattern: str | None) -> tuple[str, int]:
    """Return the fault of an expression, from the picture of it, and its place in bytes."""
    lines, place = _place(picture)
    text = "\n".join(lines)
    if pattern is not None:  # it was drawn with its slashes escaped
        place, text = _unslashed(pattern, place), pattern
    within = "" if pattern is not None else f"in the pattern {shown(text)}, "
    after = text[place : place + 20]
    where = f"at character {place}, {shown(after)}" if after else "at its end"
    return f"{within}{where}: {what}", size(text[:place])


def _place(picture: str) -> tuple[list[str], int]:
    """The lines of an expression that is drawn, and the place in it that is marked.

    >>> _place("    a(\\n     ^"), _place("~~\\n1: ab\\n2: (\\n   ^\\n~~")
    ((['a('], 1), (['ab', '('], 3))
    """
    drawn = picture.split("\n")
    if not picture.startswith("~~"):  # a single line, and the mark below
        return [drawn[0][4:]], max(0, drawn[-1].find("^") - 4)
    lines, place = list[str](), 0
    for one in drawn:
        numbered = re.match(r" *\d+: ?", one)
        if numbered is not None:
            margin = numbered.end()
            lines.append(one[margin:])
        elif lines and not one.strip(" ^") and "^" in one:
            place = sum(len(line) + 1 for line in lines[:-1]) + one.find("^") - margin
    if spans := _SPANS_LINES.search(picture):
        place = sum(len(line) + 1 for line in lines[: int(spans[1]) - 1]) + int(spans[2]) - 1
    return lines, place


def slashed(pattern: str) -> str:
    """A regular expression as Lark writes it, between slashes.

    Line breaks are left as they are: in verbose mode, `(?x)`, they separate, and end comments. But
    Lark takes none after a backslash.

    >>> slashed("a/b\\\\/c\\\\\\n")
    'a\\\\/b\\\\/c\\\\n'
    """
    others = {"/": r"\/", "\\\n": r"\n"}
    escaped = re.sub(
        r"\\.|/", lambda found: others.get(found[0], found[0]), pattern, flags=re.DOTALL
    )
    return escaped or "(?:)"


def _unslashed(pattern: str, place: int) -> int:
    """A place in an expression, from that between slashes.

    >>> _unslashed("a/b(", 4)
    3
    """
    added = 0
    for found in re.finditer(r"\\.|/", pattern, flags=re.DOTALL):
        if found.start() + added >= place:
            break
        added += found[0] == "/"
    return place - added


def _offset(text: str, line: int, column: int) -> int:
    """Bytes before a line and column, which count from 1."""
    lines = text.split("\n")[:line]
    return sum(size(one) + 1 for one in lines[:-1]) + size(lines[-1][: column - 1])


def size(text: str) -> int:
    """Bytes of a text; a lone surrogate, which has no UTF-8 form, as if it had one.

    >>> size("é")
    2
    """
    return len(text.encode("utf-8", "surrogatepass"))
