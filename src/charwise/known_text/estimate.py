"""By how much the log-probability of each byte may be off: estimates from what rounds saw.

What is on loan at a byte (`loans.py`) errs by a part of the byte's surprisal: how large a
part, by how much contexts that end alike disagree (`disagreement.py`). What was left out has a
share. docs/scoring.md says what their sum promises, and what not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: What is on loan at a byte errs by so much of the byte's surprisal, times a power of what contexts
#: that end alike disagree on.
ON_LOAN, POWER = 0.13, 0.7

#: Shares are spread over the bytes that follow.
FADING = 0.7

#: What was left out errs by so much of its share.
MISSING = 1.0

#: Nats a byte: where the mean over so many last bytes is so much, single bytes may be far off, and
#: each is stated to be off by this, at least.
HARD, ANY_BYTE, STRETCH = 0.04, 0.1, 200

#: All that a step changed is so many times what is still off, where that says more.
CHANGED = 0.65


def byte_errors(
    log_prefix: Floats, on_loan: Floats, missing: Floats, disagreement: float
) -> Floats:
    """Estimated errors of the log-probabilities of bytes.

    Args:
        log_prefix: `[n + 1]` log →p(text[:t]), nats.
        on_loan: `[n + 1]` shares of it that are on loan.
        missing: `[n + 1]` shares that were left out there.
        disagreement: of contexts that end alike, nats a byte.

    Returns:
        `[n]` nats.

    >>> logs = np.array([0.0, -1.0, -2.0])
    >>> byte_errors(logs, np.array([0, 0, 0.5]), np.zeros(3), 0.1).round(4).tolist()
    [0.0, 0.013]
    """
    lent = ON_LOAN * disagreement**POWER * on_loan[1:] * surprisals(log_prefix)
    return np.asarray(lent + MISSING * faded(missing)[:-1])


def changes(before: Floats, after: Floats) -> Floats:
    """`[n]` what is expected to be off after a step of θ that changed the sums, nats.

    Args:
        before, after: `[n + 1]` log →p(text[:t]), nats.

    >>> changes(np.array([0.0, -1.0, -np.inf]), np.array([0.0, -1.5, -3.0])).tolist()
    [0.325, 0.0]
    """
    with np.errstate(invalid="ignore"):
        changed = np.abs(np.diff(after) - np.diff(before))
    return np.asarray(CHANGED * np.nan_to_num(changed, nan=0.0, posinf=0.0))


def in_hard_text(errors: Floats, last: int) -> Floats:
    """`[last]` errors of the last bytes of a text, none of them small if the text is hard there.

    Args:
        errors: of the text so far, nats, as they were without this.
        last: how many.

    >>> in_hard_text(np.array([0.3, 0.0, 0.2]), 2).tolist(), in_hard_text(np.zeros(0), 0).tolist()
    ([0.1, 0.2], [])
    """
    part = errors[len(errors) - last :]
    stretch = errors[max(0, len(errors) - max(last, STRETCH)) :]
    return np.maximum(part, ANY_BYTE) if stretch.sum() >= HARD * max(1, len(stretch)) else part


def at_least(errors: Floats, others: Floats) -> Floats:
    """Errors that add up to no less than others do; what is missing is where these are.

    >>> at_least(np.array([0.5, 0.5]), np.array([0.0, 2.0])).tolist()
    [0.5, 1.5]
    """
    short = float(others.sum() - errors.sum())
    return errors + others * (short / float(others.sum())) if short > 0 else errors


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
