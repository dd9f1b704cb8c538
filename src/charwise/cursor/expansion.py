"""The next character and the next word, from the next bytes: one best-first expansion.

An outcome is a whole UTF-8 character, or a word: bytes that ASCII whitespace or the end of the text
ends. The distribution of the next byte tells outcomes, and beginnings of longer ones. The heaviest
beginning is taken apart next, by the state after it. Each outcome and each beginning is a part of
the distribution, so their entropy is a lower bound; what the beginnings may hide is the rest.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from charwise.constraints.constraint import END
from charwise.cursor.shared_tree import Cursor
from charwise.errors import LimitError, ZeroProbabilityError, check_count, check_share
from charwise.scoring.score import ENDS
from charwise.surprisal.score import Score
from charwise.tokens import utf8
from charwise.tokens.words import characters_of, words

#: Beginnings of characters, and of words, that are taken apart at most. Each costs a model call.
MOST_CHARACTERS, MOST_WORDS = 64, 1000

#: Bits by which the entropy of a character along a text may be off.
HIDDEN_BITS = 0.02

#: After so many, states begin on a new tree, and the old one is freed.
_GENERATION = 64


#: An outcome or a longer beginning: its bytes, its probability, and the bits of entropy that it may
#: hide; an outcome hides none.
Part = tuple[bytes, float, float]

#: The parts of a beginning, from the distribution of the next byte.
Parts = Callable[[bytes, NDArray[np.float64]], Iterable[Part]]


@dataclass(frozen=True)
class Outcomes(Mapping[str, float]):
    """p(outcome | text) of the next character or the next word, the most probable first.

    Attributes:
        probs: outcome → probability. Of words, "" is that no letter comes: whitespace, or the end
            of the text. Bytes of a word that are not UTF-8 stand as in
            `text.decode("utf-8", "surrogateescape")`.
        missing: probability of all that is not listed: other outcomes, and, of characters, bytes
            that are none.
        entropy: a lower bound of the entropy, bits: what begins alike, and is not listed, counts as
            one outcome.
        entropy_most: an upper bound, bits: a word that is not listed is one of a million.
        error: by how much the probabilities may be off, as a total variation: an estimate, as
            `NextBytes.error`.
        eos: of characters, the probability that the text ends here.

    >>> import charwise
    >>> words = charwise.load().next_words("raise Val", coverage=0.5)
    >>> words.top(1)[0][0], words["ueError"] > 0.4, words.entropy < words.entropy_most
    ('ueError', True, True)
    """

    probs: dict[str, float]
    missing: float
    entropy: float
    entropy_most: float
    error: float = 0.0
    eos: float = 0.0

    def __getitem__(self, text: str) -> float:
        return self.probs[text]

    def __iter__(self) -> Iterator[str]:
        return iter(self.probs)

    def __len__(self) -> int:
        return len(self.probs)

    def top(self, k: int) -> list[tuple[str, float]]:
        """The k most probable; of characters, the end of the text (`<eos>`) is among them."""
        check_count("k", k, 0)
        both = [*self.probs.items(), *([("<eos>", self.eos)] if self.eos else [])]
        return sorted(both, key=lambda pair: -pair[1])[:k]


def _characters(beginning: bytes, probs: NDArray[np.float64]) -> Iterator[Part]:
    """Yield whole characters, and longer beginnings of some; see `Parts`.

    The first byte of what is no character is an outcome of its own; b"" is the end of the text.
    Each byte that a beginning lacks is one of 64, or makes it no character: 6.1 bits.
    """
    for code in np.flatnonzero(probs).tolist():
        longer = beginning + (bytes([code]) if code != END else b"")
        lacks = utf8.bytes_missing(longer) if code != END else -1
        yield (longer, probs[code], 6.1 * lacks) if lacks >= 0 else (longer[:1], probs[code], 0.0)


def _next_word(beginning: bytes, probs: NDArray[np.float64]) -> Iterator[Part]:
    """Yield the word that ends here, and the longer beginnings of words; see `Parts`."""
    yield beginning, float(probs[ENDS].sum()), 0.0
    letters = probs.copy()
    letters[ENDS] = 0.0
    for code in np.flatnonzero(letters).tolist():
        yield beginning + bytes([code]), probs[code], 20.0


class _Expansion:
    """The outcomes and beginnings so far; at most so many are taken apart."""

    def __init__(self, parts: Parts, first: NDArray[np.float64], start: bytes, most: float) -> None:
        self.outcomes = dict[bytes, float]()
        self.known = 0.0  # probability of the outcomes
        self.bits = 0.0  # −Σ p log₂ p over outcomes and beginnings
        self.hidden = 0.0  # bits that the beginnings may hide
        self.error = 0.0
        self.heap = list[tuple[float, bytes, float]]()  # (−p, beginning, bits that it may hide)
        self._parts, self._budget = parts, most
        self._add(start, first, 1.0)

    def grow(self, states: _States) -> None:
        """Take the heaviest beginning apart, by the state after it."""
        if self._budget <= 0:
            self.heap.clear()
            return
        self._budget -= 1
        negative, beginning, hides = heapq.heappop(self.heap)
        try:
            nxt = states.after(beginning).next()
        except (ZeroProbabilityError, LimitError):
            return  # less than the beam holds, or too much work: it stays a beginning
        self.bits -= _term(-negative)
        self.hidden += hides * negative
        self.error -= negative * nxt.error
        self._add(beginning, nxt.probs, -negative)

    def _add(self, beginning: bytes, probs: NDArray[np.float64], mass: float) -> None:
        for text, share, hides in self._parts(beginning, probs):
            p = mass * float(share)
            if hides:
                self.bits += _term(p)
                self.hidden += hides * p
                heapq.heappush(self.heap, (-p, text, hides))
            elif p > 0:
                before = self.outcomes.get(text, 0.0)  # of a byte that is no character
                self.bits += _term(before + p) - _term(before)
                self.outcomes[text] = before + p
                self.known += p

    def listing(self, held: float, coverage: float, least: int) -> tuple[dict[str, float], bool]:
        """The heaviest characters, and whether those are all; `held` is p(the text ends)."""
        whole = [pair for pair in self.outcomes.items() if utf8.bytes_missing(pair[0]) == 0]
        whole.sort(key=lambda pair: -pair[1])
        rest = math.fsum([p for _, p in whole] + [-negative for negative, _, _ in self.heap])
        listed = dict[str, float]()
        heaviest = -self.heap[0][0] if self.heap else 0.0
        for text, p in [*whole, (b"", -1.0)]:
            # Bytes that are no character may hold too much for the coverage to be reached.
            # What float64 cannot tell from the whole need not be listed.
            never = held + rest < coverage and rest <= max(1.0 - coverage, 1e-15)
            if (held >= coverage or never) and len(listed) >= least:
                return listed, True
            if p < heaviest:
                break
            listed[text.decode()] = p
            held, rest = held + p, rest - p
        return listed, not self.heap


def _term(p: float) -> float:
    """The part −p log₂ p of an entropy, bits."""
    return -p * math.log2(p) if p > 0 else 0.0


class _States:
    """The states after beginnings; only those of one tree are kept."""

    def __init__(self, state: Cursor, start: bytes = b"") -> None:
        self._root, self._start = state, start
        self._known = {start: state}
        self._budget = _GENERATION

    def after(self, beginning: bytes) -> Cursor:
        """The state after a beginning, which begins with `start`."""
        self._budget -= 1
        if not self._budget:
            self._root, self._budget = self._root.renewed(), _GENERATION
            self._known = {self._start: self._root}
        before = self._known.get(beginning[:-1])
        more = beginning[len(self._start) :]
        state = self._root + more if before is None else before + beginning[-1:]
        self._known[beginning] = state
        return state


def next_chars(state: Cursor, coverage: float = 0.99, least: int = 0) -> Outcomes:
    """p(character | text), at least so many of them; see `State.next_chars`."""
    check_share("coverage", coverage)
    start, first = utf8.pending(state.raw), state.next()
    tree = _Expansion(_characters, first.probs, start, MOST_CHARACTERS)
    states = _States(state, start)
    probs, enough = tree.listing(first.eos, coverage, least)
    while not enough:
        tree.grow(states)
        probs, enough = tree.listing(first.eos, coverage, least)
    missing = max(0.0, 1.0 - first.eos - math.fsum(probs.values()))
    # A longer beginning may turn out to be the byte that is no character which begins it.
    groups = defaultdict(float, tree.outcomes)
    for negative, beginning, _ in tree.heap:
        groups[beginning[:1]] -= negative
    rest = max(0.0, 1.0 - math.fsum(groups.values()))
    entropy = math.fsum(map(_term, [*groups.values(), rest]))
    most = max(entropy, tree.bits + tree.hidden)
    return Outcomes(probs, missing, entropy, most, min(1.0, first.error + tree.error), first.eos)


def next_words(state: Cursor, coverage: float = 0.9) -> Outcomes:
    """p(word | text), or of the rest of the word that the text ends in; see `State.next_words`."""
    check_share("coverage", coverage)
    first, states = state.next(), _States(state)
    tree = _Expansion(_next_word, first.probs, b"", MOST_WORDS)
    while tree.heap and tree.known < coverage:
        tree.grow(states)
    pending = utf8.pending(state.raw)  # the first bytes of a character that the words complete
    probs = {
        (pending + word).decode("utf-8", "surrogateescape") if word else "": p
        for word, p in sorted(tree.outcomes.items(), key=lambda pair: -pair[1])
    }
    missing, entropy = max(0.0, 1.0 - tree.known), max(0.0, tree.bits)
    most = max(entropy, tree.bits + tree.hidden)
    return Outcomes(probs, missing, entropy, most, min(1.0, first.error + tree.error))


def with_entropies(
    score: Score, after: Callable[[bytes], Cursor], coverage: float | None = None
) -> Score:
    """A score with the entropy of the next character, or with bounds of that of the next word.

    Of characters it stands before each one, may be off by `HIDDEN_BITS`, and counts the end of the
    text; a byte that is no part of a character is one of its own. Of words it stands where one
    begins, a run of characters that are no whitespace, and costs what `next_words` costs.
    `after` gives the state after some of the first bytes; `coverage` is None for characters.
    """
    string, edges = characters_of(score.raw)
    states = _along(score.raw, after)
    if coverage is not None:
        bounds = np.full((len(string), 2), np.nan)
        for start, end in words(string, "none"):
            if not string[start:end].isspace():
                outcomes = next_words(states(int(edges[start])), coverage)
                bounds[start] = outcomes.entropy, outcomes.entropy_most
        return replace(score, word_entropies=bounds)
    assert score.distributions is not None
    bits = np.zeros(len(string))
    for n, start in enumerate(edges[:-1].tolist()):
        tree = _Expansion(_characters, score.distributions[start], b"", math.inf)
        if tree.hidden > HIDDEN_BITS:
            known = _States(states(start))
            while tree.heap and tree.hidden > HIDDEN_BITS:
                tree.grow(known)
        bits[n] = tree.bits
    return replace(score, char_entropies=bits)


def _along(raw: bytes, after: Callable[[bytes], Cursor]) -> Callable[[int], Cursor]:
    """A function that gives the state after so many bytes of a text, never fewer than before."""
    state: Cursor | None = None
    at = 0

    def along(size: int) -> Cursor:
        nonlocal state, at
        state = after(raw[:size]) if state is None else state + raw[at:size]
        at = size
        return state

    return along
