"""Runs of one byte, as indentation is: where a text has them, and in what sizes they are spelled.

A model that spells one line's indentation in tokens of some sizes expects those of the next line in
the same, whatever their lengths are: `respellings.py` splits them so. Where a stretch of any kind
stands among the canonical tokens is a `Span`.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

#: What occurs so many times is split in many ways, not only in those that are near the canonical.
OFTEN = 4

#: Runs of one byte are spelled in tokens of so many, long ones in these too.
_UNITS, _LONG_UNITS = (1, 2, 3, 4, 8), (16, 32)

#: A longer run is a long one; and the longest pattern of several sizes, in bytes.
_LONG, _PATTERN = 24, 12

RUN = re.compile(rb"([^0-9A-Za-z\x80-\xff])\1+|([0-9A-Za-z\x80-\xff])\2{7,}", re.DOTALL)

#: A long run of no letter or digit.
_NO_LETTERS = re.compile(rb"([^0-9A-Za-z\x80-\xff])\1{%d,}" % _LONG, re.DOTALL)

#: In a longer run of one letter or digit an error is made again at every token: at so many bytes
#: from its beginning twice, and so on, so many times at most.
_LETTERS = re.compile(rb"([0-9A-Za-z])\1{%d,}" % _LONG)
_AGAIN, _TIMES = 15, 10

#: A unit of up to `_PATTERN` bytes, so many times in a row, but not one letter or digit.
_AGAIN_AND_AGAIN = re.compile(rb"(.{1,%d}?)\1{7,}" % _PATTERN, re.DOTALL)
_ONE_LETTER = re.compile(rb"([0-9A-Za-z])\1*")


def made_again(text: bytes) -> NDArray[np.float64]:
    """`[n]` how many times over an error that is seen at a byte may have been made, at least once.

    A path that spells a long run in other tokens gains at each of them, so what an
    estimate sees there is a part of what is left.

    >>> made_again(b"on " + b"a" * 40)[[0, 3, 18, 33]].tolist()
    [1.0, 1.0, 1.0, 2.0]
    """
    times = np.ones(len(text))
    for run in _LETTERS.finditer(text):
        times[run.start() : run.end()] = np.arange(run.end() - run.start()) / _AGAIN
    return np.clip(times, 1.0, _TIMES)


def over_and_over(text: bytes) -> NDArray[np.bool_]:
    """`[n]` whether a byte is of a few that stand many times in a row, but for one letter or digit.

    What is off there adds up in a way that no share shows; `made_again` is for long runs of one
    letter or digit.

    >>> over_and_over(b"on " + b"ab, " * 9)[[0, 1, 3, 30]].tolist()
    [False, False, True, True]
    >>> bool(over_and_over(b"a" * 99).any())
    False
    """
    found = np.zeros(len(text), dtype=np.bool_)
    for stretch in _AGAIN_AND_AGAIN.finditer(text):
        if not _ONE_LETTER.fullmatch(stretch[0]):
            found[stretch.start() : stretch.end()] = True
    return found


def long_runs(text: bytes) -> list[tuple[int, int]]:
    """Where one byte that is no letter or digit stands many times in a row, in bytes.

    >>> long_runs(b"on " + b"-" * 40 + b" and " + b"a" * 40)
    [(3, 43)]
    """
    return [(run.start(), run.end()) for run in _NO_LETTERS.finditer(text)]


class Span(NamedTuple):
    """Where a stretch occurs, in bytes, and the canonical tokens [first, last) that hold it.

    >>> Span(start=1, stop=4, first=0, last=2).last
    2
    """

    start: int
    stop: int
    first: int
    last: int


def add(spans: list[Span], start: int, stop: int, starts: Sequence[int]) -> None:
    """One more occurrence, if its tokens are not those of the one before.

    >>> spans = list[Span]()
    >>> for start in (0, 1, 3):
    ...     add(spans, start, start + 1, starts=[0, 2, 4])  # two tokens
    >>> [span.start for span in spans]
    [0, 3]
    """
    first, last = bisect_right(starts, start) - 1, bisect_left(starts, stop)
    if not spans or spans[-1].last <= first:
        spans.append(Span(start, stop, first, last))


def runs(text: bytes, starts: Sequence[int]) -> Iterator[tuple[bytes, int, list[Span]]]:
    """Where a byte stands twice or more in a row, a letter or digit eight times, twice or more.

    A long run is taken apart where its tokens end, into spans that a size divides, all but the
    last.

    Returns:
        For each byte and size of tokens: the spans to be spelled in tokens of that size.

    >>> next(runs(b"  a   b", [0, 2, 3, 6, 7]))[2]
    [Span(start=0, stop=2, first=0, last=1), Span(start=3, stop=6, first=2, last=3)]
    >>> for _, size, spans in runs(b"-" * 36, [0, 12, 24, 36]):
    ...     print(size, [span.start for span in spans])
    1 [0, 12, 24]
    2 [0, 12, 24]
    3 [0, 12, 24]
    4 [0, 12, 24]
    8 [0, 24]
    """
    found: dict[bytes, list[Span]] = {}
    for run in RUN.finditer(text):
        add(found.setdefault(run[0][:1], []), run.start(), run.end(), starts)
    for byte, spans in found.items():
        long = any(span.stop - span.start > _LONG for span in spans)
        for size in (*_UNITS, *_LONG_UNITS) if long else _UNITS:
            parts = [part for span in spans for part in _parts(span, size, starts)]
            if len(parts) > 1:
                yield byte, size, parts


def patterned(text: bytes, starts: Sequence[int]) -> Iterator[tuple[bytes, int, list[Span]]]:
    """Runs of one byte that may be spelled in tokens of several sizes, in turns.

    Returns:
        The runs of a byte, and the size that divides the length of all; and likewise those of one
        length, if they occur often.

    >>> [(run, size) for run, size, _ in patterned(b"   a      b", [0, 3, 4, 10, 11])]
    [(b'   ', 3)]
    >>> found = patterned(b" " * 7 + b"a----b----b----b----", [0, 7, 8, 12, 13, 17, 18, 22, 23, 27])
    >>> [(run, size, [span.start for span in spans]) for run, size, spans in found]
    [(b'----', 4, [8, 13, 18, 23])]
    """
    found: dict[bytes, list[Span]] = {}
    given = list[tuple[bytes, list[Span]]]()
    for match in RUN.finditer(text):
        add(found.setdefault(match[0], []), match.start(), match.end(), starts)
    for byte in dict.fromkeys(run[:1] for run in found):
        alike = [run for run in found if run[:1] == byte and len(run) <= _LONG]
        size = math.gcd(*map(len, alike))
        spans = sorted(span for run in alike for span in found[run])
        if len(spans) > 1 and 2 < size <= _PATTERN:  # smaller ones are tiled in any case
            given.append((byte * size, spans))
            yield byte * size, size, spans
    for run, spans in found.items():
        if len(spans) >= OFTEN and len(run) <= _PATTERN and (run, spans) not in given:
            yield run, len(run), spans


def tiled(cuts: Sequence[int], size: int, span: Span) -> tuple[int, ...]:
    """Where a run is cut, in bytes from its start, by a pattern with these cuts over and over.

    >>> tiled((1,), 3, Span(start=2, stop=8, first=1, last=2))
    (1, 3, 4)
    """
    starts = range(0, span.stop - span.start, size)
    return tuple(at + cut for at in starts for cut in (0, *cuts) if at + cut > 0)


def _parts(run: Span, size: int, starts: Sequence[int]) -> list[Span]:
    """A run; if it is long, what is between ends of tokens after a multiple of so many bytes."""
    if run.stop - run.start <= _LONG:
        return [run]
    inside = starts[bisect_right(starts, run.start) : bisect_left(starts, run.stop)]
    cuts = [at for at in inside if (at - run.start) % size == 0]
    found: list[Span] = []
    for start, stop in pairwise([run.start, *cuts, run.stop]):
        add(found, start, stop, starts)
    return found
