"""Where a tokenizer splits a text into words before it merges, and where it may yet.

The regular expressions that split look ahead: of a run of spaces the last belongs to the word that
follows, a line end draws in all spaces before it, and `'re` is one word where `'r` was two. So
after a text, and a token more, each border has been split, has not, or that depends on what comes.
All of this is asked of the tokenizer's own splitter, on short texts in which each character stands
for all that its expressions do not tell apart, with each kind of character that may come next.
"""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

from charwise.errors import VocabularyError
from charwise.tokens.utf8 import needs, pending

#: The expression of GPT-2, which a ByteLevel pre-tokenizer implies.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

#: Characters of one kind, in a row, that stand for more of them: no expression here counts so far.
_SAME = 4

_ESCAPES = {"r": "\r", "n": "\n", "t": "\t", "v": "\v", "f": "\f"}
_SPACES = frozenset(
    map(chr, [*range(9, 14), 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B)])
) | frozenset("\u2028\u2029\u202f\u205f\u3000")

#: Whether a border must be split, must not be, or may be either; or was settled.
SPLIT, WHOLE, EITHER, SETTLED = "snb."


class Tail(NamedTuple):
    """The end of a text, from the last border that is split before any next text.

    >>> Tail("  ", "s").begun
    b''
    """

    text: str = ""  # each character one of its kind
    #: what must be at each border inside of it; with `begun`, also before that
    borders: str = ""
    begun: bytes = b""  # of a character


class Border(NamedTuple):
    """How a token may come after a tail: as a new word, or as a part of the last word.

    >>> Border(True, False, True, False).split
    True
    """

    split: bool
    joined: bool
    split_now: bool  # also if nothing comes after it
    joined_now: bool


class Splitter:
    """The splits that a tokenizer makes before it merges.

    Args:
        split: a text → the offsets inside of it, in characters, where it is split.
        patterns: the expressions that do so, to tell characters apart by.
        literals: characters that it tells apart besides.
        categories: Unicode's general categories, or their first letters, likewise.

    Raises:
        VocabularyError: an expression that looks further than one character ahead, or behind.

    >>> word = lambda text: [at for at in range(1, len(text)) if text[at] == " "]
    >>> splitter = Splitter(word, [r" ?[^ ]+"])
    >>> splitter.border(Tail("a"), " a").split, splitter.border(Tail("a"), "a").split
    (True, False)
    """

    def __init__(
        self,
        split: Callable[[str], Iterable[int]],
        patterns: Sequence[str] = (),
        literals: Iterable[str] = (),
        categories: Iterable[str] = (),
    ) -> None:
        read = [_read(pattern) for pattern in patterns]
        self._literals = frozenset(literals).union(*(one.literals for one in read))
        self._categories = sorted(set(categories).union(*(one.categories for one in read)))
        self._ranges = sorted(set().union(*(one.ranges for one in read)))
        letters = {c.casefold() for one in read for c in one.letters}
        self.contracted = frozenset(chr(c) for c in range(0x250) if chr(c).casefold() in letters)
        self._kinds: dict[tuple[Any, ...], str] = {}
        self._begun: dict[bytes, list[str]] = {b"": [""]}
        self.kind = lru_cache(2**16)(self._kind)
        self.split = lru_cache(2**14)(lambda text: frozenset(split(text)))
        kinds = dict.fromkeys(map(self.kind, map(chr, range(0x20, 0x3000))))
        kinds.update(dict.fromkeys(map(self.kind, "\t\n\r\x00")))
        self._next = ["", *kinds]
        self._contractions = [*sorted(letters), *map("".join, product(sorted(letters), repeat=2))]
        self.settle = lru_cache(2**14)(self._settle)

    def _kind(self, character: str) -> str:
        """A character that stands for all that are split alike."""
        category = unicodedata.category(character)
        told = (
            character if character in self._literals else character in _SPACES,
            tuple(category.startswith(name) for name in self._categories),
            tuple(low <= character <= high for low, high in self._ranges),
        )
        return self._kinds.setdefault(told, character)

    def written(self, text: str, before: str = "") -> str:
        """A text with each character one of its kind, after a tail.

        The letters of contractions stay, up to two after an apostrophe.
        """
        whole, out = before + text, []
        for at in range(len(before), len(whole)):
            mark = whole.rfind("'", 0, at)
            near = mark >= 0 and at - mark <= 2 and whole[at] in self.contracted
            out.append(whole[at] if near else self.kind(whole[at]))
        return "".join(out)

    def beginnings(self, begun: bytes) -> list[str]:
        """One of each kind of character whose UTF-8 form begins so.

        >>> len(Splitter(lambda text: [], [r"\\p{L}+"]).beginnings("é".encode()[:1]))
        2
        """
        if begun not in self._begun:
            low, high = code_points(begun)
            some = {unicodedata.category(c): c for c in map(chr, range(low, high + 1))}
            told = {*self._literals, *_SPACES, *(end for ends in self._ranges for end in ends)}
            near = [c for c in told if low <= ord(c) <= high]
            kinds = map(self.kind, [c for name, c in some.items() if name != "Cs"] + near)
            self._begun[begun] = list(dict.fromkeys(kinds))
        return self._begun[begun]

    def _after(self, text: str) -> list[str]:
        """Return possible next texts: none, or one of each kind; the ends of contractions."""
        return self._next + self._contractions if "'" in text[-2:] else self._next

    def border(self, tail: Tail, more: str) -> Border:
        """How a token may come after a tail.

        `more` is its text as `written`; a character that the tail begins is its first.
        """
        at = len(tail.text)
        whole = tail.text + more
        inside = range(at + 1, len(whole))
        found = [False] * 4
        for following in self._after(whole):
            cut = self.split(whole + following)
            if cut.isdisjoint(inside) and _holds(tail.borders, cut):
                joined = at > 0 and at not in cut
                found[joined] = True
                found[2 + joined] |= not following
                if found[0] and found[1]:
                    break
        return Border(*found)

    def ends(self, tail: Tail) -> bool:
        """Whether a text may end after a tail."""
        return not tail.begun and _holds(tail.borders, self.split(tail.text))

    def _settle(self, tail: Tail) -> Tail | None:
        """Return the tail without the part that no next text can change; None if none may come."""
        text, borders, begun = tail
        cuts = [
            self.split(text + first + following)
            for first in self.beginnings(begun)
            for following in self._after(text + first)
        ]
        if not any(_holds(borders, cut) for cut in cuts):
            return None
        marks, start = list(borders), 0
        for at in range(1, len(borders) + 1):
            always, ever = all(at in cut for cut in cuts), any(at in cut for cut in cuts)
            if always == ever:
                marks[at - 1] = SETTLED
        # Cut where all borders so far are settled, and the last of them is split.
        for at in range(1, len(borders) + 1):
            if marks[at - 1] != SETTLED:
                break
            if all(at in cut for cut in cuts):
                start = at
        text, borders = text[start:], "".join(marks[start:])
        return Tail(*shorter(text, borders), begun)


