"""The covering of a text (eq. 12), searched best first, with guaranteed bounds.

    →p(σ) = Σ_{δ : κ(δ) ≺ σ} →p_Δ(δ) · m_δ(σ[|κ(δ)|:])                                        (*)

The sum over the covering C(σ) (Vieira et al. 2025, eq. 13 and Proposition 1), grouped by contexts
δ; m_δ(s) is the mass of the tokens that start with s. The contexts that weigh most, by →p_Δ(δ),
are visited next, several in one call. Everything below an unvisited context adds at most its
weight, so the visited sum is a lower bound of →p(σ), and that plus the weights of the frontier an
upper bound. docs/coverings.md derives it, and `reference.enum_cover` is the definition.
"""

import heapq
import math
from functools import cached_property
from itertools import count
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from charwise.coverings.bundles import log, log_sum, sum_masses
from charwise.engine import TokenTree
from charwise.errors import LimitError, check_count, check_number
from charwise.tokens.index import END_OF_TOKEN, SortedVocabulary

Floats = NDArray[np.float64]


class Interval(NamedTuple):
    """Bounds of a log-probability, in nats; the truth lies between them, ends included."""

    lower: float
    upper: float

    @property
    def missing(self) -> float:
        """Largest share of the probability that was not visited: 1 − exp(lower − upper)."""
        if self.upper == -math.inf:
            return 0.0
        return max(0.0, -math.expm1(self.lower - self.upper))


class CoveringMember(NamedTuple):
    """One token string of a covering."""

    token_ids: tuple[int, ...]
    raw: bytes  # its decoding, which starts with σ
    logprob: float  # log →p_Δ, nats

    @property
    def text(self) -> str:
        """The text of `raw`, with U+FFFD for bytes that are no character."""
        return self.raw.decode("utf-8", "replace")


class _Context(NamedTuple):
    """A context δ of the frontier; the least one is the heaviest."""

    minus_log_weight: float  # −log →p_Δ(δ), nats
    number: int  # in order of discovery
    token_ids: tuple[int, ...]
    position: int  # |κ(δ)|: bytes of σ that it spells


class _Visited(NamedTuple):
    """A visited context δ, and the tokens after it that complete a member."""

    context: tuple[int, ...]
    position: int
    log_weight: float  # log →p_Δ(δ), nats
    lo: int  # the range, in sorted order, of the tokens that start with σ[position:]
    logs: Floats  # [hi - lo] log p of those after δ
    log_end: float  # log p of the end of the text after δ
    log_share: float  # log_weight + log of the range's mass: its term of (*)


