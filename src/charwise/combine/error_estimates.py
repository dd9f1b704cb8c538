"""How far off a combination may be, from what its members say of their own errors.

Estimates from estimates. Those of the next byte take what is off about a member to sit on the one
byte where that does most: a share e of its probability more there, or as much less in logarithms,

    p_i(c) → p_i(c) + e / (1 − e)     or     p_i(c)² / (p_i(c) + e / (1 − e))

so that what a member gives next to nothing, and a negative weight divides by, is not divided by
zero. docs/combine.md derives them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from charwise.combine.rules import Floats, Mixture, Product, Rule, normalised

#: Factors are taken no further than e to this.
_MOST = 700.0


def error_of_next(
    rule: Rule, logs: Floats, before: Floats, whole: bool, errors: Floats, prefix_errors: Floats
) -> float:
    """By how much the distribution of the next byte may be off, as a total variation.

    Args:
        rule: what combines them.
        logs: `[n, 257]` log p_i(c | σ).
        before: `[n]` log →p_i(σ).
        whole: by the global rule.
        errors: `[n]` total variations of the members' distributions.
        prefix_errors: `[n]` by how much log →p_i(σ) may be off, nats.

    >>> logs, none = np.log(np.full((2, 257), 1 / 257)), np.zeros(2)
    >>> error_of_next(Mixture((0.5, 0.5)), logs, none, False, np.array([0.02, 0.04]), none)
    0.03
    """
    if not (errors.any() or prefix_errors.any()):
        return 0.0
    probs, total = normalised(rule.next(logs, before, whole))
    if isinstance(rule, Mixture):
        return _of_mixture(rule, np.exp(logs), before, probs, errors, prefix_errors)
    found, share, bare = 0.0, 0.0, rule
    if isinstance(rule, Product) and rule.plausibility:
        share, bare = rule.plausibility, replace(rule, plausibility=0.0)
    for member in np.flatnonzero(errors * (rule.shares(before) > 0)).tolist():
        extra = errors[member] / max(1e-9, 1.0 - errors[member])
        more = np.log(np.exp(logs[member]) + extra)
        changes = np.zeros(1)
        for changed in (more, 2 * logs[member] - more):
            others = logs.copy()
            others[member] = changed
            masses = bare.next(others, before, whole)
            if share:
                masses = np.where(_plausible(others[0], logs[0], share), masses, -np.inf)
            new = np.exp(np.minimum(masses - total, _MOST))  # of c alone; all added up to 1 before
            sums = 1.0 - probs + new  # 0 where c was all, and is no more
            now = np.divide(new, sums, out=np.zeros_like(new), where=sums > 0)
            changes = np.maximum(changes, np.abs(now - probs))
        found += float(changes.max())
    return min(1.0, found)


def _plausible(changed: Floats, logs: Floats, share: float) -> NDArray[np.bool_]:
    """`[257]` whether each byte alone, as it is changed, has that share of the likeliest.

    >>> logs = np.log(np.array([0.5, 0.3, 0.2]))
    >>> _plausible(logs - 0.1, logs, 1.0).tolist()
    [True, False, False]
    """
    order = np.argsort(logs)
    others = np.full(len(logs), logs[order[-1]])
    others[order[-1]] = logs[order[-2]]
    return np.asarray(changed >= others + np.log(share))


def _of_mixture(
    rule: Mixture,
    rows: Floats,
    before: Floats,
    probs: Floats,
    errors: Floats,
    prefix_errors: Floats,
) -> float:
    """Σ_i λ_i e_i, and what the weights may be off: one member foresaw more, all others less."""
    found = [0.0]
    for member in np.flatnonzero(np.isfinite(before)).tolist():
        less = before - prefix_errors
        less[member] = before[member] + prefix_errors[member]
        found.append(0.5 * float(np.abs(rule.shares(less) @ rows - probs).sum()))
    return min(1.0, float(rule.shares(before) @ errors) + max(found))


def errors_of_bytes(
    rule: Rule, probs: Floats, before: Floats, errors: Floats, prefix_errors: Floats
) -> Floats:
    """`[T]` by how much the log-probability of each byte of a text may be off, nats.

    Args:
        rule: what combines them, by the local rule.
        probs: `[T]` what it gives to the bytes.
        before: `[n, T + 1]` log →p_i of the text up to each byte, and all of it.
        errors: `[n, T]` by how much each log p_i(c | σ) may be off, nats.
        prefix_errors: `[n]` by how much the first log →p_i may be.

    >>> halves = Mixture((0.5, 0.5))
    >>> zeros = np.zeros((2, 2))
    >>> errors_of_bytes(halves, np.ones(1), zeros, np.array([[0.1], [0.3]]), zeros[0]).round(9)
    array([0.2])
    """
    if isinstance(rule, Mixture):
        shares = np.stack([_shares(rule, column) for column in before.T], axis=1)
        summed = prefix_errors[:, None] + np.cumsum(errors, axis=1) - errors
        moved = np.abs(np.diff(shares, axis=1)) * summed
        return np.asarray((shares[:, 1:] * errors + moved).sum(axis=0))
    if isinstance(rule, Product):
        of_all = (rule.shares(before[:, 1:]) * errors).sum(axis=0)
    else:
        of_all = errors.max(axis=0)
    return np.asarray(2.0 * (1.0 - probs) * of_all)


def _shares(rule: Rule, before: NDArray[np.float64]) -> Floats:
    return rule.shares(before) if np.isfinite(rule.combine(before)) else np.zeros(len(before))