def _holds(borders: str, cut: frozenset[int]) -> bool:
    """Whether splits are where they must be, and nowhere where they must not."""
    return all(
        mark in (EITHER, SETTLED) or (mark == SPLIT) == (at in cut)
        for at, mark in enumerate(borders, start=1)
    )


def shorter(text: str, borders: str) -> tuple[str, str]:
    """The same, where more than `_SAME` of a kind are as many.

    >>> shorter("aaaaaaa ", ".......")
    ('aaaa ', '....')
    """
    at = 0
    while at + _SAME < len(text):
        same = text[at : at + _SAME + 1] == text[at] * (_SAME + 1)
        if same and borders[at : at + _SAME] == SETTLED * _SAME:
            text, borders = text[:at] + text[at + 1 :], borders[:at] + borders[at + 1 :]
        else:
            at += 1
    return text, borders


def code_points(begun: bytes) -> tuple[int, int]:
    """The first and the last character whose UTF-8 form begins so; none if that is impossible.

    >>> [chr(code) for code in code_points(b"\\xc3")], code_points(b"\\x80")
    (['À', 'ÿ'], (0, -1))
    """
    missing = needs(begun)
    if missing < 0:
        return 0, -1
    size = len(begun) + missing
    lead = begun[0] if size == 1 else begun[0] & (0x7F >> size)
    low = functools.reduce(lambda code, byte: code << 6 | byte & 0x3F, begun[1:], lead)
    least = (0, 0x80, 0x800, 0x10000)[size - 1]
    return max(least, low << 6 * missing), min(0x10FFFF, (low + 1 << 6 * missing) - 1)


def taken_apart(token: bytes) -> tuple[str, bytes] | None:
    """The whole characters of a token, and those bytes that begin another; None if it has others.

    >>> taken_apart("aï".encode()[:-1]), taken_apart(b"\\x80")
    (('a', b'\\xc3'), None)
    """
    begun = pending(token)
    try:
        return token[: len(token) - len(begun)].decode(), begun
    except UnicodeDecodeError:
        return None


