"""An audit of a score: what tokenizations that were drawn at random say of the same text."""

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
            It is itself an estimate, and too small where few draws carry most of the weight.
        effective: how many draws of equal weight would be worth as much; where that is a handful,
            draw more.
        scored: what the score says, nats.
        draws: tokenizations that were drawn.
        contexts: contexts evaluated for it.

    >>> audit = Audit(logprob=-5.0, error=0.1, effective=40.0, scored=-5.25, draws=64, contexts=90)
    >>> audit.difference
    -0.25
    """

    logprob: float
    error: float
    effective: float
    scored: float
    draws: int
    contexts: int

    @property
    def difference(self) -> float:
        """By how much the score is above the estimate, nats."""
        return self.scored - self.logprob


def mean_weight(log_weights: NDArray[np.float64]) -> tuple[float, float, float]:
    """The log of the mean of weights, its relative standard error, and how many count.

    >>> [round(value, 9) for value in mean_weight(np.log([0.5, 1.5]))]
    [0.0, 0.5, 1.6]
    """
    top = float(np.max(log_weights, initial=-np.inf))
    if top == -np.inf:
        return -math.inf, math.nan, 0.0
    scaled = np.exp(log_weights - top)
    mean, size = float(scaled.mean()), len(scaled)
    error = float(scaled.std(ddof=1)) / math.sqrt(size) / mean if size > 1 else math.nan
    return top + math.log(mean), error, float(scaled.sum() ** 2 / (scaled**2).sum())
