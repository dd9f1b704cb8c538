"""The results of bounded models: numbers with a lower and an upper bound, and completions."""

from __future__ import annotations

import builtins
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from charwise.bounded.covering import BoundedCovering
from charwise.bounded.rows import PartialRow
from charwise.coverings.best_first import Interval
from charwise.coverings.log_sums import log_sum
from charwise.cursor.distributions import NextBytes
from charwise.cursor.drawing import Drawing, DrawnText
from charwise.cursor.options import GenerationOptions
from charwise.errors import BoundsError, SettingError, zero_probability
from charwise.partial_lm import PartialLM
from charwise.tokens.index import SortedVocabulary


@dataclass(frozen=True, eq=False)
class NextBounds(NextBytes):
    """Bounds of p(byte | text) and p(EOS | text), and a distribution between them.

    Attributes:
        probs: `[257]` float64, sums to 1: what is told of each byte, renormalised. It lies
            between the bounds; index 256 is the end of text.
        missing: the largest share of the text's probability that was not told or not visited.
        error: by how much `probs` may be off, as a total variation: a bound, no estimate.
        lower, upper: `[257]` between which the true probability of each lies.
        exact_from: offset in the text, in bytes, from which on all tokenizations are summed; what
            is before it is conditioned on in its canonical tokenization.
        contexts: of how many contexts the engine was asked.

    >>> import charwise
    >>> lm = charwise.connect("http://127.0.0.1:8000/v1")  # doctest: +SKIP
    >>> nxt = lm.next("raise ValueErr")
    >>> nxt.top(1)[0][0], bool(nxt.lower[ord("o")] > 0.9), bool((nxt.lower <= nxt.upper).all())
    ('o', True, True)
    """

    lower: NDArray[np.float64] = field(kw_only=True)
    upper: NDArray[np.float64] = field(kw_only=True)
    exact_from: int = field(default=0, kw_only=True)
    contexts: int = field(default=0, kw_only=True)

    def under(self, constraint: Any) -> NextBytes:
        """Raise `BoundsError`: renormalised over fewer bytes, the bounds would be others."""
        raise BoundsError(
            "a distribution with bounds is not renormalised under a constraint: compare `lower` "
            "and `upper` of the bytes that are allowed."
        )


@dataclass(frozen=True, eq=False)
class BoundedScore:
    """Return bounds of the log-probability of every byte of a text, given those before it.

    Attributes:
        raw: the bytes of the text.
        lower, upper: `[n_bytes]` float64 nats, between which log p(byte | before) lies.
        exact_from: `[n_bytes]` offset in context and text, in bytes, from which on all
            tokenizations are summed for this byte; what is before is conditioned on in its
            canonical tokenization.
        token_ends: `[n_tokens]` offsets in the text, in bytes, at which canonical tokens end; where
            the text begins or ends inside one, its part in the text counts.
        token_lower, token_upper: `[n_tokens]` nats, between which the log-probability of each
            one's bytes lies: closer than the sums over its bytes.
        contexts: of how many contexts the engine was asked.
        calls: in how many calls.

    >>> each = np.log([0.25, 0.5]), np.log([0.5, 0.5]), np.zeros(2)
    >>> score = BoundedScore(b"ab", *each, np.array([2]), np.log([0.125]), np.log([0.125]), 3, 1)
    >>> score.bits, score.bits_per_byte
    ((3.0, 3.0), (1.5, 1.5))
    """

    raw: builtins.bytes
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    exact_from: NDArray[np.int64]
    token_ends: NDArray[np.int64]
    token_lower: NDArray[np.float64]
    token_upper: NDArray[np.float64]
    contexts: int
    calls: int

    @property
    def logprob(self) -> Interval:
        """The bounds of the log-probability of the whole text, by the chain of its bytes, nats."""
        return Interval(math.fsum(self.token_lower), math.fsum(self.token_upper))

    @property
    def bits(self) -> tuple[float, float]:
        """The least and the most surprisal of the whole text."""
        bounds = self.logprob
        return (0.0 - bounds.upper / math.log(2), 0.0 - bounds.lower / math.log(2))

    @property
    def bits_per_byte(self) -> tuple[float, float]:
        """The least and the most mean surprisal of a byte; 0 for the empty text."""
        least, most = self.bits
        return least / max(1, len(self.raw)), most / max(1, len(self.raw))


