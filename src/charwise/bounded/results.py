"""The results of bounded models: numbers with a lower and an upper bound."""

from __future__ import annotations

import builtins
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from charwise.coverings.best_first import Interval
from charwise.cursor.distributions import NextBytes
from charwise.errors import BoundsError


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
