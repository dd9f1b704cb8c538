"""An audit of a score: what beams that prune at random say of the same text."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Audit(NamedTuple):
    """An estimate of a text's probability that shares no rule with the score.

    Attributes:
        logprob: log of the estimate of p(text | context), nats. The estimate is unbiased (with a
            context it is the ratio of two that are); its logarithm is low by about `error`² / 2.
        error: the standard error of the estimate, relative to it: of `logprob`, to first order.
            It is itself an estimate, from eight beams: near 1 it says that one of them has found
            what the others have not, and that more contexts are needed.
        scored: what the score says, nats.
        contexts: contexts evaluated for it.

    >>> audit = Audit(logprob=-5.0, error=0.1, scored=-5.25, contexts=90)
    >>> audit.difference
    -0.25
    """

    logprob: float
    error: float
    scored: float
    contexts: int

    @property
    def difference(self) -> float:
        """By how much the score is above the estimate, nats."""
        return self.scored - self.logprob


def mean_of_logs(logs: NDArray[np.float64]) -> tuple[float, float]:
    """The log of a mean, and the standard error of that mean, relative to it.

    >>> [round(value, 9) for value in mean_of_logs(np.log([0.5, 1.5]))]
    [0.0, 0.5]
    """
    top = float(np.max(logs))
    if top == -math.inf:
        return -math.inf, math.nan
    scaled = np.exp(logs - top)
    mean = float(scaled.mean())
    return top + math.log(mean), float(scaled.std(ddof=1)) / math.sqrt(len(logs)) / mean
