r"""Characters and words of a text: where each begins and ends.

A character is what `text.decode("utf-8", "surrogateescape")` has one of: a byte that is no part
of a valid character is a character of its own. So every byte belongs to exactly one character,
and for valid UTF-8 the offsets are those of a Python string. Whitespace is what `\s` matches.

A character that a reader sees, a *grapheme cluster*, may be several code points: a letter with its
marks, an emoji with its modifiers, `\r\n`. No word begins or ends inside one.

Words end at whitespace, or where Unicode text segmentation (UAX 29) says, with one tailoring for
code: a full stop or a colon between letters is no part of a word. UAX 29 ends a word after each Han
or Hiragana character, and in Thai, Lao, Khmer and Burmese after each cluster. Who knows better
passes boundaries: offsets in characters, or a function that returns them.
"""

import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from charwise.errors import SettingError, items, quote

#: Where words begin and end inside a text, in characters: offsets, or a function that finds them.
Boundaries = Iterable[int] | Callable[[str], Iterable[int]]

#: Which whitespace belongs to a word; "ending": none, but the word pays for its end.
Convention = Literal["leading", "trailing", "none", "ending"]

#: The words of each convention, over the parts of a text: "x" for a part, " " for whitespace. Each
#: pattern takes all parts.
WORDS = {"leading": " *x| +", "trailing": "x *| +", "none": "x| +", "ending": "x| +"}


def characters_of(text: bytes) -> tuple[str, NDArray[np.int64]]:
    """The characters of a text, and the `[n_characters + 1]` byte offsets between which they lie.

    >>> string, edges = characters_of("naïve".encode() + b"\\xff!")
    >>> len(string), edges.tolist()
    (7, [0, 1, 2, 4, 5, 6, 7, 8])
    """
    string = text.decode("utf-8", "surrogateescape")
    codes = np.frombuffer(string.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    sizes = 1 + np.searchsorted([0x80, 0x800, 0x10000], codes, side="right")
    sizes[(codes >= 0xDC80) & (codes <= 0xDCFF)] = 1  # what the decoder makes of stray bytes
    return string, np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))


def graphemes(text: str) -> list[int]:
    """The `[n + 1]` offsets between the n grapheme clusters of a text, in characters.

    >>> graphemes("na\\u00efve"), graphemes("nai\\u0308ve\\r\\n")
    ([0, 1, 2, 3, 4, 5], [0, 1, 2, 4, 5, 6, 8])
    """
    if text.isascii() and "\r" not in text:
        return list(range(len(text) + 1))
    import regex

    return [0, *(match.end() for match in regex.finditer(r"\X", text))]


def _word_edges(text: str, boundaries: Boundaries | None = None) -> list[int]:
    """The offsets in characters between the words of a text and the stretches between them.

    Of boundaries in place of Unicode's, those inside a grapheme cluster are left out.
    """
    edges = {0, len(text)}
    if boundaries is None:
        import regex

        edges.update(one.start() for one in regex.finditer(r"(?w)\b", text))
        edges.update(_operators(text, sorted(edges)))
    else:
        places = items(boundaries(text) if callable(boundaries) else boundaries)
        if places is None or not set(places) <= set(range(len(text) + 1)):
            raise SettingError(f"a boundary is not in the text: give a list, 0 to {len(text)}.")
        edges.update(places)
    return sorted(edges.intersection(graphemes(text)))


def words(
    string: str, convention: Convention, boundaries: Boundaries | Literal["unicode"] | None = None
) -> list[tuple[int, int]]:
    """The words of a text under a convention, as offsets in characters; all of it is in one.

    Args:
        string: the text.
        convention: which whitespace belongs to a word; "ending" cuts as "none" does.
        boundaries: where words end besides at whitespace; no grapheme cluster is split.

    Raises:
        SettingError: another convention; boundaries that are not inside the text.

    >>> [[" to be"[a:b] for a, b in words(" to be", each)] for each in ("leading", "trailing")]
    [[' to', ' be'], [' ', 'to ', 'be']]
    >>> [" f(न्दी)"[a:b] for a, b in words(" f(न्दी)", "leading", "unicode")]
    [' f', '(', 'न्दी', ')']
    """
    if convention not in WORDS:
        raise SettingError(f"convention is {quote(convention)}: choose one of {', '.join(WORDS)}.")
    pattern = WORDS[convention]
    if boundaries is None:
        pattern = pattern.replace("x", "x+")
        if string.isascii():  # each character is a part
            pattern = pattern.replace("x", r"\S").replace(" ", r"\s")
            return [match.span() for match in re.finditer(pattern, string)]
        edges = graphemes(string)
    else:
        edges = _word_edges(string, None if boundaries == "unicode" else boundaries)
    kinds = "".join(" " if string[a:b].isspace() else "x" for a, b in pairwise(edges))
    return [(edges[m.start()], edges[m.end()]) for m in re.finditer(pattern, kinds)]


def _operators(text: str, edges: list[int]) -> list[int]:
    """The places around full stops and colons inside words, but for those between digits."""
    places: list[int] = []
    for start, end in pairwise(edges):
        if "." in text[start:end] or ":" in text[start:end]:
            for at in range(start + 1, end - 1):
                digits = text[at - 1].isdigit() and text[at + 1].isdigit()
                if text[at] in ".:" and not digits:
                    places += [at, at + 1]
    return places
