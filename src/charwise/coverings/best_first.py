"""Coverings, best first, with guaranteed bounds.

    →p(σ) = Σ_{δ : κ(δ) ≺ σ} →p_Δ(δ) · m_δ(σ[|κ(δ)|:])                                        (*)

where m_δ(s) is the mass of the tokens that start with s. Contexts δ are visited in falling order
of their weight →p_Δ(δ). Everything below an unvisited context adds at most its weight, so at any
moment the visited sum is a lower bound of →p(σ), and that plus the weights of the frontier an
upper bound. With `tolerance=0` nothing is left unvisited: exact enumeration.

docs/coverings.md derives it; Vieira et al. 2025, §3.1-3.2, define the covering.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.coverings.bundles import Bundle, bundle_before, next_byte_masses
from charwise.coverings.log_sums import add_logs, log, log_sum
from charwise.coverings.members import MAX_CONTEXTS, Member, first_members, members_in_order
from charwise.coverings.rows import EvaluatedRows
from charwise.errors import check_count, check_number

#: Contexts evaluated in one call while searching.
_BATCH = 32


@dataclass(frozen=True)
class Interval:
    """Bounds of a log-probability, in nats; the truth lies between them, ends included.

    >>> bounds = Interval(-1.0, -0.5)
    >>> -0.7 in bounds, round(bounds.missing, 3)
    (True, 0.393)
    """

    lower: float
    upper: float

    def __contains__(self, logprob: float) -> bool:
        return self.lower <= logprob <= self.upper

    @property
    def missing(self) -> float:
        """Largest share of the probability that was not visited: 1 − exp(lower − upper)."""
        if self.upper == -math.inf:
            return 0.0
        return -math.expm1(self.lower - self.upper)


class Covering:
    """The visited part of a covering C(σ), and bounds of the rest.

    Attributes:
        raw: σ.
        bundles: the visited contexts, in the order of the visit; those with an empty range, or
            one without mass, have no members.
        log_unvisited: log of the most that unvisited contexts inside σ can add to →p(σ), nats.
        log_unvisited_end: the same for unvisited contexts that spell σ, whose own probability
            is known but not how it divides over the next byte.
        limits: how far it was searched.

    >>> from charwise.engines.ngram import example_lm
    >>> rows = EvaluatedRows.of(example_lm(), [2])
    >>> covering = best_first(rows, 0, b"a", tolerance=0, through=True)
    >>> round(math.exp(covering.prefix_logprob().upper), 9)     # [a] or [ab]
    0.75
    >>> round(math.exp(covering.logprob().lower), 9)            # [a], and the end
    0.125
    >>> [member.token_ids for member in covering.top(2)]
    [(0,), (1,)]
    """

    def __init__(self, evaluated: EvaluatedRows, root: int, raw: bytes, limits: _Limits) -> None:
        self._evaluated = evaluated
        self._root = root
        self.raw = raw
        self.limits = limits
        self.bundles: list[Bundle] = []
        left = self._visit()
        self.log_unvisited = _log_weight([item for item in left if item.position < len(raw)])
        self.log_unvisited_end = _log_weight([item for item in left if item.position == len(raw)])

    def _visit(self) -> list[_Frontier]:
        """Visit contexts in falling order of weight; returns those that are left."""
        evaluated, text, (tolerance, through, most) = self._evaluated, self.raw, self.limits
        heap = [_Frontier(0.0, 0, 0, self._root, -1)] if text or through else []
        log_visited, order = -math.inf, 0
        while heap and self.contexts < most:
            enough = log_visited + log(tolerance)
            # The heaviest alone may be too much: only where it is not are all added up.
            if -heap[0].negative_log_weight <= enough and _log_weight(heap) <= enough:
                break
            size = min(_BATCH, len(heap), most - self.contexts)
            batch = [heapq.heappop(heap) for _ in range(size)]
            for item, node in zip(batch, _evaluate(evaluated, batch), strict=True):
                weight, position = -item.negative_log_weight, item.position
                rest = text[position:]
                bundle = bundle_before(evaluated, node, weight, rest)
                self.bundles.append(bundle)
                if rest:
                    log_visited = add_logs(log_visited, bundle.log_p)
                for token, logp in evaluated.continuations(node, rest, through):
                    order += 1
                    end = position + evaluated.index.length(token)
                    heapq.heappush(heap, _Frontier(-weight - logp, order, end, node, token))
        return heap

    @property
    def contexts(self) -> int:
        """The number of contexts that were visited."""
        return len(self.bundles)

    @property
    def text(self) -> str:
        """The text of `raw`, with U+FFFD for bytes that are no character, or not yet one."""
        return self.raw.decode("utf-8", "replace")

    def prefix_logprob(self) -> Interval:
        """Return bounds of log →p(σ | root), nats."""
        if not self.raw:
            return Interval(0.0, 0.0)
        lower = log_sum([bundle.log_p for bundle in self.bundles if bundle.depth > 0])
        return _interval(lower, self.log_unvisited)

    def logprob(self) -> Interval:
        """Return bounds of log p(σ | root), end of text included, nats.

        Only for coverings made with `through=True`, which visit the contexts that spell σ.
        """
        logs = [
            bundle.log_weight + log(self._evaluated.row(bundle.node).end)
            for bundle in self.bundles
            if bundle.depth == 0
        ]
        return _interval(log_sum(logs), add_logs(self.log_unvisited, self.log_unvisited_end))

    def next_byte_masses(self) -> tuple[NDArray[np.float64], float]:
        """`[257]`: lower bounds of →p(σ·byte) / s, at 256 of p(σ) / s; and log s, the scale.

        Only for coverings made with `through=True`. Unvisited contexts, of both kinds, add at
        most their weight to all of these together.

        >>> from charwise import CharLM
        >>> from charwise.engines.ngram import example_lm
        >>> covering = CharLM(example_lm()).covering("aa")
        >>> masses, scale = covering.next_byte_masses()
        >>> (masses[[ord("a"), ord("b"), 256]] * math.exp(scale)).round(9).tolist()
        [0.1875, 0.125, 0.0625]
        """
        return next_byte_masses(self._evaluated, self.bundles)

    def top(self, k: int, *, max_contexts: int = MAX_CONTEXTS) -> list[Member]:
        """The `k` most probable members of C(σ), in guaranteed order.

        Raises:
            SearchLimitError: if `max_contexts` do not settle which they are.
        """
        members = partial(members_in_order, self._evaluated, self._root, self.raw)
        return first_members(members, k, max_contexts)


class _Limits(NamedTuple):
    """How far a covering is searched: the arguments of `best_first`.

    >>> _Limits(tolerance=0.0).max_contexts
    100000
    """

    tolerance: float = 1e-6
    through: bool = False
    max_contexts: int = 100_000


class _Frontier(NamedTuple):
    """A context not visited yet; the heap's first is the heaviest."""

    negative_log_weight: float
    order: int  # breaks ties: first found, first visited
    position: int
    parent: int
    token: int  # -1 for the root itself, which is `parent`