class _Read(NamedTuple):
    """The classes by which an expression tells characters apart."""

    literals: frozenset[str]
    letters: frozenset[str]  # of contractions
    categories: frozenset[str]
    ranges: frozenset[tuple[str, str]]


def _read(pattern: str) -> _Read:
    """The classes by which an expression tells characters apart.

    Raises:
        VocabularyError: what it does that `Splitter` does not expect.
    """
    rest = re.sub(r"\(\?i:", "(?:", pattern)
    if re.search(r"\(\?(?!:|!\\S\))", rest) or re.search(r"\\[bBAZzGhRX]|[$^](?![^\[]*\])", rest):
        raise _not_read(pattern)
    names = {name for _, name in re.findall(r"\\([pP])\{\^?(\w+)\}", rest)}
    if any(len(name) > 2 for name in names):
        raise _not_read(pattern)
    if re.search(r"\\d", rest):
        names.add("Nd")
    if re.search(r"\\w", rest):
        names.update(("L", "M", "N", "Pc"))
    if any(int(most) >= _SAME for most in re.findall(r"\{(?:\d*,)?(\d+)\}", rest)):
        raise _not_read(pattern)
    rest = re.sub(r"\\[pP]\{\^?\w+\}|\\[sSdDwW]|\(\?:|\(\?!|\{\d*,?\d*\}", "", rest)
    rest = re.sub(r"\\([rntvf])", lambda found: _ESCAPES[found[1]], rest)
    ranges = set(re.findall(r"([^\[\\])-([^\]\\])", "".join(re.findall(r"\[[^\]]*\]", rest))))
    plain = re.sub(r"(?<!\\)[\[\]()|?*+^]", "", rest.replace("\\\\", "\\")).replace("\\", "")
    letters = frozenset(c for c in plain if c.isalpha())
    if ranges:
        letters = frozenset(c for c in letters if not any(c in pair for pair in ranges))
    if letters and not letters <= frozenset("stremvlda") | frozenset("STREMVLDA"):
        raise _not_read(pattern)
    return _Read(frozenset(plain) - letters, letters, frozenset(names), frozenset(ranges))


def _not_read(pattern: str) -> VocabularyError:
    return VocabularyError(
        f"the tokenizer splits texts by {pattern!r}, which may look further ahead than one "
        "character: what is canonical cannot be told as a text grows. Use estimand='all'."
    )


def splitter_of(tokenizer: Any) -> Splitter:
    """The splitter of a `tokenizers.Tokenizer`, as it encodes.

    Raises:
        VocabularyError: one of a kind that is not known here.

    >>> from charwise.models import EMBEDDED
    >>> import tokenizers
    >>> one = splitter_of(tokenizers.Tokenizer.from_file(EMBEDDED + "/tokenizer.json"))
    >>> sorted(one.split("a  b1234"))
    [1, 2, 4, 7]
    """
    normalizer, first = tokenizer.normalizer, tokenizer.pre_tokenizer
    if first is None:
        return Splitter(lambda text: ())
    if normalizer is not None and len(normalizer.normalize_str("é")) != 1:
        raise VocabularyError(
            "the tokenizer splits texts after its normalizer has made several characters of one: "
            "where it splits the text itself cannot be told. Use estimand='all'."
        )
    state = json.loads(first.__getstate__())
    parts = state["pretokenizers"] if state["type"] == "Sequence" else [state]
    patterns, literals, categories = list[str](), set[str](), set[str]()
    for part in parts:
        kind = part["type"]
        if kind == "Split" and part["behavior"] != "Removed":
            given = part["pattern"]
            patterns += [given["Regex"]] if "Regex" in given else []
            literals.update(given.get("String", ""))
        elif kind == "ByteLevel":
            patterns += [_GPT2] if part.get("use_regex", True) else []
        elif kind == "Digits":
            categories.add("N")
        elif kind == "Metaspace":
            if part.get("split", True):
                literals.update(" ▁")
        else:
            raise VocabularyError(
                f"the tokenizer splits texts by its pre-tokenizer {kind}, of which it is not known "
                "how far it looks ahead: what is canonical cannot be told. Use estimand='all'."
            )

    def split(text: str) -> list[int]:
        given = text if normalizer is None else normalizer.normalize_str(text)
        ends = [end for _, (_, end) in first.pre_tokenize_str(given)]
        return [end for end in ends if end < len(text)]

    return Splitter(split, patterns, literals, categories)
