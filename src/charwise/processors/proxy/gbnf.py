"""Grammars of llama.cpp (GBNF) that begin with a given text.

A grammar is over characters, not bytes: the text must be whole characters, and what follows it is
valid UTF-8 without U+0000, of which llama.cpp lets no token through. Tokens may split characters.
"""

from __future__ import annotations

import re

from charwise.errors import SettingError

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


def literal(text: str) -> str:
    r"""A text as a string of a grammar.

    >>> print(literal('x = "\n'), literal("naï"))
    "x = \u0022\u000A" "na\u00EF"
    """
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character.isascii() and (character.isalnum() or character in " _=.,:;()+-*/"):
        return character
    code = ord(character)
    return f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"


def forced_first(text: str, grammar: str | None = None) -> str:
    """A grammar of a text and whatever follows, or of a text and what another grammar allows.

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
        return f"root ::= {literal(text)} .*"
    names = {found["name"] for found in _TOKENS.finditer(grammar)}
    if "root" not in names or _USERS_ROOT in names:
        raise SettingError(
            f"the grammar must have a rule named root, and none named {_USERS_ROOT}."
        )
    renamed = _TOKENS.sub(
        lambda found: _USERS_ROOT if found["name"] == "root" else found[0], grammar
    )
    return f"root ::= {literal(text)} {_USERS_ROOT}\n{renamed}"