def best_first(
    evaluated: EvaluatedRows,
    root: int,
    text: bytes,
    *,
    tolerance: float = 1e-6,
    through: bool = False,
    max_contexts: int = 100_000,
) -> Covering:
    """Visit the contexts of C(text) in falling order of weight.

    Args:
        evaluated: evaluated contexts; what is visited is added to it.
        root: the node before the text.
        text: σ, any bytes.
        tolerance: stop when the unvisited mass is at most this share of the visited mass.
        through: also visit the contexts that spell σ exactly, as the next byte needs.
        max_contexts: stop then in any case; the bounds say what is missing.

    Raises:
        SettingError: for a tolerance outside [0, 1], or no contexts.

    >>> from charwise.engines.ngram import example_lm
    >>> evaluated = EvaluatedRows.of(example_lm(), [2])
    >>> covering = best_first(evaluated, 0, b"aa")       # [a a], [a ab]: 1/4 + 1/8
    >>> round(math.exp(covering.prefix_logprob().lower), 9), covering.contexts
    (0.375, 2)
    """
    check_number("tolerance", tolerance, 0.0, 1.0)
    check_count("max_contexts", max_contexts, 1)
    return Covering(evaluated, root, text, _Limits(tolerance, through, max_contexts))


def _log_weight(frontier: list[_Frontier]) -> float:
    return log_sum([-item.negative_log_weight for item in frontier])


def _evaluate(evaluated: EvaluatedRows, batch: list[_Frontier]) -> list[int]:
    edges = [(item.parent, item.token) for item in batch if item.token >= 0]
    nodes = iter(evaluated.extend(edges))
    return [item.parent if item.token < 0 else next(nodes) for item in batch]


def _interval(lower: float, log_unvisited: float) -> Interval:
    return Interval(min(0.0, lower), min(0.0, add_logs(lower, log_unvisited)))
