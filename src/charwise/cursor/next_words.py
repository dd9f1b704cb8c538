"""The next word, from the next bytes: a search through its beginnings, the heaviest first.

A word ends at ASCII whitespace or at the end of the text. Each beginning of a word that is taken
apart tells the probability that the word ends there, and those of its next bytes. Infinitely many
words are possible, so the search ends when the words found hold enough of the probability.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from charwise.cursor.completion import Bytewise
from charwise.errors import (
    EmptyBeamError,
    SettingError,
    ZeroProbabilityError,
    check_count,
    check_number,
)
from charwise.surprisal.offsets import characters_of, words
from charwise.surprisal.score import Score
from charwise.surprisal.word_ends import ENDS

#: Beginnings that are taken apart, at most. Each costs about a model call.
MOST = 1000

#: Beginnings of less are not kept: a million of them would hide one word in a thousand.
_DUST = 1e-9

#: Bits that a word hides which was not found, at most: it is one of a million.
UNLISTED_BITS = 20.0


@dataclass(frozen=True)
class NextWords:
    """p(word | text) for the words found, the most probable first.

    Attributes:
        probs: word → probability. "" is that no letter comes: whitespace, or the end of text. What
            is not UTF-8 stands as in `text.decode("utf-8", "surrogateescape")`.
        missing: probability of the words not found.
        entropy: a lower bound of the entropy of the next word, bits. Words that were not found
            count as one for each beginning.
        error: by how much the probabilities may be off, as a total variation: an estimate.
        limited: whether the search ended before the words held enough.

    >>> NextWords({"os": 0.75}, missing=0.25, entropy=0.8).entropy_most
    5.8
    """

    probs: dict[str, float]
    missing: float
    entropy: float
    error: float = 0.0
    limited: bool = False

    @property
    def entropy_most(self) -> float:
        """An upper bound of the entropy, bits, if each word not found is one of a million."""
        return self.entropy + UNLISTED_BITS * self.missing

    def top(self, k: int) -> list[tuple[str, float]]:
        """The k most probable words.

        >>> NextWords({"os": 0.75, "sys": 0.125}, missing=0.125, entropy=1.0).top(1)
        [('os', 0.75)]
        """
        check_count("k", k, 0)
        return list(self.probs.items())[:k]


def next_words(state: Bytewise, coverage: float = 0.9) -> NextWords:
    """p(word | text), or of the rest of the word that the text ends in.

    Args:
        state: after the text.
        coverage: look for words until they hold so much of the probability.

    Raises:
        SettingError: a coverage outside (0, 1].

    >>> import charwise
    >>> next_words(charwise.load().state("raise Val"), 0.4).top(1)[0][0]
    'ueError'
    """
    check_coverage(coverage)
    states = {b"": state}
    listed = dict[bytes, float]()
    held, bits, error, seen, limited, left_out = 0.0, 0.0, 0.0, 0, False, 0.0
    heap = [(-1.0, b"")]
    while heap and held < coverage and seen < MOST:
        negative, begun = heapq.heappop(heap)
        try:
            if begun:
                states[begun] = states[begun[:-1]] + begun[-1:]
            nxt = states[begun].next()
        except (ZeroProbabilityError, EmptyBeamError):
            if not begun:
                raise
            continue  # less than the beam holds: it stays a word that was not found
        seen += 1
        left_out = left_out if begun else nxt.missing
        error, limited = error - negative * nxt.error, limited or nxt.limited
        bits -= _term(-negative)
        ends, longer = _divided(nxt.probs, -negative)
        if ends > 0:
            listed[begun], held, bits = ends, held + ends, bits + _term(ends)
        for byte, p in longer:
            bits += _term(p)
            if p > _DUST:
                heapq.heappush(heap, (-p, begun + bytes([byte])))
    probs = {
        word.decode("utf-8", "surrogateescape"): p
        for word, p in sorted(listed.items(), key=lambda pair: -pair[1])
    }
    missing = max(0.0, 1.0 - held * (1.0 - left_out))
    limited = limited or (held < coverage and seen == MOST)
    return NextWords(probs, missing, max(0.0, bits), min(1.0, error), limited)


def check_coverage(coverage: float) -> None:
    """Refuse a share of the probability that is none.

    >>> check_coverage(0.5)
    """
    check_number("coverage", coverage, 0.0, 1.0)
    if not coverage > 0:
        raise SettingError(f"coverage is {coverage}: it must lie in (0, 1].")


def _divided(probs: NDArray[np.float64], mass: float) -> tuple[float, list[tuple[int, float]]]:
    """The probability that a word ends, and that it goes on with each byte."""
    going_on = probs[:256].copy()
    going_on[ENDS[:-1]] = 0.0
    codes = np.flatnonzero(going_on)
    longer = zip(codes.tolist(), (mass * going_on[codes]).tolist(), strict=True)
    return mass * float(probs[ENDS].sum()), list(longer)


def _term(p: float) -> float:
    return -p * math.log2(p) if p > 0 else 0.0


def word_entropies(
    score: Score, begin: Callable[[bytes], Bytewise], coverage: float
) -> NDArray[np.float64]:
    """`[n_chars, 2]` bounds of the entropy of the next word, where a word begins; bits.

    A word is a run of characters that are no whitespace. NaN stands at all other characters. Each
    word costs what `next_words` costs.

    Args:
        score: of the text.
        begin: the state after some of its first bytes.
        coverage: as of `next_words`.

    >>> import charwise
    >>> score = charwise.load().score("raise ValueError", entropy="word", coverage=0.5)
    >>> score.word_entropies.shape, int(np.isfinite(score.word_entropies[:, 0]).sum())
    ((16, 2), 2)
    """
    string, edges = characters_of(score.raw)
    found = np.full((len(string), 2), np.nan)
    last, at = None, 0
    for start, end in words(string, "none"):
        if string[start:end].isspace():
            continue
        to = int(edges[start])
        last = begin(score.raw[:to]) if last is None else last + score.raw[at:to]
        at = to
        nxt = next_words(last, coverage)
        found[start] = nxt.entropy, nxt.entropy_most
    return found
