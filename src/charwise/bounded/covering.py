"""The covering of a text with bounds, where only the best next tokens are told.

    →p(σ) = Σ_{δ : κ(δ) ≺ σ} →p_Δ(δ) · m_δ(σ[|κ(δ)|:])                                        (*)

Contexts δ are visited in falling order of the most that they can weigh, the canonical ones first.
What is visited has a weight between two bounds, and so has its mass m_δ of tokens that start with
what is left of σ. What is not visited adds at most its weight: its tokens are counted with those
of m_δ as one set, so that what is not told of a context is counted once, wherever it may be.

The next byte c has p(c | σ) = →p(σc) / Σ_c' →p(σc'). It is the largest where →p(σc) is and all
others are smallest, and the smallest where the others have all that is left of the most that →p(σ)
can be: bounds that know of each other, and closer than a quotient of two intervals.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.bounded.rows import Part, PartialRow, share_of
from charwise.coverings.best_first import Interval
from charwise.coverings.log_sums import log, log_sum
from charwise.partial_lm import Best, PartialLM
from charwise.tokens.index import SortedVocabulary


@dataclass
class _Context:
    """A visited context: its weight, and its known tokens.

    >>> _Context((2,), 0, 0.0, 0.0, None).visited
    set()
    """

    ids: tuple[int, ...]  # all of its tokens, those before the text included
    position: int  # bytes of the text that it spells
    log_least: float  # bounds of log →p_Δ after the root, nats
    log_most: float
    row: PartialRow
    visited: set[int] = field(default_factory=set)  # tokens after which there is another one


class _Open(NamedTuple):
    """A context not visited yet; the heap's first may weigh the most."""

    negative_log_most: float
    order: int
    parent: int
    token: int


