"""How prompts, cuts and completions look on a terminal: colour there, marks alone elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from rich import box
from rich.table import Table
from rich.text import Text

from charwise.cli.completion import PromptCut
from charwise.tokens.vocabulary import Vocabulary

#: Printable stand-ins for characters that one would not see.
VISIBLE = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"})
SCISSORS = " ✂ "


def spelling(token: bytes) -> str:
    r"""Bytes as text; what is not UTF-8 as escapes.

    >>> spelling(b"na\xc3\xaf"), spelling(b"\xc3")
    ('naï', '\\xc3')
    """
    return token.decode("utf-8", "backslashreplace")


def visible(token: bytes) -> str:
    r"""Bytes as text with visible spaces.

    >>> visible(b"\n    return")
    '⏎␣␣␣␣return'
    """
    return spelling(token).translate(VISIBLE)


def token_spelling(vocabulary: Vocabulary, id: int) -> str:
    """A token for display: its bytes, or the name of a special token."""
    token = vocabulary.tokens[id]
    return vocabulary.special.get(id, f"<{id}>") if token is None else visible(token)


def cut_line(vocabulary: Vocabulary, cut: PromptCut, shown: int = 10) -> Text:
    """The last tokens of a prompt, divided by bars, with scissors where it is cut.

    >>> vocabulary = Vocabulary.from_bytes([b"->", b" N", b"od", b" Node"])
    >>> cut_line(vocabulary, PromptCut([0, 1, 2], 1, b" Nod", 0, 3)).plain
    '-> ✂ ␣N|od'
    """
    given_back = [token_spelling(vocabulary, id) for id in cut.ids[cut.kept :]]
    start = max(0, cut.kept - max(3, shown - len(given_back)))
    kept = [token_spelling(vocabulary, id) for id in cut.ids[start : cut.kept]]
    line = Text().append("…|" if start else "", "dim")
    line.append_text(_tokens(kept, ("white on grey23", "white on grey35")))
    line.append(SCISSORS, style="bold red")
    line.append_text(_tokens(given_back, ("bold black on yellow", "bold black on gold1")))
    return line


def _tokens(spellings: Sequence[str], styles: tuple[str, str]) -> Text:
    line = Text()
    for at, token in enumerate(spellings):
        if at:
            line.append("|", style="dim")
        line.append(token, style=styles[at % 2])
    return line


def cut_sentence(cut: PromptCut, rule: object) -> str:
    """What the cut means, in words.

    >>> cut_sentence(PromptCut([0, 1, 2], 1, b" Nod", 0, 3), "auto")
    "2 tokens given back; ' Nod' is forced; 3 tokens may come first."
    """
    dropped = (
        f" The first {cut.dropped} tokens do not fit the model's window." if cut.dropped else ""
    )
    if not cut.forced:
        why = (
            "the prompt ends where a token must end" if rule == "auto" else f"the rule is {rule!r}"
        )
        return f"Nothing given back: {why}.{dropped}"
    back = len(cut.ids) - cut.kept
    return (
        f"{_count(back, 'token')} given back; {spelling(cut.forced)!r} is forced; "
        f"{_count(cut.allowed, 'token')} may come first.{dropped}"
    )


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def completion_table(prompt: str, completions: Mapping[str, Sequence[str]]) -> Table:
    """One column for each method; below, its completions after the prompt's last line.

    Methods may have found different numbers of completions.
    """
    found = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for name in completions:
        found.add_column(name, overflow="fold", ratio=1)
    last_line = prompt[prompt.rfind("\n") + 1 :].lstrip()[-32:]
    for row in zip_longest(*completions.values()):
        found.add_row(*("" if text is None else _continued(last_line, text) for text in row))
    return found


def _continued(line: str, completion: str) -> Text:
    return Text().append(line, "dim").append(completion.rstrip("\n"), "bold green")
