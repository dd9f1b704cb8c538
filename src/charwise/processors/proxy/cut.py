"""Prompts cut as text: the server behind tokenizes the kept part, as it would the whole prompt.

Not every cut between two tokens will do. What is kept must become the same tokens without its end;
what is forced must be whole characters, since grammars and answers are text. Where a cut is not
fit, one more token is given back.

A grammar of llama.cpp (GBNF) forces the rest. It is over characters, not bytes: the text must be
whole characters, and what follows it is valid UTF-8 without U+0000, of which llama.cpp lets no
token through. Tokens may split characters.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from charwise.errors import HealingError, SettingError
from charwise.healing import Rule
from charwise.processors.healed_prompt import HealedPrompt, heal_prompt
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.vocabulary import Vocabulary


class CutText(NamedTuple):
    """A prompt's text to keep, the text to reproduce after it, and the cut between tokens.

    Attributes:
        kept, forced: the text.
        healed: the cut.
        whole: whether the cut has all tokens of the prompt, not only those near its end.

    >>> CutText("->", " Nod", HealedPrompt([0], b" Nod", 2)).forced
    ' Nod'
    """

    kept: str
    forced: str
    healed: HealedPrompt
    whole: bool = True


def _most_forced(vocabulary: Vocabulary) -> int:
    """Most bytes that are forced: a grammar keeps a state for each.

    >>> _most_forced(Vocabulary.from_bytes([b"a"]))
    256
    """
    return max(256, 4 * vocabulary.munch)


def cut_text(
    prompt: str, index: SortedVocabulary, rule: Rule = "auto", *, starts: bool = False
) -> CutText:
    """Cut a prompt where healing should start, between two characters.

    Special tokens in the text are taken for themselves, as these servers do; only what comes
    after the last of them is cut. Of a long prompt only the end is tokenized, and the cut has only
    the tokens there.

    Args:
        prompt: its text.
        index: of the model's vocabulary.
        rule: where to cut, as for `healing.cut`.
        starts: whether nothing need be kept, since the server starts from a token of its own.

    Raises:
        HealingError: no fit cut near where the rule would have it, or too much to reproduce.
        SettingError: an unknown rule.

    >>> vocabulary = Vocabulary.from_bytes([b"->", b" ", b"No", b"d", b" Node", b"N"])
    >>> cut_text("-> Nod", SortedVocabulary(vocabulary))[:2]
    ('->', ' Nod')
    """
    near = _near_the_end(prompt, index.vocabulary, starts)
    parts = near.parts(near.tail)
    healed = heal_prompt(parts, index, rule)
    # So many tokens more are given back to find a fit cut.
    for more in range(8):
        if more:
            back = healed.given_back + 1
            healed = heal_prompt(parts, index, back)
            if healed.given_back < back:
                break
        found = _as_text(near, healed, index.vocabulary)
        if found is not None:
            most = _most_forced(index.vocabulary)
            if len(healed.forced) > most:
                raise HealingError(
                    f"{len(healed.forced)} bytes would be forced; at most {most} may be. Give "
                    "back fewer tokens, or leave it to the rule 'auto'."
                )
            return found
    raise HealingError(
        "the prompt cannot be cut near its end so that what is kept becomes the same tokens, and "
        "the rest is whole characters."
    )


class _Near(NamedTuple):
    """The end of a prompt, which is tokenized, and a stand-in for all before it."""

    head: str
    before: list[int]
    lead: str
    tail: str

    def parts(self, text: str) -> list[int | bytes]:
        return [*self.before, (self.lead + text).encode()] if text else [*self.before]


def _near_the_end(prompt: str, vocabulary: Vocabulary, starts: bool) -> _Near:
    """Return the text after the last special token, and of a long one the last lines."""
    special, end = None, 0
    pattern = _specials(tuple(sorted(vocabulary.special.values())))
    for found in pattern.finditer(prompt) if pattern else ():
        special, end = found[0], found.end()
    lead = vocabulary.lead.decode()
    # Of a longer prompt the last characters are tokenized: they hardly ever depend on the others.
    if len(prompt) - end > 8192:
        least = max(end, len(prompt) - 8192)
        line = prompt.find("\n", least, len(prompt) - 4096) + 1
        at = line or least
        return _Near(prompt[:at], [], "", prompt[at:])
    if special is not None:
        ids = {text: id for id, text in vocabulary.special.items()}
        return _Near(prompt[:end], [ids[special]], lead, prompt[end:])
    return _Near("", list(vocabulary.bos_ids) if starts else [], lead, prompt)


def _as_text(near: _Near, healed: HealedPrompt, vocabulary: Vocabulary) -> CutText | None:
    """The cut in the text itself; None if it is not fit."""
    try:
        forced = healed.forced.decode()
    except UnicodeDecodeError:
        return None
    head, tail = near.head, near.tail
    if not forced:
        return CutText(head + tail, "", healed, not head)
    if "\0" in forced:
        return None  # no grammar lets it through
    if forced == near.lead + tail and not head and near.before:
        return CutText("", forced, healed)  # all but the start token
    if not tail.endswith(forced):
        return None
    kept = tail[: len(tail) - len(forced)]
    if not kept and (near.lead or not head):
        return None  # the server adds the lead to text after a special token, if there is any
    ids = list(vocabulary.encode_prompt(near.parts(kept)))
    return CutText(head + kept, forced, healed, not head) if ids == healed.kept else None


@lru_cache(maxsize=4)
def _specials(texts: tuple[str, ...]) -> re.Pattern[str] | None:
    longest_first = sorted((re.escape(text) for text in texts if text), key=len, reverse=True)
    return re.compile("|".join(longest_first)) if longest_first else None


#: Where the user's grammar starts, once it is not the root any more.
_USERS_ROOT = "charwise-root"

# What names no rule: strings, character classes, tokens and comments; and a rule's name. One that
# is not closed runs on, and the server refuses it: to look for its end, fail and start at the next
# character would take the square of the grammar's length.
_TOKENS = re.compile(
    r"""(?P<other>"(?:\\.|[^"\\])*"?|\[(?:\\.|[^\]\\])*\]?|<[^>\s]*>?|\#[^\n]*)"""
    r"""|(?P<name>[A-Za-z0-9-]+)|(?P<rest>.)""",
    re.DOTALL,
)


def _literal(text: str) -> str:
    r"""A text as a string of a grammar.

    >>> print(_literal('x = "\n'), _literal("naï"))
    "x = \u0022\u000A" "na\u00EF"
    """
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character.isascii() and (character.isalnum() or character in " _=.,:;()+-*/"):
        return character
    code = ord(character)
    return f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"


def forced_first(text: str, grammar: str | None = None) -> str:
    """A grammar of a text followed by anything, or by a text of another grammar.

    Raises:
        SettingError: the other grammar has no rule `root`, or uses the name that it would get.

    >>> print(forced_first("Val"))
    root ::= "Val" .*
    >>> print(forced_first("Val", 'root ::= "root" item | root\\nitem ::= [root]'))
    root ::= "Val" charwise-root
    charwise-root ::= "root" item | charwise-root
    item ::= [root]
    """
    if grammar is None:
        return f"root ::= {_literal(text)} .*"
    names = {found["name"] for found in _TOKENS.finditer(grammar)}
    if "root" not in names or _USERS_ROOT in names:
        raise SettingError(
            f"the grammar must have a rule named root, and none named {_USERS_ROOT}."
        )
    renamed = _TOKENS.sub(
        lambda found: _USERS_ROOT if found["name"] == "root" else found[0], grammar
    )
    return f"root ::= {_literal(text)} {_USERS_ROOT}\n{renamed}"
