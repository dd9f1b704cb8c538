"""How much to spend on a known text: tolerances, and which contexts are worth an evaluation.

A context that ends at position t of the text and is not evaluated is a *candidate*. Its share of
the mass there is ρ = w / →p(σ[:t]). Doing without it means *lending* its weight to an evaluated
context at the same position, one that ends with equal tokens if there is such a one: the model
goes on much the same after both. So a candidate is worth an evaluation while

    ρ · γ ≥ θ     where it agrees with an evaluated context on its last token or more,
    ρ ≥ θ         elsewhere.

γ = 1 never lends: whatever is not evaluated is left out, and every sum is a lower bound. Beside
the share stands the rank: the heaviest contexts at a position, as many as the *width* says, are
worth it whatever their share, for what weighs little here may be what the rest of the text needs.
docs/scoring.md derives the rule, and the two things beside it: *hindsight*, as the text that
follows is known, and the *first* context at a position, which shows bytes that no other does. It
also says how θ is chosen: it falls, and the width grows, step by step, until the error that is
estimated after a step is below the *tolerance*.
"""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.errors import SettingError, shown

#: A candidate is judged with so many of the next bytes in view, and is taken to spend so many nats
#: on each: where the text surprises, the alternatives before it count for more.
HINDSIGHT, NATS_A_BYTE = 4, 1.5

#: On how many last tokens contexts are compared, to find who agrees longest.
MEMORY = 12

#: By how much θ falls from one step to the next.
FINER = 5.0

#: What agreement is worth, where nothing else is said.
LENDING = 0.1

#: The last tokens of a context, latest first: at most `MEMORY`, none from before the root.
Tail = tuple[int, ...]


class Effort(NamedTuple):
    """How much to spend on a known text.

    Attributes:
        theta: least error, as a share of the prefix probability, that earns an evaluation; with a
            tolerance, where θ begins.
        gamma: how much agreement with an evaluated context lowers that error; 1 means that
            weights are never lent.
        lookahead: most tokens to evaluate at a time along the base path after each
            alternative, while its estimated share stays worth it.
        rounds: most rounds over one portion of the text, beside those that look ahead over a
            section for a better base path, ten at most; with so few, there is no look ahead.
        first: least share that earns an evaluation where no context ends yet. Below θ it makes
            the distributions of next bytes more accurate, for about one context a byte.
        tolerance: θ falls until the estimated error is at most this, in bits a byte; None to
            stay with the one θ.
        width: so many contexts are worth an evaluation at each position whatever their share, the
            heaviest of those that cover the text there, as a beam of this width keeps them. It
            doubles where θ falls by `FINER`. With a tolerance that is not so of what weighs less
            than θ / 5,000 where another context ends.
        variation: the tolerance of a next byte's distribution, as a total variation; None for the
            same number as the tolerance.

    >>> Effort(theta=1e-2, gamma=0.5).lookahead
    16
    """

    theta: float
    gamma: float
    lookahead: int = 16
    rounds: int = 1000
    first: float = 1.0
    tolerance: float | None = None
    width: int = 0
    variation: float | None = None

    def worth(self, rho: float, agreed: int) -> bool:
        """Whether a candidate of this share and agreement earns an evaluation.

        >>> effort = Effort(theta=1e-3, gamma=0.1)
        >>> effort.worth(0.005, agreed=0), effort.worth(0.005, agreed=1)
        (True, False)
        """
        return rho * (self.gamma if agreed else 1.0) >= self.theta and rho > 0

    @property
    def lends(self) -> bool:
        """Whether weight is lent."""
        return self.gamma < 1.0

    @property
    def steps(self) -> tuple[float, float]:
        """The first θ, and the least that it may fall to.

        Two steps at least where weight is lent: of one alone too little is known.

        >>> Effort(theta=1e-2, gamma=0.1).steps
        (0.05, 0.01)
        """
        if not self.lends or self.theta == 0:
            return self.theta, self.theta
        if self.tolerance is None:
            return max(self.theta, min(0.25, self.theta * FINER)), self.theta
        return self.theta, _LEAST

    @property
    def stepping(self) -> Effort:
        """The effort for a byte that is typed, which is decided at once and not in steps of θ."""
        if self.tolerance is None:
            return self
        return self.at(min(self.theta, max(_LEAST, self.tolerance / 5)))

    def at(self, theta: float) -> Effort:
        """The effort with θ at a step; φ falls with it, and the width grows."""
        if theta == self.theta:
            return self
        width = math.ceil(self.width * wider(self.theta / theta) - 1e-9)
        first = min(1.0, self.first * theta / self.theta)
        return self._replace(theta=theta, first=first, width=min(_WIDEST, width))


def wider(finer: float) -> float:
    """By how much the width grows where θ falls by a factor.

    >>> wider(FINER), round(wider(1 / FINER**2), 9)
    (2.0, 0.25)
    """
    return float(2.0 ** (math.log(finer) / math.log(FINER)))


def _is(value: object, kind: type) -> bool:
    """Whether a setting is a number of a kind; True and False are none."""
    return isinstance(value, kind) and not isinstance(value, bool)


#: θ falls no further than this, and the width grows no further.
_LEAST, _WIDEST = 1e-10, 128


def for_tolerance(tolerance: float, variation: float | None = None) -> Effort:
    """The effort that reaches a tolerance, in bits a byte.

    Args:
        tolerance: of known text; at a cursor the same number is a total variation.
        variation: another one there.

    Raises:
        SettingError: for what is no positive number.

    >>> for_tolerance(0.02).tolerance, for_tolerance(0.02).width
    (0.02, 6)
    """
    _check_tolerance(tolerance)
    tolerance = _float(tolerance)
    theta = min(1.0, max(1e-6, 2.5 * tolerance))
    width = max(2, round(6 * wider(0.05 / theta)))
    return Effort(theta, LENDING, 16, 1000, theta / 50, tolerance, width, variation)