class Covering:
    """The visited part of a covering C(σ), and bounds of the rest.

    Args:
        tree: evaluates contexts, which follow its root.
        raw: σ.
        exactly: only the members that spell σ and no more, the encodings of σ.
        through: also visit the contexts that spell σ, as `logprob` and the next byte need.

    Attributes:
        raw: σ.
        visited: the visited contexts, in the order of the search.

    >>> import charwise
    >>> covering = charwise.load().covering("import nump")
    >>> covering.top(1)[0].text
    'import numpy'
    """

    def __init__(
        self, tree: TokenTree, raw: bytes, *, exactly: bool = False, through: bool = False
    ) -> None:
        self.raw = raw
        self.visited: list[_Visited] = []
        self._tree, self._index = tree, tree.index
        self._exactly, self._through = exactly, through
        self._frontier = [_Context(0.0, 0, (), 0)] if raw or through else []  # a heap
        self._numbers = count(1)
        self._log_visited = -math.inf  # log of the visited sum of (*)

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
        return covering_size(self._index, self.raw, exactly=self._exactly)

    def search(
        self, tolerance: float = 1e-6, max_contexts: int = 10_000, *, batch: int = 32
    ) -> Self:
        """Visit contexts, the heaviest first, and return the covering.

        Args:
            tolerance: stop when the unvisited mass is at most this share of the visited mass.
            max_contexts: stop then in any case; the bounds say what is missing.
            batch: the most contexts to evaluate in one model call.

        Raises:
            SettingError: for a tolerance outside [0, 1], or no contexts.
        """
        check_number("tolerance", tolerance, 0.0, 1.0)
        check_count("max_contexts", max_contexts, 1)
        while True:
            enough = self._log_visited + log(tolerance)
            most = min(batch, max_contexts - self.contexts)
            rest: float | None = None  # the unvisited mass, in units of what is enough
            contexts: list[_Context] = []
            while self._frontier and len(contexts) < most:
                heaviest = -self._frontier[0].minus_log_weight
                # The heaviest alone may be too much: only where it is not are all added up.
                if heaviest <= enough:
                    if rest is None:
                        rest = math.exp(min(700.0, self._log_unvisited(len(self.raw)) - enough))
                    if rest <= 1:
                        break
                    rest -= math.exp(heaviest - enough)
                contexts.append(heapq.heappop(self._frontier))
            if not contexts:
                return self
            self._visit(contexts)

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

        >>> import charwise
        >>> masses, scale = charwise.load().covering("import nump").next_byte_masses()
        >>> chr(masses.argmax())
        'y'
        """
        scale = max((visited.log_share for visited in self.visited), default=-math.inf)
        parts = []
        row = np.zeros(len(self._index.ids))
        for context in self.visited:
            hi, depth = context.lo + len(context.logs), len(self.raw) - context.position
            row[context.lo : hi] = np.exp(context.logs)
            part = self._index.next_byte_masses(row, context.lo, hi, depth)
            part[END_OF_TOKEN] = 0.0 if depth else math.exp(context.log_end)
            parts.append((context.log_weight, part))
        return sum_masses(parts, scale), scale

    def top(self, k: int, *, max_contexts: int = 10_000) -> list[CoveringMember]:
        """Return the `k` most probable members, in guaranteed order; visit what that takes.

        Raises:
            LimitError: if `max_contexts` do not settle which they are.
        """
        check_count("k", k, 0)
        check_count("max_contexts", max_contexts, 1)
        if not self.raw:
            return [CoveringMember((), b"", 0.0)][:k]
        best: list[CoveringMember] = []
        scanned = 0
        while k:
            for visited in self.visited[scanned:]:
                best += self._heaviest(visited, k)
            scanned = len(self.visited)
            best.sort(key=lambda member: -member.logprob)
            del best[k:]
            least = best[-1].logprob if len(best) == k else -math.inf
            if not self._frontier or -self._frontier[0].minus_log_weight <= least:
                break
            if scanned >= max_contexts:
                bound = -self._frontier[0].minus_log_weight
                settled = tuple(member for member in best if member.logprob >= bound)
                raise LimitError(
                    f"{max_contexts:,} contexts were visited, and {len(settled)} members of the "
                    f"text ending in {self.raw[-20:]!r} ({len(self.raw)} bytes) are settled: it "
                    "has too many tokenizations of like weight. Give its beginning as token ids, "
                    "[*ids, 'the end'], ask for fewer members, or raise max_contexts; `found` of "
                    "this error has those that are settled.",
                    settled,
                )
            contexts: list[_Context] = []
            while self._frontier and len(contexts) < min(32, max_contexts - scanned):
                if -self._frontier[0].minus_log_weight <= least:
                    break
                contexts.append(heapq.heappop(self._frontier))
            self._visit(contexts)
        return best

    def _visit(self, contexts: list[_Context]) -> None:
        """Evaluate contexts of the frontier, which they have left, in one model call."""
        try:
            paths = self._tree.extend([(0, context.token_ids) for context in contexts])
            nodes = [path[-1] if path else 0 for path in paths]
            rows = self._tree.logprobs(nodes).double().cpu().numpy()  # [contexts, width]
        except BaseException:  # also an interrupt: the bounds stay right
            for context in contexts:
                heapq.heappush(self._frontier, context)
            raise
        self._tree.forget(nodes)
        ends = list(self._index.vocabulary.end_ids)
        for (minus_log_weight, _, token_ids, position), row in zip(contexts, rows, strict=True):
            log_weight, rest = -minus_log_weight, self.raw[position:]
            for token in self._prolonging(rest):
                if row[token] > -math.inf:
                    weight = minus_log_weight - float(row[token])
                    end = position + self._index.length(token)
                    longer = _Context(weight, next(self._numbers), (*token_ids, token), end)
                    heapq.heappush(self._frontier, longer)
            lo, hi = self._index.same_bytes(rest) if self._exactly else self._index.range(rest)
            logs = row[self._index.ids[lo:hi]]
            share = log_weight + (_log_sum(logs) if rest else 0.0)
            log_end = log_sum(row[ends].tolist())
            self.visited.append(_Visited(token_ids, position, log_weight, lo, logs, log_end, share))
            if rest:
                self._log_visited = float(np.logaddexp(self._log_visited, share))

    def _prolonging(self, rest: bytes) -> list[int]:
        """The tokens after which a context still has bytes of σ to spell, or just spells it."""
        index, tokens = self._index, self._index.prefixes(rest)
        # A token may lead where nothing can follow.
        tokens = [token for token in tokens if index.spellable(rest[index.length(token) :])]
        if self._through and rest:
            lo, hi = index.same_bytes(rest)
            tokens += index.ids[lo:hi].tolist()
        return tokens

    def _log_unvisited(self, until: int) -> float:
        """log of the most that unvisited contexts which spell at most `until` bytes can add."""
        return log_sum([-c.minus_log_weight for c in self._frontier if c.position <= until])

    def _heaviest(self, visited: _Visited, k: int) -> list[CoveringMember]:
        """The k heaviest members that begin with a visited context."""
        if visited.position == len(self.raw):
            return []
        members = []
        for at in np.argsort(-visited.logs, kind="stable")[:k].tolist():
            logprob = float(visited.logs[at])
            if logprob == -math.inf:
                break
            token, raw = int(self._index.ids[visited.lo + at]), self._index.sorted[visited.lo + at]
            text = self.raw[: visited.position] + raw
            logprob += visited.log_weight
            members.append(CoveringMember((*visited.context, token), text, logprob))
        return members


def covering_size(index: SortedVocabulary, text: bytes, *, exactly: bool = False) -> int:
    """Return |C(text)|, the number of token strings that cover a text, without enumeration.

    With `exactly`, that of its encodings.
    """
    longest = index.vocabulary.max_token_bytes
    encodings = [1] + [0] * len(text)  # of each prefix of the text
    for start in range(len(text)):
        if encodings[start]:
            for end in range(start + 1, min(len(text), start + longest) + 1):
                lo, hi = index.same_bytes(text[start:end])
                encodings[end] += encodings[start] * (hi - lo)
    if exactly or not text:
        return encodings[-1]
    total = 0
    for start in range(max(0, len(text) - longest), len(text)):
        lo, hi = index.range(text[start:])
        total += encodings[start] * (hi - lo)
    return total


def _log_sum(logs: Floats) -> float:
    """log Σ exp of an array, which may be empty or −inf, and long."""
    top = float(logs.max(initial=-math.inf))
    return top if top == -math.inf else top + math.log(float(np.exp(logs - top).sum()))


def _interval(lower: float, log_unvisited: float) -> Interval:
    return Interval(min(0.0, lower), min(0.0, float(np.logaddexp(lower, log_unvisited))))
