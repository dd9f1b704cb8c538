"""The next word, from the next bytes: a search through its beginnings, the heaviest first.

A word ends at ASCII whitespace or at the end of the text. Each beginning of a word that is taken
apart tells the probability that the word ends there, and those of its next bytes. Infinitely many
words are possible, so the search ends when the words found hold enough of the probability.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from charwise.cursor.completion import Bytewise
from charwise.cursor.distributions import NextBytes
from charwise.errors import (
    EmptyBeamError,
    SearchLimitError,
    ZeroProbabilityError,
    check_count,
    check_share,
)
from charwise.surprisal.entropies import term
from charwise.surprisal.offsets import characters_of, words
from charwise.surprisal.score import Score
from charwise.surprisal.word_ends import ENDS
from charwise.tokens import utf8

#: Beginnings that are taken apart, at most. Each costs about a model call.
MOST = 1000

#: After so many, states begin on a new tree, and the old one is freed.
_GENERATION = 64

#: Beginnings of less are not kept: a million of them would hide one word in a thousand.
_DUST = 1e-9

#: Bits that a word hides which was not found, at most: it is one of a million.
UNLISTED_BITS = 20.0


class Renewable(Bytewise, Protocol):
    """A state that can begin again on a tree of its own."""

    def _renewed(self) -> Self: ...


@dataclass(frozen=True)
class NextWords:
    """p(word | text) for the words found, the most probable first.

    Attributes:
        probs: word → probability. "" is that no letter comes: whitespace, or the end of text. What
            is not UTF-8 stands as in `text.decode("utf-8", "surrogateescape")`.
        missing: probability of the words not found, and of what was left out of the sums.
        entropy: a lower bound of the entropy of the next word, bits, as far as the probabilities
            are right. Words that were not found count as one for each beginning.
        error: by how much the probabilities may be off, as a total variation: an estimate.
        limited: whether a limit ended the search before the words held enough, or the work on a
            byte before the tolerance did.

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


def next_words(state: Renewable, coverage: float = 0.9) -> NextWords:
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
    check_share("coverage", coverage)
    states, listed = _States(state), dict[bytes, float]()
    first = state.next()
    bits = held = error = 0.0
    seen, limited = 0, False
    heap = [(-1.0, b"")]
    while heap and held < coverage and seen < MOST:
        negative, begun = heapq.heappop(heap)
        seen += 1
        try:
            nxt = states.next(begun) if begun else first
        except (ZeroProbabilityError, EmptyBeamError):
            continue  # less than the beam holds: it stays a word that was not found
        except SearchLimitError:
            limited = True
            continue
        error -= negative * nxt.error
        bits -= term(-negative)
        ends = -negative * float(nxt.probs[ENDS].sum())
        if ends > 0:
            listed[begun], held, bits = ends, held + ends, bits + term(ends)
        for longer, p in _longer(begun, -negative, nxt):
            bits += term(p)
            if p > _DUST:
                heapq.heappush(heap, (-p, longer))
    pending = utf8.pending(state.raw)  # the first bytes of a character that the words complete
    probs = {
        (pending + word).decode("utf-8", "surrogateescape") if word else "": p
        for word, p in sorted(listed.items(), key=lambda pair: -pair[1])
    }
    missing = max(0.0, 1.0 - held)
    limited = limited or held < coverage - 1e-9
    return NextWords(probs, missing, max(0.0, bits), min(1.0, error), limited)


class _States:
    """The states after the beginnings of words, of which only those of one tree are kept."""

    def __init__(self, state: Renewable) -> None:
        self._root = state
        self._known = {b"": state}
        self._more = _GENERATION

    def next(self, begun: bytes) -> NextBytes:
        """The distribution of the next byte after a beginning."""
        self._more -= 1
        if not self._more:
            self._root, self._more = self._root._renewed(), _GENERATION
            self._known = {b"": self._root}
        before = self._known.get(begun[:-1])
        state = self._root + begun if before is None else before + begun[-1:]
        self._known[begun] = state
        return state.next()


def _longer(begun: bytes, mass: float, nxt: NextBytes) -> Iterator[tuple[bytes, float]]:
    """Yield each longer beginning, and its probability."""
    going_on = nxt.probs[:256].copy()
    going_on[ENDS[:-1]] = 0.0
    for code in np.flatnonzero(going_on).tolist():
        yield begun + bytes([code]), mass * float(going_on[code])


def word_entropies(
    score: Score, begin: Callable[[bytes], Renewable], coverage: float
) -> NDArray[np.float64]:
    """`[n_chars, 2]` bounds of the entropy of the next word, where a word begins; bits.

    A word is a run of characters that are no whitespace; the text's first character begins one.
    NaN stands at all other characters. Each word costs what `next_words` costs.

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
