"""How much to spend on a known text: the presets, and which contexts are worth an evaluation.

A context that ends at position t of the text and is not evaluated is a *candidate*. Its share of
the mass there is ρ = w / →p(σ[:t]). Doing without it means *lending* its weight to an evaluated
context at the same position, the one that ends with as many equal tokens as possible: the model
goes on much the same after both, the more so the longer they agree. So a candidate that agrees
with an evaluated context on its last a tokens is worth an evaluation while

    ρ · γ^a ≥ θ                 (a counted up to `MEMORY`)

γ = 1 never lends: whatever is not evaluated is left out, and every sum is a lower bound.
docs/scoring.md derives the rule, and the two things beside it: *hindsight*, as the text that
follows is known, and the *first* context at a position, which shows bytes that no other does.
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.errors import SettingError

#: A candidate is judged with so many of the next bytes in view, and is taken to spend so many nats
#: on each: where the text surprises, the alternatives before it count for more.
HINDSIGHT, NATS_A_BYTE = 4, 1.5

#: Agreement beyond so many tokens counts no more: what a model remembers for longer than that, such
#: as how it first saw a name spelled, it does not forget with the next token.
MEMORY = 12

#: The tokens of a context, latest first: a token, and the tail before it; None after the root.
Tail = tuple[int, "Tail"] | None


class Effort(NamedTuple):
    """How much to spend on a known text.

    Attributes:
        theta: least error, as a share of the prefix probability, that earns an evaluation.
        gamma: how much one more token of agreement with an evaluated context lowers that error;
            1 means that weights are never lent.
        lookahead: most tokens to evaluate at a time along the canonical rest of each
            alternative, while its estimated share stays worth it.
        rounds: most rounds over one portion of the text.
        first: least share that earns an evaluation where no context ends yet. Below θ it makes
            the distributions of next bytes more accurate, for about one context a byte.

    >>> Effort(theta=1e-2, gamma=0.5).lookahead
    16
    """

    theta: float
    gamma: float
    lookahead: int = 16
    rounds: int = 1000
    first: float = 1.0

    def worth(self, rho: float, agreed: int) -> bool:
        """Whether a candidate of this share and agreement earns an evaluation.

        >>> effort = Effort(theta=1e-3, gamma=0.5)
        >>> effort.worth(0.01, agreed=3), effort.worth(0.01, agreed=4)
        (True, False)
        """
        return rho * (self.gamma if agreed else 1.0) >= self.theta and rho > 0


#: The presets, cheapest first. What each buys is measured in docs/benchmarks.md. Their rounds are
#: as many as pay on most text: where it surprises again and again, more would take long.
PRESETS = {
    # One alternative in a hundred counts, and soon rejoins: little more than plain perplexity.
    "fast": Effort(theta=1e-2, gamma=0.3, rounds=4),
    # Alternatives are followed for longer, and show the next bytes that no other context does.
    "default": Effort(theta=1e-2, gamma=0.7, rounds=8, first=1e-3),
    # Alternatives stay alive: what the model remembers of them is not lost.
    "accurate": Effort(theta=4e-3, gamma=0.92, rounds=32, first=1e-5),
    # Every token string; exponential in the length of the text. For short texts and tiny models.
    "exact": Effort(theta=0.0, gamma=1.0, lookahead=0),
}


def effort_of(preset: str | Effort) -> Effort:
    """An `Effort` by its name, or as it is, if its numbers are what they may be.

    Raises:
        SettingError: for an unknown name, what is neither a name nor an `Effort`, θ outside
            [0, 1], γ outside (0, 1], a lookahead that is no whole number or negative, rounds that
            are none or less than one, or a negative `first`.

    >>> effort_of("exact").theta
    0.0
    """
    if isinstance(preset, str) and preset in PRESETS:
        return PRESETS[preset]
    names = ", ".join(PRESETS)
    if isinstance(preset, str):
        raise SettingError(f"unknown preset {preset!r}: choose one of {names}.")
    if not isinstance(preset, Effort):
        raise SettingError(f"the preset is {preset!r}: choose one of {names}, or pass an Effort.")
    theta, gamma, lookahead, rounds, first = preset
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
    return preset


def _is(value: object, kind: type) -> bool:
    """Whether a setting is a number of a kind; True and False are none."""
    return isinstance(value, kind) and not isinstance(value, bool)


def agreement(one: Tail, other: Tail) -> int:
    """On how many last tokens two contexts agree, at most `MEMORY`.

    >>> agreement((3, (2, (1, None))), (3, (2, (9, None))))
    2
    """
    agreed = 0
    while agreed < MEMORY and one is not None and other is not None and one[0] == other[0]:
        agreed += 1
        one, other = one[1], other[1]
    return agreed


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
