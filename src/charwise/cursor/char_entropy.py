"""The entropy of the next character at every character of a scored text.

The distribution of the next byte is known from the score. A byte that is a character is an outcome;
one that begins a longer character stands for all that begin so, and is taken apart by states that
grow along the UTF-8 tree. That is done for the heaviest first, and as long as it may still add up
to something: n nodes of masses p that lack k more bytes each hide at most Σ p · 6k bits.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from charwise.cursor.next_chars import Extended
from charwise.errors import EmptyBeamError, ZeroProbabilityError
from charwise.surprisal.score import Score
from charwise.surprisal.spans import characters_of
from charwise.tokens.utf8 import needs

#: Bits by which an entropy may be off.
TOLERANCE = 0.02


def char_entropies(score: Score, begin: Callable[[bytes], Extended]) -> NDArray[np.float64]:
    """`[n_chars]` entropy of the next character, or the end of text, before each character, bits.

    A byte that is no part of a character is one of its own. Each may be off by `TOLERANCE`.

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
    last: Extended | None = None
    at = 0
    for n, start in enumerate(starts):
        tree = _Tree.of(score.distributions[start])
        if tree.hidden > TOLERANCE:
            last = begin(score.raw[:start]) if last is None else last + score.raw[at:start]
            at = start
            tree.expand(last)
        found[n] = tree.bits
    return found


@dataclass
class _Tree:
    """What is known of the next character: outcomes, and beginnings that are not taken apart."""

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
        """What follows a beginning of this mass."""
        for code in np.flatnonzero(probs).tolist():
            p = mass * float(probs[code])
            longer = begun + bytes([code]) if code < 256 else b""
            lacks = needs(longer) if longer else 0
            if begun and (code == 256 or lacks < 0):  # its first byte is no part of a character
                self.bits -= _term(self.stray[begun[:1]])
                self.stray[begun[:1]] += p
                self.bits += _term(self.stray[begun[:1]])
                continue
            self.bits += _term(p)
            if lacks > 0:
                self.hidden += 6 * lacks * p
                heapq.heappush(self.heap, (-6 * lacks * p, p, longer))

    def expand(self, state: Extended) -> None:
        """Take beginnings apart, after a state, until little is hidden."""
        states = {b"": state}
        while self.heap and self.hidden > TOLERANCE:
            hid, p, begun = heapq.heappop(self.heap)
            self.hidden += hid
            try:
                states[begun] = states[begun[:-1]] + begun[-1:]
                probs = states[begun].next().probs
            except (ZeroProbabilityError, EmptyBeamError):
                continue  # less than what was left out says no more about it
            self.bits -= _term(p)
            self.add(begun, probs, p)


def _term(p: float) -> float:
    return -p * math.log2(p) if p > 0 else 0.0