@dataclass(frozen=True)
class BoundedCompletion:
    """A completion drawn from the tokens that the server returned.

    Attributes:
        raw: its bytes, without the prompt's.
        token_ids: the tokens that it was drawn as, the prompt's last ones among them.
        ended: whether the model ended the text.
        missing: the most probability, of all that could have been drawn at some step, that was
            not told. At temperature 0 only that of the first step, the choice of a token string
            that covers the prompt, can matter: later steps are told their best token.

    >>> BoundedCompletion(b"y ", (7,), False, 0.0).text
    'y '
    """

    raw: bytes
    token_ids: tuple[int, ...]
    ended: bool
    missing: float

    @property
    def text(self) -> str:
        """The text of `raw`, with U+FFFD for bytes that are no character."""
        return self.raw.decode("utf-8", "replace")


def draw(
    engine: PartialLM, covering: BoundedCovering, options: GenerationOptions
) -> BoundedCompletion:
    """A completion of a covering's text; options and errors are those of `BoundedLM.complete`.

    >>> from charwise.bounded.lm import BoundedLM
    >>> from charwise.engines.ngram import NgramLM
    >>> from top_k_lm import TopK
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"a", b"ab", None], end_ids=[2], bos_ids=[2])
    >>> engine = TopK(NgramLM(vocabulary, 1, {(): [0.2, 0.5, 0.3]}), 2, prices=False)
    >>> drawn = draw(engine, BoundedLM(engine).covering("a"), GenerationOptions(max_new_bytes=3))
    >>> drawn.text, drawn.token_ids, round(drawn.missing, 9)
    ('bab', (1, 1), 0.285714286)
    """
    if options.temperature not in (0, 1):
        raise SettingError(
            f"temperature is {options.temperature}: from what is told one can go on greedily (0), "
            "or draw as the model does (1)."
        )
    drafts = _Drafts(engine, covering, options)
    [found] = drafts.completions()
    ended = found.finish == "end"
    return BoundedCompletion(found.raw, tuple(found.token_ids), ended, drafts.missing)


class _Drafts(Drawing[DrawnText]):
    """One completion, begun with a token string that covers the text.

    Attributes:
        missing: as `BoundedCompletion.missing`.
    """

    def __init__(
        self, engine: PartialLM, covering: BoundedCovering, options: GenerationOptions
    ) -> None:
        super().__init__(covering, options, options.limit())
        self._engine, self._index = engine, SortedVocabulary.of(engine.vocabulary)
        self._given = covering.contexts[0].ids
        self._rng = self.rng if options.temperature else None
        ids, raw, self.missing = _member(covering, self._index, self._rng)
        self.drafts = [DrawnText(raw=raw, token_ids=list(ids[len(self._given) :]))]
        self.check(self.drafts[0])

    def allowed(self, draft: DrawnText) -> None:
        return None

    def advance(self) -> None:
        [draft] = self.drafts
        ids = (*self._given, *draft.token_ids)
        if self._engine.window is not None and len(ids) >= self._engine.window:
            draft.finish = "window"
            return
        [best] = self._engine.best([ids], [False])
        row = PartialRow(best, self._index, self._engine.rounding)
        masses = np.append(row.masses, row.end.told)
        at = _pick(masses, self._rng)
        if self._rng is not None:
            self.missing = max(self.missing, 1 - float(row.bounds(masses.sum(), 0)[0]))
        if at is None or at == len(row.ranks):
            draft.finish = "dead end" if at is None else "end"
            return
        draft.token_ids.append(int(self._index.ids[row.ranks[at]]))
        draft.raw += self._index.sorted[row.ranks[at]]
        self.check(draft)


def _member(
    covering: BoundedCovering, index: SortedVocabulary, rng: np.random.Generator | None
) -> tuple[tuple[int, ...], bytes, float]:
    """A token string that covers the text, its bytes beyond the text, and the mass not returned."""
    text = covering.raw
    if not text:
        return covering.contexts[0].ids, b"", 0.0
    members: list[tuple[tuple[int, ...], bytes]] = []
    logs: list[float] = []
    for context in covering.contexts:
        rest = text[context.position :]
        if rest and context.log_least > -math.inf:
            lo, hi = index.range(rest)
            for rank, mass in zip(context.row.ranks, context.row.masses, strict=True):
                if lo <= rank < hi and mass > 0:
                    members.append(
                        ((*context.ids, int(index.ids[rank])), index.sorted[rank][len(rest) :])
                    )
                    logs.append(context.log_least + math.log(mass))
    if not members:
        raise zero_probability(text)
    weights = np.exp(np.array(logs) - max(logs))
    at = _pick(weights, rng)
    assert at is not None
    told = log_sum(logs) - covering.prefix_logprob().upper
    return *members[at], max(0.0, -math.expm1(told))


def _pick(masses: NDArray[np.float64], rng: np.random.Generator | None) -> int | None:
    """The heaviest, or one that is drawn; None where there is none."""
    total = float(masses.sum())
    if not total > 0:
        return None
    if rng is None:
        return int(masses.argmax())
    return int(rng.choice(len(masses), p=masses / total))