class _Masses(NamedTuple):
    """`[257]` bounds of →p(σ·byte) / s, at 256 of p(σ) / s; the most of →p(σ) / s; and log s.

    >>> _Masses(np.zeros(257), np.ones(257), 1.0, -3.0).total_most
    1.0
    """

    least: NDArray[np.float64]
    most: NDArray[np.float64]
    total_most: float
    log_scale: float

    def shares(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """`[257]` bounds of p(byte | σ).

        >>> a, b = np.eye(257)[[97, 98]]
        >>> masses = _Masses(0.5 * a + 0.1 * b, 0.6 * a + 0.3 * b, 0.75, 0.0)
        >>> [float(bound[97].round(3)) for bound in masses.shares()]  # 0.5 / 0.75, 0.6 / 0.7
        [0.667, 0.857]
        """
        others_most = np.minimum(self.most.sum() - self.most, self.total_most - self.least)
        others_least = np.maximum(0.0, self.least.sum() - self.least)
        lower = share_of(self.least, np.maximum(0.0, others_most))
        upper = share_of(self.most, others_least)
        return np.minimum(lower, upper), upper


class BoundedCovering:
    """The visited part of a covering C(σ), and bounds for it and for all that σ begins with.

    Attributes:
        raw: σ.
        exact_from: offset in the prompt's text, in bytes, of σ's first byte: what is before it is
            conditioned on in its canonical tokenization.
        contexts: the visited contexts.
        asked: of how many contexts the engine was asked, tokens that were only priced included.

    >>> from charwise.bounded.lm import BoundedLM
    >>> from charwise.engines.ngram import NgramLM
    >>> from top_k_lm import TopK
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"a", b"ab", b"b", None], end_ids=[3], bos_ids=[3])
    >>> engine = TopK(NgramLM(vocabulary, 1, {(): [0.4, 0.3, 0.2, 0.1]}), 2, prices=False)
    >>> bounds = BoundedLM(engine).covering("aa").prefix_logprob()  # [a a], [a ab]
    >>> round(math.exp(bounds.lower), 9), round(math.exp(bounds.upper), 9)
    (0.28, 0.28)
    >>> bounds = BoundedLM(engine).covering("b").prefix_logprob()   # "b" is not told
    >>> round(math.exp(bounds.lower), 9), round(math.exp(bounds.upper), 9)
    (0.0, 0.3)
    """

    def __init__(
        self,
        engine: PartialLM,
        root: Sequence[int],
        raw: bytes,
        canonical: Sequence[int],
        *,
        exact_from: int = 0,
        tolerance: float = 1e-3,
        max_contexts: int = 256,
    ) -> None:
        self.raw = raw
        self.exact_from = exact_from
        self.contexts: list[_Context] = []
        self._engine = engine
        self._index = SortedVocabulary.of(engine.vocabulary)
        self._heap: list[_Open] = []
        self._order = 0
        self._visit_path(tuple(root), canonical[: max_contexts - 1])
        self.asked = len(self.contexts)
        while self._heap and self.asked < max_contexts and not self._enough(tolerance):
            size = min(32, max_contexts - self.asked, len(self._heap))
            self.asked += size
            self._visit([heapq.heappop(self._heap) for _ in range(size)])

    @property
    def text(self) -> str:
        """The text of `raw`, with U+FFFD for bytes that are no character, or not yet one."""
        return self.raw.decode("utf-8", "replace")

    def prefix_logprob(self, size: int | None = None) -> Interval:
        """Return bounds of log →p(σ | the text before it), or of its first `size` bytes, nats."""
        size = len(self.raw) if size is None else size
        if not size:
            return Interval(0.0, 0.0)
        least, most = [], []
        for context in self.contexts:
            if context.position < size:
                rest = self.raw[context.position : size]
                begun = context.row.range(*self._index.range(rest))
                either = begun + self._unvisited(context, self._index.prefixes(rest))
                least.append(context.log_least + log(float(context.row.bounds(*begun)[0])))
                most.append(context.log_most + log(float(context.row.bounds(*either)[1])))
        return _interval(least, most)

    def logprob(self) -> Interval:
        """Return bounds of log p(σ | the text before it), the end of text included, nats."""
        least, most = [], []
        for context in self.contexts:
            rest = self.raw[context.position :]
            end = context.row.end if not rest else Part(0.0, 0)
            either = end + self._unvisited(context, self._spelling(rest))
            least.append(context.log_least + log(float(context.row.bounds(*end)[0])))
            most.append(context.log_most + log(float(context.row.bounds(*either)[1])))
        return _interval(least, most)

    def masses(self, size: int | None = None) -> _Masses:
        """Return the masses of the bytes that may follow σ, or its first `size` bytes."""
        size = len(self.raw) if size is None else size
        scale = self.prefix_logprob(size).upper
        least, most = np.zeros(257), np.zeros(257)
        for context in self.contexts if scale > -math.inf else ():
            if context.position > size:
                continue
            rest = self.raw[context.position : size]
            told, untold = context.row.next_bytes(*self._index.range(rest), len(rest))
            hidden = self._unvisited(context, self._spelling(rest))
            lower = context.row.bounds(told, untold)[0]
            upper = context.row.bounds(told + hidden.told, untold + hidden.untold)[1]
            least += _scaled(context.log_least - scale, lower)
            most += _scaled(context.log_most - scale, upper)
        return _Masses(least, np.minimum(most, 1.0), float(scale > -math.inf), scale)

    def next_bytes(
        self, size: int | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the least and the most p(byte | σ), `[257]`, with the end of text at 256."""
        return self.masses(size).shares()

    # --- the search ----------------------------------------------------------------------------

    def _visit_path(self, root: tuple[int, ...], canonical: Sequence[int]) -> None:
        """Visit the root and the canonical tokens after it, in one call."""
        paths = [(*root, *canonical[:end]) for end in range(len(canonical) + 1)]
        told = self._engine.best(paths, [False] + [True] * len(canonical))
        row = PartialRow(told[0], self._index, self._engine.rounding)
        self.contexts.append(_Context(root, 0, 0.0, 0.0, row))
        for token, best in zip(canonical, told[1:], strict=True):
            self._add(len(self.contexts) - 1, token, best)
        for at in range(len(self.contexts)):
            self._open(at)

    def _visit(self, batch: Sequence[_Open]) -> None:
        paths = [(*self.contexts[item.parent].ids, item.token) for item in batch]
        priced = [not self.contexts[item.parent].row.tells(item.token) for item in batch]
        for item, best in zip(batch, self._engine.best(paths, priced), strict=True):
            above = self.contexts[item.parent]
            if above.position + self._index.length(item.token) <= len(self.raw):
                self._add(item.parent, item.token, best)
                self._open(len(self.contexts) - 1)
            elif best.last is not None:  # it spells the text and more: its price is all we want
                above.row.price(item.token, best.last)

    def _add(self, parent: int, token: int, best: Best) -> None:
        """The context after one more token, as heavy as the row above it says."""
        above = self.contexts[parent]
        if best.last is not None:
            above.row.price(token, best.last)
        least, most = above.row.bounds(*above.row.token(token))
        above.visited.add(token)
        self.contexts.append(
            _Context(
                (*above.ids, token),
                above.position + self._index.length(token),
                above.log_least + log(float(least)),
                above.log_most + log(float(most)),
                PartialRow(best, self._index, self._engine.rounding),
            )
        )

    def _open(self, at: int) -> None:
        """Put the contexts to visit after a context on the heap, and the tokens to price there."""
        context, window = self.contexts[at], self._engine.window
        if window is not None and len(context.ids) >= window:
            return
        rest, row = self.raw[context.position :], context.row
        tokens = [token for token in self._spelling(rest) if token not in context.visited]
        lo, hi = self._index.range(rest)
        if rest and hi - lo <= 64:  # few go on beyond the text: each is asked for
            beyond = self._index.ids[lo:hi].tolist()
            tokens += [t for t in beyond if self._index.length(t) > len(rest) and not row.tells(t)]
        for token in tokens:
            most = context.log_most + log(float(row.bounds(*row.token(token))[1]))
            if most > -math.inf:
                self._order += 1
                heapq.heappush(self._heap, _Open(-most, self._order, at, token))

    def _enough(self, tolerance: float) -> bool:
        """Return whether the unvisited part is a small enough share of the visited one."""
        enough = self.prefix_logprob().lower + log(tolerance)
        if -self._heap[0].negative_log_most > enough:
            return False
        return log_sum([-item.negative_log_most for item in self._heap]) <= enough

    def _spelling(self, rest: bytes) -> Iterator[int]:
        """The tokens that `rest` begins with, itself included."""
        if rest:
            yield from self._index.prefixes(rest)
            lo, hi = self._index.twins(rest)
            yield from self._index.ids[lo:hi].tolist()

    def _unvisited(self, context: _Context, tokens: Iterator[int] | Sequence[int]) -> Part:
        """Those of the tokens after a context that no visited context ends with."""
        part = Part(0.0, 0)
        for token in tokens:
            if token not in context.visited:
                part += context.row.token(token)
        return part


def _scaled(log_weight: float, masses: NDArray[np.float64]) -> NDArray[np.float64]:
    """exp(log_weight) · masses, whose factors alone may be too large or too small for a float."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.exp(log_weight + np.log(masses)))


def _interval(least: list[float], most: list[float]) -> Interval:
    upper = min(0.0, log_sum(most))
    return Interval(min(upper, log_sum(least)), upper)
