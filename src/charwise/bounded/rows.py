"""One context of which only the best next tokens are known: bounds for any set of tokens.

Let p_t be what is told of token t, off by a factor of e^±ε at most, and q the bound of those that
are not told. Then every token has an interval, [p_t e^−ε, p_t e^ε] or [0, q e^ε], and all of them
sum to one. A set A of tokens has the most where it takes all that it can, and the least where all
others do: both are reached, so nothing closer can be said of a single set.

charwise counts some ids only: texts and ends. Those share the probability, p(A) / (p(A) + p(B)),
where B is what else is counted; what is not counted, U, takes its part before. The largest p(A)
leaves the least to B that A and U can, the smallest leaves it the most.

`Remembered` asks an engine once about each context, where several coverings share them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from charwise.errors import EngineError
from charwise.partial_lm import Best, PartialLM
from charwise.tokens.index import END_OF_TOKEN, SortedVocabulary


class Part(NamedTuple):
    """A set of tokens: the mass of those that are told, and how many are not.

    >>> Part(0.25, 3) + Part(0.5, 1)
    Part(told=0.75, untold=4)
    """

    told: float
    untold: int

    def __add__(self, other: object) -> Part:
        assert isinstance(other, Part)
        return Part(self.told + other.told, self.untold + other.untold)


class PartialRow:
    """p_Δ(· | δ) as far as it is told, in the order of the sorted vocabulary.

    Args:
        best: what is told.
        index: the sorted vocabulary.
        rounding: ε, by how much its logs may be off, nats.

    Raises:
        EngineError: numbers that are no part of a distribution.

    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab", b"b", None], end_ids=[3]))
    >>> row = PartialRow(Best(np.array([0, 2]), np.log([0.5, 0.3]), np.log(0.3), None), index, 0.0)
    >>> row.range(*index.range(b"a"))                     # "a" is told, "ab" is not
    Part(told=0.5, untold=1)
    >>> [float(bound.round(9)) for bound in row.bounds(*row.range(*index.range(b"a")))]
    [0.5, 0.7]
    """

    def __init__(self, best: Best, index: SortedVocabulary, rounding: float) -> None:
        self._index = index
        vocabulary = index.vocabulary
        if not len(best.ids) or not 0 <= int(best.ids.min()) <= int(best.ids.max()) < len(
            vocabulary.tokens
        ):
            raise EngineError(
                f"the engine tells of {len(best.ids)} tokens, of ids up to "
                f"{int(best.ids.max(initial=-1))}; the vocabulary's width is {vocabulary.width}. "
                "Its tokenizer is not the model's."
            )
        ranks, masses = index.rank[best.ids], np.exp(best.logprobs)
        ends = np.isin(best.ids, vocabulary.end_ids)
        spelled = ranks >= 0
        order = np.argsort(ranks[spelled])
        self.ranks: NDArray[np.int64] = ranks[spelled][order].astype(np.int64)
        self.masses: NDArray[np.float64] = masses[spelled][order]
        self.end = Part(
            float(masses[ends].sum()), len(vocabulary.end_ids) - int(np.count_nonzero(ends))
        )
        rest = ~spelled & ~ends
        unused = vocabulary.width - len(index.ids) - len(vocabulary.end_ids)
        self._uncounted = Part(float(masses[rest].sum()), unused - int(np.count_nonzero(rest)))
        self._down, self._up = math.exp(-rounding), math.exp(rounding)
        self._most = math.exp(best.most) * self._up
        self._add_up()

    def _add_up(self) -> None:
        told = math.fsum(self.masses) + self.end.told
        untold = len(self._index.ids) - len(self.ranks) + self.end.untold
        self._counted = Part(told, untold)
        self._uncounted_room = float(self._room(*self._uncounted))
        rest = 1 - (told + self._uncounted.told) * self._down
        room = float(self._room(told, untold)) + self._uncounted_room
        # What is told may fall short of a distribution, or exceed one, by a hundredth.
        if not -1e-2 <= rest <= room + 1e-2:
            raise EngineError(
                f"the log-probabilities of a context are no part of a distribution: those told "
                f"sum to {told + self._uncounted.told:.6f}, and the others can have "
                f"{self._most:.3g} each. Ask for the model's own, before temperature and "
                "penalties: vLLM gives them with --logprobs-mode raw_logprobs."
            )
        self._rest: float = min(max(0.0, rest), room)

    def _room(self, told: ArrayLike, untold: ArrayLike) -> NDArray[np.float64]:
        """How much more than its least a set can have."""
        wider = np.asarray(told) * (self._up - self._down)
        # 0 · ∞ does not occur: `_most` is finite.
        return np.asarray(wider + np.asarray(untold) * self._most)

    def price(self, token: int, logprob: float) -> None:
        """Take in the log-probability of one more token that spells something."""
        rank = int(self._index.rank[token])
        at = int(np.searchsorted(self.ranks, rank))
        if at < len(self.ranks) and self.ranks[at] == rank:
            return
        self.ranks = np.insert(self.ranks, at, rank)
        self.masses = np.insert(self.masses, at, math.exp(logprob))
        self._add_up()

    def tells(self, token: int) -> bool:
        """Whether the probability of a token that spells something is known."""
        at = int(np.searchsorted(self.ranks, self._index.rank[token]))
        return at < len(self.ranks) and self.ranks[at] == self._index.rank[token]

    def range(self, lo: int, hi: int) -> Part:
        """The tokens of a range of the sorted vocabulary."""
        first, last = np.searchsorted(self.ranks, (lo, hi))
        return Part(float(self.masses[first:last].sum()), hi - lo - int(last - first))

    def token(self, token: int) -> Part:
        """One token that spells something."""
        rank = int(self._index.rank[token])
        return self.range(rank, rank + 1)

    def next_bytes(
        self, lo: int, hi: int, depth: int
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """How a range divides over the byte at `depth`: `[257]` told masses and untold counts.

        At 256 is the end of the text where `depth` is 0, else nothing: tokens that end there are
        left out, as what follows them is another context's business.
        """
        index = self._index
        while lo < hi and len(index.sorted[lo]) == depth:
            lo += 1
        first, last = np.searchsorted(self.ranks, (lo, hi))
        at = index.flat[index.starts[self.ranks[first:last]] + depth]
        # Of nothing it makes integers.
        told = np.bincount(at, self.masses[first:last], minlength=257).astype(np.float64)
        counts = np.bincount(index.flat[index.starts[lo:hi] + depth], minlength=257)
        untold = counts - np.bincount(at, minlength=257)
        if depth == 0:
            told[END_OF_TOKEN], untold[END_OF_TOKEN] = self.end
        return told, untold

    def bounds(
        self, told: ArrayLike, untold: ArrayLike
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The least and the most that sets of counted tokens can have, as the module says.

        Args:
            told: the mass of those that are told, of one set or of several, each for itself.
            untold: how many are not.
        """
        told = np.asarray(told, dtype=np.float64)
        others = np.maximum(0.0, self._counted.told - told)
        room, theirs = (
            self._room(told, untold),
            self._room(others, self._counted.untold - np.asarray(untold)),
        )
        least, others = told * self._down, others * self._down
        rest, unused = self._rest, self._uncounted_room
        taken = np.minimum(room, rest)
        most = share_of(least + taken, others + np.maximum(0.0, rest - taken - unused))
        forced = np.minimum(room, np.maximum(0.0, rest - theirs - unused))
        return share_of(least + forced, others + np.minimum(theirs, rest - forced)), most


