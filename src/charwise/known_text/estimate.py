"""By how much the log-probability of each byte may be off: estimates from what rounds saw.

Two things are known of an approximate sum: what share of the mass was lent or left out at each
byte, and by how much the last step, which evaluated a part of what the step before had lent, has
changed each byte. docs/scoring.md says what their sum promises, and what not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: What a step changed says how much the next ones would: about as much together.
CHANGED = 0.3

#: What was lent errs by so much of its share, spread over the bytes that follow.
LENT, FADING = 0.5, 0.7

#: The same of what was left out, which goes on at once.
MISSING = 1.0

#: Where a limit ended a step, this share of a byte's surprisal may be off, beside all that.
LIMITED = 0.02


def byte_errors(before: Floats | None, after: Floats, lent: Floats, missing: Floats) -> Floats:
    """Estimated errors of the log-probabilities of bytes.

    Args:
        before: `[n + 1]` log →p(text[:t]) as of the step before, nats; None if there was none.
        after: the same as of the last step.
        lent: `[n + 1]` shares that were lent at each position.
        missing: `[n + 1]` shares that were left out there.

    Returns:
        `[n]` nats.

    >>> logs = np.array([0.0, -1.0, -2.0])
    >>> byte_errors(logs, logs - [0, 0, 0.01], np.zeros(3), np.zeros(3)).round(4).tolist()
    [0.0, 0.003]
    """
    errors = LENT * faded(lent)[:-1] + MISSING * faded(missing)[:-1]
    if before is None:
        return np.asarray(np.log1p(errors * np.exp(np.minimum(surprisals(after), 50.0))))
    with np.errstate(invalid="ignore"):
        changed = np.abs(np.diff(after) - np.diff(before))
    return np.asarray(errors + CHANGED * np.nan_to_num(changed, nan=0.0, posinf=0.0))


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
