"""What occurs again in a text, and other ways to split it, the same at each occurrence.

A model that sees a word a second time expects it in the tokens in which it came first. So a
tokenization that splits a word in its own way gains on the canonical one at each occurrence, if it
splits it so every time, and an alternative that is tried once does not show it. A *respelling* is
such a path: one stretch split in one other way wherever it occurs, and all else as before.
`repeats.py` tries them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

from charwise.errors import TokenizationError
from charwise.tokens.index import SortedVocabulary

#: Longest word that is taken as a whole, in bytes.
_LONGEST = 24

#: What occurs so many times is split in many ways, not only in those that are near the canonical.
OFTEN = 4


class Place(NamedTuple):
    """An occurrence: the bytes [start, stop), which begin and end with tokens, and its tokens.

    >>> Place(start=3, stop=6, tokens=(7, 8)).stop
    6
    """

    start: int
    stop: int
    tokens: tuple[int, ...]


class Respelling(NamedTuple):
    """Other tokens for each occurrence of a stretch, from left to right.

    >>> Respelling(b"ab", (Place(0, 2, (1, 2)), Place(3, 5, (1, 2)))).places[1].start
    3
    """

    stretch: bytes
    places: tuple[Place, ...]


def respellings(text: bytes, canonical: Sequence[int], index: SortedVocabulary) -> list[Respelling]:
    """All ways to split what occurs again otherwise, one change of the canonical tokens each.

    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"b", b" ", b"ab"]))
    >>> [found] = respellings(b"ab ab", [3, 2, 3], index)
    >>> found.stretch, [place.tokens for place in found.places]
    (b'ab', [(0, 1), (0, 1)])
    """
    starts = [0]
    for token in canonical:
        starts.append(starts[-1] + index.length(token))
    found = []
    for stretch, spans in occurrences(text, starts).items():
        splits = dict.fromkeys(
            tuple(end - (stop - len(stretch)) for end in starts[first + 1 : last])
            for first, last in spans
            for stop in (starts[last],)
        )
        others = [*splits, *_other_cuts(stretch, list(splits), index)]
        if len(spans) >= OFTEN:
            inner = range(1, len(stretch))
            most = len(inner) if len(inner) < 6 else 2
            others += [cuts for k in range(most + 1) for cuts in combinations(inner, k)]
            others.append(tuple(inner))
        for cuts in dict.fromkeys(others):
            places = []
            for first, last in spans:
                whole = text[starts[first] : starts[last]]
                tokens = _tokens(whole, len(whole) - len(stretch), cuts, index)
                if tokens and tokens != tuple(canonical[first:last]):
                    places.append(Place(starts[first], starts[last], tokens))
            if len(places) > 1:
                found.append(Respelling(stretch, tuple(places)))
    return found


def occurrences(text: bytes, starts: Sequence[int]) -> dict[bytes, list[tuple[int, int]]]:
    """What occurs twice or more: words, and tokens inside longer words, without a leading space.

    Args:
        text: σ.
        starts: where its canonical tokens begin, and where the last ends.

    Returns:
        For each stretch the canonical tokens, first and last, of its occurrences.

    >>> occurrences(b"ab ab", [0, 2, 5])
    {b'ab': [(0, 1), (1, 2)]}
    """
    found: dict[bytes, list[tuple[int, int]]] = {}
    for first, last in _words(text, starts):
        word = text[starts[first] : starts[last]].removeprefix(b" ")
        if 1 < len(word) <= _LONGEST:
            found.setdefault(word, []).append((first, last))
        if last - first > 1:
            for n in range(first, last):
                part = text[starts[n] : starts[n + 1]].removeprefix(b" ")
                if len(part) > 1:
                    found.setdefault(part, []).append((n, n + 1))
    return {stretch: spans for stretch, spans in found.items() if len(spans) > 1}


def _words(text: bytes, starts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Runs of tokens that only letters and digits join."""
    first = 0
    for n, start in enumerate(starts[1:], start=1):
        if n == len(starts) - 1 or not (_inside(text[start]) and _inside(text[start - 1])):
            yield first, n
            first = n


def _inside(byte: int) -> bool:
    return byte >= 0x80 or chr(byte).isalnum()


def _other_cuts(
    stretch: bytes, splits: Sequence[tuple[int, ...]], index: SortedVocabulary
) -> Iterator[tuple[int, ...]]:
    """One token of a split made shorter or longer, and what follows split canonically."""
    for cuts in splits:
        for n, (begin, end) in enumerate(pairwise([0, *cuts, len(stretch)])):
            for token in index.prefixes(stretch[begin:]):
                size = index.length(token)
                first, at = stretch[begin : begin + size], begin + size
                if at == end:
                    continue
                yield from _joined((*cuts[:n], at), stretch, index)
                tiled = [*cuts[:n], at]
                while stretch.startswith(first, at) and at + size < len(stretch):
                    at += size
                    tiled.append(at)
                if len(tiled) > n + 1:
                    yield from _joined(tuple(tiled), stretch, index)


def _joined(
    cuts: tuple[int, ...], stretch: bytes, index: SortedVocabulary
) -> Iterator[tuple[int, ...]]:
    """A split that goes on canonically after its last cut, if what is left has tokens."""
    try:
        rest = index.vocabulary.encode(stretch[cuts[-1] :])
    except TokenizationError:
        return
    at = list(cuts)
    for token in rest[:-1]:
        at.append(at[-1] + index.length(token))
    yield tuple(at)


def _tokens(
    whole: bytes, lead: int, cuts: Sequence[int], index: SortedVocabulary
) -> tuple[int, ...]:
    """The tokens of a stretch, after `lead` bytes, cut so; none if one is no token."""
    edges = [0, *(lead + cut for cut in cuts), len(whole)]
    tokens = []
    for begin, end in pairwise(edges):
        lo, hi = index.twins(whole[begin:end])
        if lo == hi:
            return ()
        tokens.append(int(index.ids[lo]))
    return tuple(tokens)
