"""The covering of a text, searched best first, with guaranteed bounds.

    →p(σ) = Σ_{δ : κ(δ) ≺ σ} →p_Δ(δ) · m_δ(σ[|κ(δ)|:])                                        (*)

The sum over the covering C(σ) (Vieira et al. 2025, eq. 12 and Proposition 1), grouped by contexts
δ; m_δ(s) is the mass of the tokens that start with s. Contexts are visited in falling order of
their weight →p_Δ(δ). Everything below an unvisited context adds at most its weight, so the visited
sum is a lower bound of →p(σ), and that plus the weights of the frontier an upper bound.

The search runs no model. `Covering.queries` says which contexts to evaluate, and `Covering.answer`
takes their log-probabilities: from an engine in this process, or from a server. docs/coverings.md
derives it, and `reference.enum_cover` is the definition.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from charwise.coverings.log_sums import add_logs, log, log_sum
from charwise.errors import LimitError, check_count, check_number
from charwise.tokens.index import END_OF_TOKEN, SortedVocabulary

Floats = NDArray[np.float64]


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
        return max(0.0, -math.expm1(self.lower - self.upper))


class Member(NamedTuple):
    """One token string of a covering."""

    token_ids: tuple[int, ...]
    raw: bytes  # its decoding, which starts with σ
    logprob: float  # log →p_Δ, nats

    @property
    def text(self) -> str:
        """The text of `raw`, with U+FFFD for bytes that are no character, or not yet one."""
        return self.raw.decode("utf-8", "replace")


class Query(NamedTuple):
    """A question to a model: log p(id | the prompt, then `context`) for each of `ids`."""

    context: tuple[int, ...]
    ids: NDArray[np.int64]


#: Answers queries, in their order: log p of a query's ids, and of the end of the text, nats.
Source = Callable[[Sequence[Query]], Iterable[tuple[Floats, float]]]


class Visited(NamedTuple):
    """A visited context δ, and the tokens after it that complete a member."""

    context: tuple[int, ...]
    position: int  # |κ(δ)|: bytes of σ that it spells
    log_weight: float  # log →p_Δ(δ), nats
    lo: int  # the range, in sorted order, of the tokens that start with σ[position:]
    logs: Floats  # [hi - lo] log p of those after δ
    log_end: float  # log p of the end of the text after δ
    log_share: float  # log_weight + log of the range's mass: its term of (*)


class Covering:
    """The visited part of a covering C(σ), and bounds of the rest.

    Args:
        index: of the model's vocabulary.
        raw: σ.
        source: answers the queries of `search` and `top`.
        exactly: only the members that spell σ and no more, the encodings of σ.
        through: also visit the contexts that spell σ, as `logprob` and the next byte need.
        tolerance: stop when the unvisited mass is at most this share of the visited mass.
        max_contexts: stop then in any case; the bounds say what is missing.
        room: tokens that a context may have; None for no limit.

    Attributes:
        raw: σ.
        visited: the visited contexts, heaviest first.

    Raises:
        SettingError: for a tolerance outside [0, 1], or no contexts.

    >>> import charwise
    >>> covering = charwise.load().covering("import nump")
    >>> covering.top(1)[0].text
    'import numpy'
    """

    def __init__(
        self,
        index: SortedVocabulary,
        raw: bytes,
        source: Source | None = None,
        *,
        exactly: bool = False,
        through: bool = False,
        tolerance: float = 1e-6,
        max_contexts: int = 10_000,
        room: int | None = None,
    ) -> None:
        check_number("tolerance", tolerance, 0.0, 1.0)
        check_count("max_contexts", max_contexts, 1)
        self.raw = raw
        self.visited: list[Visited] = []
        self.index, self.tolerance = index, tolerance
        self._source = source
        self._exactly, self._through = exactly, through
        self._max_contexts, self._room = max_contexts, room
        # The frontier, heaviest first: (−log weight, order of discovery, context, position).
        self._heap: list[tuple[float, int, tuple[int, ...], int]] = []
        if raw or through:
            self._heap.append((0.0, 0, (), 0))
        self._discovered = 0
        self._pending: dict[tuple[int, ...], tuple[float, int]] = {}
        self._log_visited = -math.inf  # log of the visited sum of (*)
        self._log_lost = -math.inf  # log of the most that is never visited: no room, no answer

    @property
    def text(self) -> str:
        """The text of `raw`, with U+FFFD for bytes that are no character, or not yet one."""
        return self.raw.decode("utf-8", "replace")

    @property
    def contexts(self) -> int:
        """The number of contexts that were visited."""
        return len(self.visited)

    @cached_property
    def size(self) -> int:
        """The number of members, visited or not; of a long text a number of many digits."""
        return (encodings_size if self._exactly else covering_size)(self.index, self.raw)

    def queries(self, batch: int = 32) -> list[Query]:
        """Return the contexts to evaluate next, `batch` at most; none once the search is over."""
        enough = self._log_visited + log(self.tolerance)
        left: float | None = None  # the unvisited mass, in units of what is enough
        queries: list[Query] = []
        while self._heap and len(queries) < batch:
            if len(self.visited) + len(self._pending) >= self._max_contexts:
                break
            heaviest = -self._heap[0][0]
            # The heaviest alone may be too much: only where it is not are all added up.
            if heaviest <= enough:
                if left is None:
                    weights = [-entry[0] for entry in self._heap]
                    left = math.exp(min(700.0, log_sum([*weights, self._log_lost]) - enough))
                if left <= 1:
                    break
                left -= math.exp(heaviest - enough)
            queries.append(self._query())
        return queries

    def answer(
        self,
        context: tuple[int, ...],
        logprobs: Floats,
        log_end: float = -math.inf,
        *,
        unseen: float = 0.0,
    ) -> None:
        """Take the answer to a query.

        Args:
            context: of the query.
            logprobs: of its ids, in their order, nats; −inf for those that are not known.
            log_end: log p of the end of the text.
            unseen: the most that the unknown ones may have together, a probability.
        """
        log_weight, position = self._pending.pop(context)
        longer = self._prolonging(position)
        lo, hi = self._completing(position)
        logs = logprobs[len(longer) : len(longer) + hi - lo]
        if unseen > 0:
            self._log_lost = add_logs(self._log_lost, log_weight + math.log(unseen))
        for token, logprob in zip(longer, logprobs[: len(longer)].tolist(), strict=True):
            if logprob == -math.inf:
                continue
            if self._room is not None and len(context) >= self._room:
                self._log_lost = add_logs(self._log_lost, log_weight + logprob)
                continue
            self._discovered += 1
            end = position + self.index.length(token)
            entry = (-log_weight - logprob, self._discovered, (*context, token), end)
            heapq.heappush(self._heap, entry)
        inside = position < len(self.raw)
        log_share = log_weight + (_log_sum(logs) if inside else 0.0)
        self.visited.append(Visited(context, position, log_weight, lo, logs, log_end, log_share))
        if inside:
            self._log_visited = add_logs(self._log_visited, log_share)

    def search(self, batch: int = 32) -> Self:
        """Visit contexts until the tolerance or `max_contexts` is reached; return the covering."""
        while queries := self.queries(batch):
            self._visit(queries)
        return self

    def prefix_logprob(self) -> Interval:
        """Return bounds of log →p(σ), nats; with `exactly`, of the sum over its encodings."""
        if not self.raw:
            return Interval(0.0, 0.0)
        return _interval(self._log_visited, self._log_unvisited(len(self.raw) - 1))

    def logprob(self) -> Interval:
        """Return bounds of log p(σ), end of text included, nats (eq. 14).

        Only for coverings made with `through=True`, which visit the contexts that spell σ.
        """
        ends = [v.log_weight + v.log_end for v in self.visited if v.position == len(self.raw)]
        return _interval(log_sum(ends), self._log_unvisited(len(self.raw)))

    def next_byte_masses(self) -> tuple[Floats, float]:
        """`[257]`: lower bounds of →p(σ·byte) / s, at 256 of p(σ) / s; and log s, the scale.

        Only for coverings made with `through=True`. Unvisited contexts add at most their weight
        to all of these together.

        >>> from charwise import CharLM
        >>> from charwise.engines.ngram import example_lm
        >>> covering = CharLM(example_lm()).covering("aa")
        >>> masses, scale = covering.next_byte_masses()
        >>> (masses[[ord("a"), ord("b"), 256]] * math.exp(scale)).round(9).tolist()
        [0.1875, 0.125, 0.0625]
        """
        masses = np.zeros(END_OF_TOKEN + 1)
        scale = max((visited.log_share for visited in self.visited), default=-math.inf)
        if scale == -math.inf:
            return masses, scale
        row = np.zeros(len(self.index.ids))
        for context in self.visited:
            hi, depth = context.lo + len(context.logs), len(self.raw) - context.position
            row[context.lo : hi] = np.exp(context.logs)
            part = self.index.next_byte_masses(row, context.lo, hi, depth)
            part[END_OF_TOKEN] = 0.0 if depth else math.exp(context.log_end)
            if (mass := float(part.sum())) > 0:  # apart, neither over- nor underflows
                masses += math.exp(context.log_weight + math.log(mass) - scale) * (part / mass)
        return masses, scale

    def top(self, k: int, *, max_contexts: int = 10_000) -> list[Member]:
        """Return the `k` most probable members, in guaranteed order; visit what that takes.

        Raises:
            LimitError: if `max_contexts` do not settle which they are.
        """
        check_count("k", k, 0)
        check_count("max_contexts", max_contexts, 1)
        if not self.raw:
            return [Member((), b"", 0.0)][:k]
        best: list[Member] = []
        scanned = 0
        while k:
            for visited in self.visited[scanned:]:
                best += self._heaviest(visited, k)
            scanned = len(self.visited)
            best.sort(key=lambda member: -member.logprob)
            del best[k:]
            least = best[-1].logprob if len(best) == k else -math.inf
            if not self._heap or -self._heap[0][0] <= least:
                break
            if scanned >= max_contexts:
                bound = -self._heap[0][0]
                raise _unsettled(self.raw, [m for m in best if m.logprob >= bound], max_contexts)
            queries: list[Query] = []
            while self._heap and len(queries) < min(32, max_contexts - scanned):
                if -self._heap[0][0] <= least:
                    break
                queries.append(self._query())
            self._visit(queries)
        return best

    def _visit(self, queries: Sequence[Query]) -> None:
        assert self._source is not None
        for query, (logprobs, log_end) in zip(queries, self._source(queries), strict=True):
            self.answer(query.context, logprobs, log_end)

    def _query(self) -> Query:
        """The query of the heaviest context of the frontier, which leaves it."""
        negative, _, context, position = heapq.heappop(self._heap)
        self._pending[context] = (-negative, position)
        lo, hi = self._completing(position)
        longer = np.array(self._prolonging(position), dtype=np.int64)
        return Query(context, np.concatenate((longer, self.index.ids[lo:hi])))

    def _completing(self, position: int) -> tuple[int, int]:
        """The range of the tokens that complete a member after this many bytes of σ."""
        rest = self.raw[position:]
        return self.index.same_bytes(rest) if self._exactly else self.index.range(rest)

    def _prolonging(self, position: int) -> list[int]:
        """The tokens after which a context still has bytes of σ to spell, or just spells it."""
        rest, index = self.raw[position:], self.index
        tokens = index.prefixes(rest)
        if not index.vocabulary.byte_complete:  # a token may lead where nothing can follow
            tokens = [token for token in tokens if index.spellable(rest[index.length(token) :])]
        if self._through and rest:
            lo, hi = index.same_bytes(rest)
            tokens += index.ids[lo:hi].tolist()
        return tokens

    def _log_unvisited(self, until: int) -> float:
        """log of the most that unvisited contexts which spell at most `until` bytes can add."""
        left = [-negative for negative, _, _, position in self._heap if position <= until]
        left += [weight for weight, position in self._pending.values() if position <= until]
        return log_sum([*left, self._log_lost])

    def _heaviest(self, visited: Visited, k: int) -> list[Member]:
        """The k heaviest members that begin with a visited context."""
        if visited.position == len(self.raw):
            return []
        members = []
        for at in np.argsort(-visited.logs, kind="stable")[:k].tolist():
            logprob = float(visited.logs[at])
            if logprob == -math.inf:
                break
            token, raw = int(self.index.ids[visited.lo + at]), self.index.sorted[visited.lo + at]
            spelled = self.raw[: visited.position] + raw
            logprob += visited.log_weight
            members.append(Member((*visited.context, token), spelled, logprob))
        return members


def covering_size(index: SortedVocabulary, text: bytes) -> int:
    """|C(text)|, the number of token strings that cover a text, counted without enumeration."""
    if not text:
        return 1
    spellings = _spellings(index, text)
    total = 0
    for position in range(max(0, len(text) - index.vocabulary.max_token_bytes), len(text)):
        lo, hi = index.range(text[position:])
        total += spellings[position] * (hi - lo)
    return total


def encodings_size(index: SortedVocabulary, text: bytes) -> int:
    """|E(text)|, the number of token strings that decode to exactly this text."""
    return _spellings(index, text)[-1]


def _spellings(index: SortedVocabulary, text: bytes) -> list[int]:
    """The number of token strings that decode to each prefix of the text."""
    counts = [1] + [0] * len(text)
    for position in range(len(text)):
        if counts[position]:
            for end in range(
                position + 1, min(len(text), position + index.vocabulary.max_token_bytes) + 1
            ):
                lo, hi = index.same_bytes(text[position:end])
                counts[end] += counts[position] * (hi - lo)
    return counts


def _unsettled(text: bytes, settled: Sequence[Member], most: int) -> LimitError:
    return LimitError(
        f"{most:,} contexts were visited, and {len(settled)} members of the text ending in "
        f"{text[-20:]!r} ({len(text)} bytes) are settled: it has too many tokenizations of like "
        "weight. Give its beginning as token ids, [*ids, 'the end'], ask for fewer members, or "
        "raise max_contexts; `found` of this error has those that are settled.",
        tuple(settled),
    )


def _log_sum(logs: Floats) -> float:
    """log Σ exp of an array, which may be empty or −inf."""
    top = float(logs.max(initial=-math.inf))
    return top if top == -math.inf else top + math.log(float(np.exp(logs - top).sum()))


def _interval(lower: float, log_unvisited: float) -> Interval:
    return Interval(min(0.0, lower), min(0.0, add_logs(lower, log_unvisited)))
