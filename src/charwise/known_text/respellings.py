"""What occurs again in a text, and other ways to split it, the same at each occurrence.

A model that sees a word a second time expects it in the tokens in which it came first. So a
tokenization that splits a word in its own way gains on the canonical one at each occurrence, if it
splits it so every time, and an alternative that is tried once does not show it. A *respelling* is
such a path: one stretch split in one other way wherever it occurs, and all else as before. It is
one of bytes: what comes before and after it in the tokens that hold it may differ. Runs of one
byte, as indentation is, are respelled whatever their lengths are: all in tokens of one size. A long
run repeats what it begins with, so one is enough.
`repeats.py` tries them.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

from charwise.errors import TokenizationError
from charwise.known_text.runs import OFTEN, RUN, Span, add, patterned, runs, tiled
from charwise.tokens.index import SortedVocabulary

#: Longest stretch, and shortest word that is found at the beginning of another, in bytes.
_LONGEST, _STEM = 24, 3

#: A word is split in all ways, not only in those that are near the canonical, where a text is made
#: of it to one part in so many; into so many tokens more than it needs; and in so many ways.
_MUCH, _MORE, _WAYS = 8, 2, 100

#: A stretch, where it is respelled, and where each place is cut, in bytes from its start.
Way = tuple[bytes, list[tuple[Span, tuple[int, ...]]]]

_WORD = re.compile(rb"[0-9A-Za-z\x80-\xff]+")


class Place(NamedTuple):
    """An occurrence: the bytes [start, stop), which begin and end with tokens, and its tokens.

    >>> Place(start=3, stop=6, tokens=(7, 8)).stop
    6
    """

    start: int
    stop: int
    tokens: tuple[int, ...]


class Respelling(NamedTuple):
    """Tokens for each occurrence of a stretch, from left to right: not all are the canonical ones.

    Attributes:
        stretch: what is split otherwise.
        places: where, and how.
        waits: whether it is tried where all others left room for it.

    >>> Respelling(b"ab", (Place(0, 2, (1, 2)), Place(3, 5, (1, 2)))).places[1].start
    3
    """

    stretch: bytes
    places: tuple[Place, ...]
    waits: bool = False


def respellings(text: bytes, canonical: Sequence[int], index: SortedVocabulary) -> list[Respelling]:
    """All ways to split what occurs again otherwise at one occurrence or more.

    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"b", b" ", b"ab"]))
    >>> [found] = respellings(b"ab ab", [3, 2, 3], index)
    >>> found.stretch, [place.tokens for place in found.places]
    (b'ab', [(0, 1), (0, 1)])
    """
    starts = [0]
    for token in canonical:
        starts.append(starts[-1] + index.length(token))
    text = text[: starts[-1]]  # there may be no canonical tokens for all of it
    ways: list[Way] = []
    for stretch, spans in occurrences(text, starts).items():
        splits = dict.fromkeys(
            tuple(at - span.start for at in starts[span.first + 1 : span.last]) for span in spans
        )
        others = [*splits, *_other_cuts(stretch, list(splits), index)]
        if len(spans) >= OFTEN:
            others += _all_cuts(len(stretch))
        ways += [(stretch, [(span, cuts) for span in spans]) for cuts in dict.fromkeys(others)]
    for byte, size, spans in runs(text, starts):
        ways.append((byte * size, [(span, tiled((), size, span)) for span in spans]))
    usual = len(ways)
    ways += words(text, starts, index)
    for run, size, spans in patterned(text, starts):
        for cuts in dict.fromkeys(_all_cuts(size)):
            ways.append((run, [(span, tiled(cuts, size, span)) for span in spans]))
    found: dict[tuple[Place, ...], Respelling] = {}
    for number, (stretch, way) in enumerate(ways):
        places, differs = list[Place](), False
        for span, cuts in way:
            begin, end = starts[span.first], starts[span.last]
            tokens = _tokens(text[begin:end], span.start - begin, span.stop - begin, cuts, index)
            if tokens:
                places.append(Place(begin, end, tokens))
                differs |= tokens != tuple(canonical[span.first : span.last])
        if differs and len(places) > 1:
            one = Respelling(stretch, tuple(places), waits=number >= usual)
            found.setdefault(one.places, one)
    return list(found.values())


def occurrences(text: bytes, starts: Sequence[int]) -> dict[bytes, list[Span]]:
    """What occurs twice or more: words, also at the beginning of longer ones; tokens inside longer
    words; and tokens, with and without a space before them, unless they are of one byte only.

    Args:
        text: σ.
        starts: where its canonical tokens begin, and where the last ends.

    >>> occurrences(b"ab ab", [0, 2, 5])
    {b'ab': [Span(start=0, stop=2, first=0, last=1), Span(start=3, stop=5, first=1, last=2)]}
    """
    parts = list[tuple[int, int]]()
    words = [word.span() for word in _WORD.finditer(text)]
    stems = {text[start:stop] for start, stop in words if _STEM <= stop - start <= _LONGEST}
    for start, stop in words:
        longest = min(stop, start + _LONGEST + 1)
        parts += [(start, end) for end in range(start + _STEM, longest) if text[start:end] in stems]
        parts.append((start, stop))
        inside = starts[bisect_right(starts, start) : bisect_left(starts, stop)]
        parts += pairwise([start, *inside, stop]) if inside else []
    for start, stop in pairwise(starts):
        token = text[start:stop]
        if not RUN.fullmatch(token):
            parts += [(start, stop), (stop - len(token.removeprefix(b" ")), stop)]
    found: dict[bytes, list[Span]] = {}
    for start, stop in sorted(set(parts)):
        if 1 < stop - start <= _LONGEST:
            add(found.setdefault(text[start:stop], []), start, stop, starts)
    return {stretch: spans for stretch, spans in found.items() if len(spans) > 1}


def words(text: bytes, starts: Sequence[int], index: SortedVocabulary) -> Iterator[Way]:
    """All ways to split the words that much of a text is made of, and the space before them.

    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"m", b"o", b" ", b"mo"]))
    >>> found = words(b"mo mo mo mo", [0, 2, 3, 5, 6, 8, 9, 11], index)
    >>> [cuts for _, way in found for _, cuts in way[1:2]]  # of the second, and of the space too
    [(), (1,), (1,), (1, 2)]
    """
    found: dict[bytes, list[Span]] = {}
    for match in _WORD.finditer(text):
        if match.end() - match.start() <= _LONGEST:
            add(found.setdefault(match[0], []), *match.span(), starts)
    for word, spans in found.items():
        if len(spans) < OFTEN or len(word) * len(spans) * _MUCH < len(text):
            continue
        spaced = [_with_space(span, text, starts) for span in spans]
        apart = [new.start < span.start for new, span in zip(spaced, spans, strict=True)]
        for cuts in spellings(word, index):
            yield word, [(span, cuts) for span in spans]
            later = (1, *(cut + 1 for cut in cuts))
            yield word, [(s, later if own else cuts) for s, own in zip(spaced, apart, strict=True)]
        for cuts in spellings(b" " + word, index):
            if cuts[:1] != (1,):
                yield word, [(s, cuts) for s, own in zip(spaced, apart, strict=True) if own]


def _with_space(span: Span, text: bytes, starts: Sequence[int]) -> Span:
    """A word and the space before it, if there is one."""
    if text[span.start - 1 : span.start] != b" ":
        return span
    start = span.start - 1
    return span._replace(start=start, first=bisect_right(starts, start) - 1)


def spellings(stretch: bytes, index: SortedVocabulary) -> list[tuple[int, ...]]:
    """Where tokens may cut some bytes: in as few tokens as can be, or `_MORE` more than that.

    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"b", b"ab"]))
    >>> spellings(b"aba", index)
    [(2,), (1, 2)]
    """
    ways: list[list[tuple[int, ...]]] = [[] for _ in range(len(stretch))]  # up to each byte
    ways.append([()])
    for at in reversed(range(len(stretch))):
        rest, found = stretch[at:], list[tuple[int, ...]]()
        lo, hi = index.twins(rest)
        whole = [len(rest)] if lo < hi else []
        for length in dict.fromkeys([*whole, *map(index.length, index.prefixes(rest))]):
            found += [(at + length, *after) for after in ways[at + length]]
        found.sort(key=len)
        ways[at] = [way for way in found if len(way) <= len(found[0]) + _MORE][:_WAYS]
    return [way[:-1] for way in ways[0]]


def _all_cuts(size: int) -> list[tuple[int, ...]]:
    """All ways to split so many bytes, of many those with two cuts or fewer, and into bytes."""
    inner = range(1, size)
    most = len(inner) if len(inner) < 6 else 2
    found = [cuts for k in range(most + 1) for cuts in combinations(inner, k)]
    return [*found, tuple(inner)]


def _other_cuts(
    stretch: bytes, splits: Sequence[tuple[int, ...]], index: SortedVocabulary
) -> Iterator[tuple[int, ...]]:
    """One token of a split made shorter or longer, and what follows split canonically."""
    for cuts in splits:
        for n, (begin, end) in enumerate(pairwise([0, *cuts, len(stretch)])):
            # What comes before the first token may be a part of it: then any size is possible.
            sizes = map(index.length, index.prefixes(stretch[begin:]))
            for size in range(1, len(stretch)) if not begin else sizes:
                first, at = stretch[begin : begin + size], begin + size
                if at == end:
                    continue
                yield from _joined((*cuts[:n], at), stretch, index)
                repeated = [*cuts[:n], at]
                while stretch.startswith(first, at) and at + size < len(stretch):
                    at += size
                    repeated.append(at)
                if len(repeated) > n + 1:
                    yield from _joined(tuple(repeated), stretch, index)


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
    whole: bytes, start: int, stop: int, cuts: Sequence[int], index: SortedVocabulary
) -> tuple[int, ...]:
    """The tokens of some bytes, where those from `start` to `stop` are cut so; none if one is none.

    What is before and after goes with the first and last token, or where there is no such token
    has its own.
    """
    edges = [0, *(start + cut for cut in cuts), len(whole)]
    tokens = list[int]()
    for begin, end in pairwise(edges):
        lo, hi = index.twins(whole[begin:end])
        if lo < hi:
            tokens.append(int(index.ids[lo]))
            continue
        lead = start if begin == 0 < start < end else begin
        trail = stop if lead < stop < end else end
        if (lead, trail) == (begin, end):
            return ()
        for a, b in ((begin, lead), (lead, trail), (trail, end)):
            lo, hi = index.twins(whole[a:b])
            if a < b and lo == hi:
                return ()
            tokens += index.ids[lo : lo + 1].tolist() if a < b else []
    return tuple(tokens)
