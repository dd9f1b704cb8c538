"""By how much the log-probability of each byte may be off: estimates from what rounds saw.

What is on loan at a byte (`Lattice.on_loan`) errs by a part of the byte's surprisal: how large a
part, by how much contexts that end alike disagree (`disagreement.py`). What was left out has a
share. docs/scoring.md says what their sum promises, and what not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: What is on loan at a byte errs by so much of the byte's surprisal, times a power of what contexts
#: that end alike disagree on.
ON_LOAN, POWER = 0.144, 0.7

#: Shares are spread over the bytes that follow.
FADING = 0.7

#: What was left out errs by so much of its share.
MISSING = 1.0


def byte_errors(after: Floats, on_loan: Floats, missing: Floats, disagreement: float) -> Floats:
    """Estimated errors of the log-probabilities of bytes.

    Args:
        after: `[n + 1]` log →p(text[:t]), nats.
        on_loan: `[n + 1]` shares of it that are on loan.
        missing: `[n + 1]` shares that were left out there.
        disagreement: of contexts that end alike, nats a byte.

    Returns:
        `[n]` nats.

    >>> logs = np.array([0.0, -1.0, -2.0])
    >>> byte_errors(logs, np.array([0, 0, 0.5]), np.zeros(3), 0.1).round(4).tolist()
    [0.0, 0.0144]
    """
    lent = ON_LOAN * disagreement**POWER * on_loan[1:] * surprisals(after)
    return np.asarray(lent + MISSING * faded(missing)[:-1])


def surprisals(log_prefix: Floats) -> Floats:
    """`[n]` −log p of bytes, nats, from `[n + 1]` log →p(text[:t]); 0 where nothing is known.

    >>> surprisals(np.array([0.0, -1.5, -np.inf, -np.inf])).tolist()
    [1.5, 0.0, 0.0]
    """
    with np.errstate(invalid="ignore"):
        return np.asarray(np.nan_to_num(-np.diff(log_prefix), nan=0.0, posinf=0.0))


def faded(shares: Floats) -> Floats:
    """`[n]` shares, each spread over the positions that follow.

    >>> faded(np.array([1.0, 0.0, 0.0])).round(3).tolist()
    [0.3, 0.21, 0.147]
    """
    out = np.empty(len(shares))
    carried = 0.0
    for t, share in enumerate(shares.tolist()):
        carried = carried * FADING + share * (1.0 - FADING)
        out[t] = carried
    return out
