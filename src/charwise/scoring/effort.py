"""How much to spend on a text: a number of rounds, and the presets that name some."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypedDict

from charwise.errors import SettingError

#: θ of the first round, and by what it is divided from one round to the next while it falls.
FIRST_THRESHOLD, FALL = 0.02, 4.0

#: Rounds after which a tolerance gives up.
MOST_ROUNDS = 10


@dataclass(frozen=True)
class Effort:
    """How many rounds evaluate contexts beside the canonical tokens, at falling thresholds.

    The threshold falls in the first half of the rounds. The others go deeper at the last one, and
    end once nothing is worth it. With a tolerance it falls in all of them.

    Attributes:
        rounds: the most rounds, one model call each. `math.inf` is threshold 0: the sum over every
            token string, which is exact, and exponential in the length of the text.
        tolerance: stop before `rounds` where the stated error is at most this: bits a byte for a
            score, total variation for the distribution of a next byte.

    Raises:
        SettingError: rounds that are no whole number from 1 to 100; a tolerance of 0 or less.

    >>> [Effort(4).threshold(number) for number in (1, 2, 3, 4)]
    [0.02, 0.005, 0.005, 0.005]
    """

    rounds: float = 6
    tolerance: float | None = None

    def __post_init__(self) -> None:
        if not (self.exact or (1 <= self.rounds <= 100 and self.rounds % 1 == 0)):
            raise SettingError(
                f"rounds is {self.rounds!r}: give a whole number from 1 to 100, or math.inf."
            )
        if self.tolerance is not None and not 0 < self.tolerance < math.inf:
            raise SettingError(
                f"tolerance is {self.tolerance!r}: give a number above 0, such as 0.05: bits a "
                "byte for a score, total variation for a next byte. For an error of 0 choose the "
                "preset 'exact'."
            )

    @classmethod
    def of(cls, preset: str | Effort | None, tolerance: float | None = None) -> Effort:
        """Return the effort that a preset names, that reaches a tolerance, or that is passed."""
        if tolerance is not None:
            if preset is not None:
                both = f"preset={preset!r} and tolerance={tolerance!r}"
                raise SettingError(f"{both}: give one of them.")
            return cls(MOST_ROUNDS, tolerance)
        if isinstance(preset, Effort):
            return preset
        if isinstance(preset, str) and preset in PRESETS:
            return PRESETS[preset]
        raise SettingError(
            f"unknown preset {preset!r}: choose one of {', '.join(PRESETS)}, or pass an Effort."
        )

    @property
    def exact(self) -> bool:
        """Whether every token string is summed over."""
        return self.rounds == math.inf

    @property
    def levels(self) -> float:
        """How many thresholds there are."""
        half = -(-self.rounds // 2)
        return half if self.tolerance is None and not self.exact else self.rounds

    def threshold(self, number: int) -> float:
        """θ of a round, from 1: the least share of the probability that earns an evaluation."""
        return 0.0 if self.exact else FIRST_THRESHOLD / FALL ** (min(number, self.levels) - 1)

    @property
    def typed_threshold(self) -> float:
        """θ for a typed byte: the last but one of the rounds, or a quarter of the tolerance."""
        if self.exact:
            return 0.0
        if self.tolerance is not None:
            return self.tolerance / 4
        return self.threshold(int(max(1, self.levels - 1)))


#: The presets, cheapest first. docs/benchmarks.md measures what each of them buys.
PRESETS = {
    "fast": Effort(4),
    "default": Effort(6),
    "accurate": Effort(10),
    "exact": Effort(math.inf),
}


class EffortKeywords(TypedDict, total=False):
    """How much is spent on a text: a preset or a tolerance; with neither the model's default."""

    preset: str | Effort | None
    tolerance: float | None
