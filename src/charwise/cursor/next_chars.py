"""The next character, from the next bytes: summed out along the UTF-8 tree.

`next_chars` lists the characters that may come; `char_entropies` gives the entropy of the next one
along a scored text. A byte that is a character is an outcome; one that begins a longer character
stands for all that begin so, and is taken apart by states that grow along the tree. That is done
for the heaviest first, and as long as it may still add up to something: n nodes of masses p that
lack k more bytes each hide at most Σ p · 6k bits.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from charwise.cursor.completion import Bytewise
from charwise.cursor.distributions import EOS, NextBytes, NextChars
from charwise.errors import (
    EmptyBeamError,
    ZeroProbabilityError,
    check_count,
    check_share,
)
from charwise.surprisal.entropies import term
from charwise.surprisal.offsets import characters_of
from charwise.surprisal.score import Score
from charwise.tokens import utf8

#: Bits by which an entropy may be off.
_HIDDEN = 0.02


def next_chars(state: Bytewise, coverage: float = 0.99, least: int = 0) -> NextChars:
    """p(character | text), the heaviest first; see `State.next_chars`.

    Args:
        state: after the text.
        coverage: list characters until they hold so much of the probability.
        least: and until there are so many.

    >>> import charwise
    >>> next_chars(charwise.load().state("import nump"), 0.5).top(1)[0][0]
    'y'
    """
    check_share("coverage", coverage)
    check_count("least", least, 0)
    begun = utf8.pending(state.raw)
    nxt = state.next()
    listed, held = dict[str, float](), nxt.eos
    states, error = {begun: state}, nxt.error
    heap = _branches(begun, nxt, 1.0)
    heapq.heapify(heap)
    left = -math.fsum(branch[0] for branch in heap)  # what may still be listed
    while heap and (held < coverage or len(listed) < least):
        # Bytes that are no character may hold too much for it to be reached.
        # What float64 cannot tell from the whole need not be listed.
        all_of_it = held + left < coverage and left <= max(1.0 - coverage, 1e-15)
        if all_of_it and len(listed) >= least:
            break
        negative, start = heapq.heappop(heap)
        left += negative
        if utf8.needs(start) == 0:
            listed[start.decode()] = -negative
            held -= negative
            continue
        if len(states) > 64:  # beginnings of characters that were taken apart
            continue
        try:
            states[start] = states[start[:-1]] + start[-1:]
        except ZeroProbabilityError:
            continue  # lighter than the least float
        following = states[start].next()
        error -= negative * following.error
        for branch in _branches(start, following, -negative):
            left -= branch[0]
            heapq.heappush(heap, branch)
    missing = max(0.0, 1.0 - held)
    return NextChars(listed, nxt.eos, missing, min(1.0, error))


def _branches(start: bytes, nxt: NextBytes, weight: float) -> list[tuple[float, bytes]]:
    """(−probability, bytes so far) of each way to go on with a character that has begun."""
    longer = (start + bytes([byte]) for byte in range(EOS))
    return [
        (-float(p) * weight, more)
        for more, p in zip(longer, nxt.probs, strict=False)
        if p > 0 and utf8.needs(more) >= 0
    ]


def char_entropies(score: Score, begin: Callable[[bytes], Bytewise]) -> NDArray[np.float64]:
    """`[n_chars]` entropy of the next character, or the end of text, before each character, bits.

    A byte that is no part of a character is one of its own. Each may be off by 0.02 bits.

    Args:
        score: of the text, with its distributions.
        begin: the state after some of its first bytes.

    >>> import charwise
    >>> lm = charwise.load()
    >>> score = lm.score("import os", entropy="char")
    >>> bool((score.char_entropies <= score.entropies + 0.1).all())  # ASCII follows ASCII
    True
    """
    assert score.distributions is not None
    starts = characters_of(score.raw)[1][:-1].tolist()
    found = np.zeros(len(starts))
    last: Bytewise | None = None
    at = 0
    for n, start in enumerate(starts):
        tree = _Tree.of(score.distributions[start])
        if tree.hidden > _HIDDEN:
            last = begin(score.raw[:start]) if last is None else last + score.raw[at:start]
            at = start
            tree.expand(last)
        found[n] = tree.bits
    return found


@dataclass
class _Tree:
    """The next character so far: outcomes, and beginnings that are not taken apart."""

    bits: float = 0.0  # −Σ p log₂ p over both
    hidden: float = 0.0  # bits that the beginnings may hide
    heap: list[tuple[float, float, bytes]] = field(default_factory=list)
    stray: defaultdict[bytes, float] = field(default_factory=lambda: defaultdict(float))

    @classmethod
    def of(cls, probs: NDArray[np.float64]) -> _Tree:
        tree = cls()
        tree.add(b"", probs, 1.0)
        return tree

    def add(self, begun: bytes, probs: NDArray[np.float64], mass: float) -> None:
        """Add the outcomes after a beginning of this mass."""
        for code in np.flatnonzero(probs).tolist():
            p = mass * float(probs[code])
            longer = begun + bytes([code]) if code < 256 else b""
            lacks = utf8.needs(longer) if longer else 0
            if begun and (code == 256 or lacks < 0):  # its first byte is no part of a character
                self.bits -= term(self.stray[begun[:1]])
                self.stray[begun[:1]] += p
                self.bits += term(self.stray[begun[:1]])
                continue
            self.bits += term(p)
            if lacks > 0:
                self.hidden += 6 * lacks * p
                heapq.heappush(self.heap, (-6 * lacks * p, p, longer))

    def expand(self, state: Bytewise) -> None:
        """Take beginnings apart, after a state, until little is hidden."""
        states = {b"": state}
        while self.heap and self.hidden > _HIDDEN:
            hid, p, begun = heapq.heappop(self.heap)
            self.hidden += hid
            try:
                states[begun] = states[begun[:-1]] + begun[-1:]
                probs = states[begun].next().probs
            except (ZeroProbabilityError, EmptyBeamError):
                continue  # less than what was left out says no more about it
            self.bits -= term(p)
            self.add(begun, probs, p)
