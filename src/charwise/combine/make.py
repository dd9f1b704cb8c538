"""The combinations that there are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

from charwise.combine.combination import Combination
from charwise.combine.members import Team, members_of
from charwise.combine.rules import Extreme, Mixture, Product
from charwise.errors import SettingError, check_number, items, shown


def mixture(members: Sequence[Any], weights: Sequence[float] | None = None) -> Combination:
    """Σ_i λ_i p_i, of distributions over texts: one of the members writes the text, λ says which.

    At each byte the members count by λ_i(σ) ∝ λ_i →p_i(σ), Bayes' rule, so that who foresees the
    text better soon counts for all: over n bytes it costs at most log(1/λ_i) / n nats a byte more
    than member i does. Averaging with constant weights is another distribution.

    Args:
        members: models, or `member(…)`s.
        weights: λ, none negative; divided by their sum. By default equal.

    Raises:
        SettingError: what are no members, or no such weights.

    >>> import charwise
    >>> lm = charwise.load()
    >>> mixture([lm, lm], weights=[3, 1]).team.rule
    Mixture(weights=(0.75, 0.25))
    """
    found = members_of(members)
    given = _weights(weights, len(found))
    if min(given) < 0 or not 0 < sum(given) < math.inf:
        raise SettingError(
            f"the weights are {shown(weights)}: of a mixture, none is negative, and one is above 0."
        )
    return Combination(Team(found, Mixture(tuple(weight / sum(given) for weight in given))))


def product(members: Sequence[Any], weights: Sequence[float] | None = None) -> Combination:
    """∝ Π_i p_i^{w_i}: what all members find likely.

    What a member gives probability zero is impossible, whatever its weight's sign.

    Args:
        members: models, or `member(…)`s.
        weights: w, any numbers that are not all 0; by default 1/n each, the geometric mean.

    Raises:
        SettingError: what are no members, or no such weights.

    >>> import charwise
    >>> lm = charwise.load()
    >>> product([lm, lm]).team.rule.weights
    (0.5, 0.5)
    """
    found = members_of(members)
    given = _weights(weights, len(found))
    if not any(given):
        raise SettingError(f"the weights are {shown(weights)}: one must be other than 0.")
    return Combination(Team(found, Product(given)))


def minimum(members: Sequence[Any]) -> Combination:
    """∝ min_i p_i: no more likely than to the member that finds it least so.

    >>> import charwise
    >>> minimum([charwise.load()]).next("import nump").top(1)[0][0]
    'y'
    """
    return Combination(Team(members_of(members), Extreme(greatest=False)))


def maximum(members: Sequence[Any]) -> Combination:
    """∝ max_i p_i: as likely as to the member that finds it most so.

    >>> import charwise
    >>> maximum([charwise.load()]).next("import nump").top(1)[0][0]
    'y'
    """
    return Combination(Team(members_of(members), Extreme(greatest=True)))


def proxy(base: Any, tuned: Any, untuned: Any, alpha: float = 1.0) -> Combination:
    """∝ base · (tuned / untuned)^α: what tuning did to a small model, done to another.

    Proxy tuning (Liu et al., COLM 2024), there for models of one tokenizer; over bytes the three
    may have three.

    Args:
        base: the model that is to be tuned.
        tuned, untuned: another model after and before.
        alpha: how much of it; any number.

    Raises:
        SettingError: what are no models, or no number.

    >>> import charwise
    >>> lm = charwise.load()
    >>> proxy(lm, lm, lm, alpha=0.5).team.rule.weights
    (1.0, 0.5, -0.5)
    """
    _check_finite("alpha", alpha)
    weights = (1.0, float(alpha), -float(alpha))
    return Combination(Team(members_of([base, tuned, untuned]), Product(weights)))


def contrast(strong: Any, weak: Any, plausibility: float = 0.1) -> Combination:
    """∝ strong / weak, among the bytes that the strong model finds plausible.

    Contrastive decoding (Li et al., ACL 2023), over bytes in place of tokens: what the strong model
    gives at least `plausibility` of what it gives its likeliest byte.

    Args:
        strong, weak: the models.
        plausibility: in [0, 1]; 0 allows everything.

    Raises:
        SettingError: what are no models, or no such number.

    >>> import charwise
    >>> lm = charwise.load()
    >>> contrast(lm, lm).next("import nump").top(1)[0]
    ('y', 1.0)
    """
    check_number("plausibility", plausibility, 0.0, 1.0)
    rule = Product((1.0, -1.0), plausibility=float(plausibility))
    return Combination(Team(members_of([strong, weak]), rule))


def _weights(weights: Sequence[float] | None, count: int) -> tuple[float, ...]:
    """One finite number for each member; by default equal ones that sum to 1."""
    if weights is None:
        return (1.0 / count,) * count
    listed = items(weights)
    if listed is None:
        raise SettingError(f"the weights are {shown(weights)}: give a list of numbers.")
    if len(listed) != count:
        raise SettingError(f"{len(listed)} weights for {count} members: give one for each.")
    for weight in listed:
        _check_finite("a weight", weight)
    return tuple(float(weight) for weight in listed)


def _check_finite(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise SettingError(f"{name} is {shown(value)}: it must be a number.")
    try:
        finite = math.isfinite(float(value))
    except OverflowError:
        finite = False
    if not finite:
        raise SettingError(f"{name} is {shown(value)}: it must be finite.")