def _float(number: float) -> float:
    """A number as a float; an int may be longer than any."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _check_tolerance(tolerance: float) -> None:
    if not (_is(tolerance, Real) and 0 < _float(tolerance) < math.inf):
        raise SettingError(
            f"tolerance is {shown(tolerance)}: it must be a number above 0, in bits a byte, or for "
            "what comes next a total variation. For no error at all choose the preset 'exact'."
        )


#: The presets, cheapest first: names for tolerances. What each buys is measured in
#: docs/benchmarks.md.
PRESETS = {
    "fast": for_tolerance(0.2, variation=0.05),
    "default": for_tolerance(0.1, variation=0.02),
    "accurate": for_tolerance(0.015, variation=0.005),
    # Every token string; exponential in the length of the text, and refused where that is too long.
    "exact": Effort(theta=0.0, gamma=1.0, lookahead=0),
}


def at_cursor(effort: Effort) -> Effort:
    """The effort for the distribution of the next byte, where a tolerance is a total variation.

    What the last tokens before the cursor may be is all that it takes, and a byte that is typed
    takes one call: no width there.

    >>> at_cursor(PRESETS["default"]).tolerance, at_cursor(for_tolerance(0.1)).tolerance
    (0.02, 0.1)
    """
    if effort.tolerance is None or not effort.width:
        return effort
    tolerance = effort.tolerance if effort.variation is None else effort.variation
    theta = min(0.05, max(1e-6, 5.0 * tolerance))
    return Effort(theta, LENDING, first=theta / 50, tolerance=tolerance)


def effort_of(preset: str | Effort | None, tolerance: float | None = None) -> Effort:
    """An `Effort` by its name, by a tolerance, or as it is, if its numbers are what they may be.

    Raises:
        SettingError: for an unknown name, what is neither a name nor an `Effort`, a preset and a
            tolerance at once, a tolerance that is no positive number, θ outside
            [0, 1], γ outside (0, 1], a lookahead that is no whole number or negative, rounds that
            are none or less than one, a negative `first`, or a width that is no whole number or
            negative.

    >>> effort_of("exact").theta, effort_of(None, tolerance=0.003).tolerance
    (0.0, 0.003)
    """
    if tolerance is not None:
        if preset is not None:
            raise SettingError(
                f"preset={shown(preset)} and tolerance={shown(tolerance)}: give one of them; a "
                "preset is a name for a tolerance."
            )
        return for_tolerance(tolerance)
    if isinstance(preset, str) and preset in PRESETS:
        return PRESETS[preset]
    names = ", ".join(PRESETS)
    if isinstance(preset, str):
        raise SettingError(f"unknown preset {shown(preset)}: choose one of {names}.")
    if not isinstance(preset, Effort):
        raise SettingError(
            f"the preset is {shown(preset)}: choose one of {names}, or pass an Effort."
        )
    theta, gamma, lookahead, rounds, first, wanted, width, variation = preset
    if not (_is(theta, Real) and 0 <= theta <= 1):
        raise SettingError(f"theta is {theta!r}: it is a share of probability, in [0, 1].")
    if not (_is(gamma, Real) and 0 < gamma <= 1):
        raise SettingError(f"gamma is {gamma!r}: it must lie in (0, 1].")
    if not (_is(lookahead, Integral) and lookahead >= 0):
        raise SettingError(
            f"lookahead is {lookahead!r}: it must be 0 tokens or more, a whole number."
        )
    if not (_is(rounds, Integral) and rounds >= 1):
        raise SettingError(f"rounds is {rounds!r}: it must be 1 or more, a whole number.")
    if not (_is(first, Real) and first >= 0):
        raise SettingError(f"first is {first!r}: it is a share of probability, 0 or more.")
    for given in (wanted, variation):
        if given is not None:
            _check_tolerance(given)
    if not (_is(width, Integral) and width >= 0):
        raise SettingError(f"width is {width!r}: it must be 0 contexts or more, a whole number.")
    return preset


def agreement(one: Tail, other: Tail) -> int:
    """On how many last tokens two contexts agree.

    >>> agreement((3, 2, 1), (3, 2, 9))
    2
    """
    if one == other:  # most that agree at all do
        return len(one)
    agreed = 0
    for mine, its in zip(one, other, strict=False):
        if mine != its:
            break
        agreed += 1
    return agreed


def tail_after(token: int, tail: Tail) -> Tail:
    """The tail of the context that a token makes.

    >>> tail_after(3, (2, 1))
    (3, 2, 1)
    """
    return (token, *tail[: MEMORY - 1])


def hindsight(log_prefix: NDArray[np.float64]) -> NDArray[np.float64]:
    """By how much the share of a candidate at each position may rise over the next bytes.

    Args:
        log_prefix: `[n]` log →p(text[:t]), nats, −inf where nothing is known yet.

    Returns:
        `[n]` factors, at least 1: the greatest fall of the prefix probability over one to
        `HINDSIGHT` bytes, less what the candidate itself should lose.

    >>> hindsight(np.array([0.0, -1.0, -9.0])).round(1).tolist()  # a surprise of 8 nats
    [403.4, 665.1, 1.0]
    """
    rise = np.zeros(len(log_prefix))
    for ahead in range(1, min(HINDSIGHT, len(log_prefix) - 1) + 1):
        later = log_prefix[ahead:]
        known = np.isfinite(later)
        fall = np.subtract(log_prefix[:-ahead], later, out=np.zeros(len(later)), where=known)
        np.maximum(rise[:-ahead], fall - ahead * NATS_A_BYTE, out=rise[:-ahead])
    return np.exp(np.minimum(rise, 700.0))
