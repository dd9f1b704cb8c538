"""Completions with weights: what conditioning on a constraint gives."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from charwise.cursor.drafts import Completion, Placed
from charwise.tokens.utf8 import decoder_after, pending

Floats = NDArray[np.float64]


class Weighted(list[Completion]):
    """Completions that satisfy a constraint, the heaviest first, with their weights.

    The `logprob` of a completion is that of its text where sets are added up. Of one that was
    sampled it is that of its tokenizations that were drawn. There are no `token_ids`: weights are
    those of texts.

    Attributes:
        weights: `[n]` p(completion | prompt, C), or the estimate of it.
        logprob: log p(C | prompt), nats, or the log of the unbiased estimate of it.
        effective: effective sample size, (Σ w)² / Σ w²; infinite where nothing was sampled.

    >>> import math
    >>> Weighted([], np.zeros(0), logprob=-1.0, effective=math.inf).logprob
    -1.0
    """

    def __init__(
        self, found: Iterable[Completion], weights: Floats, *, logprob: float, effective: float
    ) -> None:
        super().__init__(found)
        self.weights, self.logprob, self.effective = weights, logprob, effective


def weighed_text(state: Placed, raw: bytes, finish: str, logprob: float) -> Completion:
    """A text after a state, of whatever tokens.

    >>> import charwise
    >>> weighed_text(charwise.load().state("x = "), b"1", "end", -2.0).drawn
    2
    """
    text = decoder_after(state.raw).decode(raw, final=True)
    drawn = len(raw) + (finish == "end")
    return Completion(text, raw, logprob, [], state.exact_from, finish, drawn)


def whole_characters(before: bytes, raw: bytes) -> bytes:
    """A text that was cut, without the character that the cut is in, after other bytes.

    >>> whole_characters(b"", b"a\\xc3"), whole_characters(b"\\xf0\\x9f", b"\\x98")
    (b'a', b'')
    """
    return raw[: max(0, len(raw) - len(pending(before[-3:] + raw)))]