def share_of(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return one / (one + other), 0 where `one` is."""
    return np.divide(one, one + other, out=np.zeros_like(one), where=one > 0)


class Remembered:
    """A `PartialLM` in front of another, whose answers it keeps.

    Attributes:
        contexts: of how many contexts the engine was asked.
        calls: in how many calls.

    >>> import charwise
    >>> from top_k_lm import TopK
    >>> engine = Remembered(TopK(charwise.load().engine, 5))
    >>> first, again = engine.best([(1,)], [False]), engine.best([(1,)], [False])
    >>> first[0] is again[0], engine.contexts, engine.calls
    (True, 1, 1)
    """

    def __init__(self, engine: PartialLM) -> None:
        self.vocabulary = engine.vocabulary
        self.window = engine.window
        self.contexts = self.calls = 0
        self._engine = engine
        self._told: dict[tuple[int, ...], tuple[Best, bool]] = {}

    @property
    def rounding(self) -> float:
        """That of the engine."""
        return self._engine.rounding

    def best(self, contexts: Sequence[tuple[int, ...]], priced: Sequence[bool]) -> list[Best]:
        """See `PartialLM.best`."""
        new: dict[tuple[int, ...], bool] = {}
        for context, price in zip(contexts, priced, strict=True):
            known = self._told.get(context)
            if known is None or (price and not known[1]):
                new[context] = price or new.get(context, False)
        if new:
            self.calls += 1
            self.contexts += len(new)
            told = self._engine.best(list(new), list(new.values()))
            for (context, price), best in zip(new.items(), told, strict=True):
                self._told[context] = (best, price)
        return [self._told[context][0] for context in contexts]

    def info(self) -> dict[str, str]:
        """That of the engine."""
        return self._engine.info()
