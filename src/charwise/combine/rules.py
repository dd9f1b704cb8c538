"""How several distributions become one: mixtures, products, the least and the greatest.

A rule is a function F of n probabilities, one a member; here it takes and gives logarithms. Let
→p_i(σ) be the members' prefix probabilities and c the next byte, or the end of text. What a
combination gives to c, before it is normalised, is

    local:     F(p_1(c | σ), …, p_n(c | σ))
    global:    F(→p_1(σ·c), …, →p_n(σ·c)) / F(→p_1(σ), …, →p_n(σ))

For a product the two are equal, and differ in what normalising leaves out. Of a mixture only the
second is meant, which is a distribution as it is. docs/combine.md derives all of it.

How far off a combination may be is estimated from what its members say of their own errors. Of the
next byte the estimates take what is off about a member to sit on the one
byte where that does most: a share e of its probability more there, or as much less in logarithms,

    p_i(c) → p_i(c) + e / (1 − e)     or     p_i(c)² / (p_i(c) + e / (1 − e))

so that what a member gives next to nothing, and a negative weight divides by, is not divided by
zero. docs/combine.md derives them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Rule(Protocol):
    """How the probabilities of n members become one."""

    def remembers(self, whole: bool) -> bool:
        """Whether the local (or global) rule depends on →p_i of the text so far."""
        ...

    def combine(self, logs: Floats) -> Floats:
        """log F, `[…]`, of log-probabilities `[n, …]`."""
        ...

    def next(self, logs: Floats, before: Floats, whole: bool) -> Floats:
        """Return log masses of the next byte, `[…, 257]`.

        Args:
            logs: `[n, …, 257]` log p_i(c | σ).
            before: `[n, …]` log →p_i(σ).
            whole: by the global rule.
        """
        ...

    def shares(self, before: Floats) -> Floats:
        """`[n, …]` by how much each member's relative error counts, given log →p_i(σ)."""
        ...


@dataclass(frozen=True)
class Mixture:
    """Σ_i λ_i p_i, of distributions over strings.

    >>> rule = Mixture((0.5, 0.5))
    >>> logs = np.log(np.array([[0.25], [0.75]]))
    >>> np.exp(rule.combine(logs)).round(9).tolist()
    [0.5]
    """

    weights: tuple[float, ...]

    def remembers(self, whole: bool) -> bool:
        """It does."""
        return True

    def combine(self, logs: Floats) -> Floats:
        """log Σ_i λ_i p_i."""
        return np.asarray(np.logaddexp.reduce(logs + self._logs(logs.ndim), axis=0))

    def next(self, logs: Floats, before: Floats, whole: bool) -> Floats:
        """log Σ_i λ_i(σ) p_i(c | σ), λ_i(σ) ∝ λ_i →p_i(σ): Bayes' rule."""
        return self.combine(logs + before[..., None]) - self.combine(before)[..., None]

    def shares(self, before: Floats) -> Floats:
        """λ_i(σ).

        >>> shares = Mixture((0.5, 0.5)).shares(np.log(np.array([0.1, 0.3])))
        >>> shares.round(9).tolist()
        [0.25, 0.75]
        """
        return np.asarray(np.exp(before + self._logs(before.ndim) - self.combine(before)))

    def _logs(self, dimensions: int) -> Floats:
        with np.errstate(divide="ignore"):
            logs = np.log(np.array(self.weights))
        return np.asarray(logs.reshape(-1, *[1] * (dimensions - 1)))


@dataclass(frozen=True)
class Product:
    """Π_i p_i^{w_i}, over bytes to which all members of nonzero weight give some probability.

    Attributes:
        weights: any numbers. What a member gives probability zero is impossible, be its weight
            positive or negative; a member of weight 0 does not count (0⁰ = 1).
        plausibility: bytes that the first member gives less than this share of what it gives its
            likeliest byte are impossible.

    >>> rule = Product((1.0, -1.0))
    >>> np.exp(rule.combine(np.log(np.array([[0.5, 0.5], [0.25, 0.125]])))).round(9).tolist()
    [2.0, 4.0]
    """

    weights: tuple[float, ...]
    plausibility: float = 0.0

    def remembers(self, whole: bool) -> bool:
        """It does not: powers of →p_i(σ) are the same for all that may come next."""
        return False

    def combine(self, logs: Floats) -> Floats:
        """Σ_i w_i log p_i."""
        total = np.zeros(logs.shape[1:])
        possible = np.ones(logs.shape[1:], dtype=np.bool_)
        for weight, log in zip(self.weights, logs, strict=True):
            if weight:
                possible &= log > -np.inf
                total += weight * np.where(log > -np.inf, log, 0.0)
        return np.where(possible, total, -np.inf)

    def next(self, logs: Floats, before: Floats, whole: bool) -> Floats:
        """Return Σ_i w_i log p_i(c | σ), −inf for implausible bytes: local and global alike."""
        masses = self.combine(logs)
        if not self.plausibility:
            return masses
        least = logs[0].max(axis=-1, keepdims=True) + np.log(self.plausibility)
        return np.where(logs[0] >= least, masses, -np.inf)

    def shares(self, before: Floats) -> Floats:
        """|w_i|."""
        sizes = np.abs(np.array(self.weights)).reshape(-1, *[1] * (before.ndim - 1))
        return np.asarray(np.broadcast_to(sizes, before.shape))


@dataclass(frozen=True)
class Extreme:
    """min_i p_i, or max_i p_i.

    >>> logs = np.log(np.array([[0.25], [0.5]]))
    >>> [np.exp(Extreme(greatest).combine(logs)).tolist() for greatest in (False, True)]
    [[0.25], [0.5]]
    """

    greatest: bool

    def remembers(self, whole: bool) -> bool:
        """By the global rule."""
        return whole

    def combine(self, logs: Floats) -> Floats:
        """The least, or the greatest."""
        return np.asarray(logs.max(axis=0) if self.greatest else logs.min(axis=0))

    def next(self, logs: Floats, before: Floats, whole: bool) -> Floats:
        """The least or greatest p_i(c | σ); of the global rule →p_i(σ·c), over that of σ."""
        if not whole:
            return self.combine(logs)
        return self.combine(logs + before[..., None]) - self.combine(before)[..., None]

    def shares(self, before: Floats) -> Floats:
        """1 for each: any of them may be the one that decides."""
        return np.ones(before.shape)


def normalised(masses: Floats) -> tuple[Floats, Floats]:
    """Distributions `[…, 257]` from log masses, zero where nothing is possible; and log Σ `[…]`.

    >>> probs, total = normalised(np.log(np.array([0.1, 0.3])))
    >>> probs.round(9).tolist(), round(float(np.exp(total)), 9)
    ([0.25, 0.75], 0.4)
    """
    total = np.asarray(np.logaddexp.reduce(masses, axis=-1))
    least = np.where(total > -np.inf, total, 0.0)
    return np.exp(masses - least[..., None]), total


def error_of_next(
    rule: Rule, logs: Floats, before: Floats, whole: bool, errors: Floats, prefix_errors: Floats
) -> float:
    """Return the amount by which the next byte may be off, as a total variation.

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
            # Factors are taken no further than e to this.
            new = np.exp(np.minimum(masses - total, 700.0))  # of c alone; all added up to 1 before
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
    """Σ_i λ_i e_i, and the error of the weights: one member foresaw more, all others less."""
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
