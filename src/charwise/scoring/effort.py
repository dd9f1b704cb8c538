"""How much to spend on a text: a number of rounds, and the presets that name some."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypedDict

from charwise.errors import SettingError

#: θ of the first round. Each later round has a quarter of the θ before.
FIRST_THRESHOLD = 0.02

#: Rounds after which a tolerance gives up.
MOST_ROUNDS = 10


@dataclass(frozen=True)
class Effort:
    """How many rounds evaluate contexts beside the canonical tokens, each at a lower threshold.

    Attributes:
        rounds: the number of rounds, one model call each. `math.inf` is threshold 0: the sum over
            every token string, which is exact, and exponential in the length of the text.
        tolerance: stop before `rounds` where the stated error is at most this: bits a byte for a
            score, total variation for the distribution of a next byte.

    Raises:
        SettingError: a number of rounds or a tolerance that is not above 0.

    >>> Effort(3).threshold(3), Effort(math.inf).threshold(1)
    (0.00125, 0.0)
    """

    rounds: float = 4
    tolerance: float | None = None

    def __post_init__(self) -> None:
        if not (self.rounds >= 1 and (self.exact or self.rounds % 1 == 0)):
            raise SettingError(f"rounds is {self.rounds!r}: give a whole number, 1 or more.")
        if self.tolerance is not None and not 0 < self.tolerance < math.inf:
            raise SettingError(
                f"tolerance is {self.tolerance!r}: give a number above 0, in bits a byte, such as "
                "0.05. For an error of 0 choose the preset 'exact'."
            )

    @property
    def exact(self) -> bool:
        """Whether every token string is summed over."""
        return self.rounds == math.inf

    def threshold(self, number: int) -> float:
        """θ of a round, from 1: the least share of the probability that earns an evaluation."""
        return 0.0 if self.exact else FIRST_THRESHOLD / 4.0 ** (number - 1)

    @property
    def at_cursor(self) -> Effort:
        """The effort for the end of a prompt: one round less, for each is waited for."""
        return self if self.exact else Effort(max(1, self.rounds - 1), self.tolerance)

    @property
    def typed_threshold(self) -> float:
        """θ for a typed byte: that of half of the rounds, or a quarter of the tolerance."""
        half = 0.0 if self.exact else self.threshold(max(1, int(self.rounds // 2)))
        return half if self.tolerance is None else max(half, self.tolerance / 4)


#: The presets, cheapest first. docs/scoring.md measures what each of them buys.
PRESETS = {
    "fast": Effort(3),
    "default": Effort(4),
    "accurate": Effort(6),
    "exact": Effort(math.inf),
}


class EffortKeywords(TypedDict, total=False):
    """How much is spent on a text: a preset or a tolerance; with neither the model's default."""

    preset: str | Effort | None
    tolerance: float | None


def effort_of(preset: str | Effort | None, tolerance: float | None = None) -> Effort:
    """Return the effort that a preset names, that reaches a tolerance, or that is passed.

    Raises:
        SettingError: an unknown name, a preset together with a tolerance, or a tolerance that is
            not above 0.

    >>> effort_of("exact").exact, effort_of(None, tolerance=0.003).tolerance
    (True, 0.003)
    """
    if tolerance is not None:
        if preset is not None:
            raise SettingError(f"preset={preset!r} and tolerance={tolerance!r}: give one of them.")
        return Effort(MOST_ROUNDS, tolerance)
    if isinstance(preset, Effort):
        return preset
    if isinstance(preset, str) and preset in PRESETS:
        return PRESETS[preset]
    raise SettingError(
        f"unknown preset {preset!r}: choose one of {', '.join(PRESETS)}, or pass an Effort."
    )
