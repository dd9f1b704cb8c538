"""Sums of probabilities in the log domain, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def log(x: float) -> float:
    """Natural logarithm, −inf at 0."""
    return math.log(x) if x > 0 else -math.inf


def add_logs(x: float, y: float) -> float:
    """log(exp x + exp y)."""
    return float(np.logaddexp(x, y))


def log_sum(logs: Sequence[float]) -> float:
    """log Σ exp, of a list of logs that may be empty or −inf."""
    top = max(logs, default=-math.inf)
    if top == -math.inf:
        return top
    return top + math.log(math.fsum(math.exp(x - top) for x in logs))
