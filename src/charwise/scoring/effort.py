"""How much to spend on a text: a beam width, a threshold, and the presets that name them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TypedDict

from charwise.errors import SettingError, shown

#: Width² · threshold, where no threshold is given: a wider beam is worth a finer threshold.
CURVE = 0.32


@dataclass(frozen=True, init=False)
class Effort:
    """How many contexts are worth an evaluation.

    An unbounded width with threshold 0 sums over every token string. This is exact, and
    exponential in the length of the text.

    Attributes:
        width: the most contexts at a byte position. `math.inf` sets no bound.
        threshold: the least share of the probability that earns a context its evaluation; a score
            of n < 64 tokens takes n / 64 of it. The default is 0.32 / width².
        tolerance: widen the beam until the stated error is at most this: bits a byte for a score,
            total variation for the distribution of a next byte. None keeps to the one width.

    >>> Effort(8).threshold, Effort(math.inf, 0.0).exact
    (0.005, True)
    """

    width: float
    threshold: float
    tolerance: float | None

    def __init__(
        self, width: float = 8, threshold: float | None = None, tolerance: float | None = None
    ) -> None:
        """Check the fields; a `SettingError` says which is wrong."""
        if not (
            _is(width, Real) and (width == math.inf or (1 <= width < 2**31 and width % 1 == 0))
        ):
            raise SettingError(
                f"width is {shown(width)}: give a whole number of contexts, 1 or more, such as 8."
            )
        if threshold is None:
            threshold = min(1.0, CURVE / width**2)
        elif not (_is(threshold, Real) and 0 <= threshold <= 1):
            raise SettingError(
                f"threshold is {shown(threshold)}: give a share of probability from 0 to 1, such "
                "as 0.005, or leave it out."
            )
        if tolerance is not None:
            _check_tolerance(tolerance)
        for name, value in (("width", width), ("threshold", threshold), ("tolerance", tolerance)):
            object.__setattr__(self, name, value)

    @property
    def exact(self) -> bool:
        """Whether every token string is summed over."""
        return self.threshold == 0 and self.width == math.inf


def _is(value: object, kind: type) -> bool:
    """Whether a setting is a number of a kind; True and False are not numbers here."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _check_tolerance(tolerance: float) -> None:
    try:
        good = _is(tolerance, Real) and 0 < float(tolerance) < math.inf
    except OverflowError:
        good = False
    if not good:
        raise SettingError(
            f"tolerance is {shown(tolerance)}: give a number above 0, in bits a byte, such as "
            "0.05. For an error of 0 choose the preset 'exact'."
        )


#: The presets, cheapest first. docs/benchmarks.md measures what each of them buys.
PRESETS = {
    "fast": Effort(4),
    "default": Effort(8),
    "accurate": Effort(16),
    "exact": Effort(math.inf, 0.0),
}


class EffortKeywords(TypedDict, total=False):
    """How much is spent on a text: a preset or a tolerance; with neither the model's default."""

    preset: str | Effort | None
    tolerance: float | None


class StateKeywords(EffortKeywords, total=False):
    """The same of a state, and from where on all tokenizations are summed; see `CharLM.state`."""

    exact_from: int | None


def effort_of(preset: str | Effort | None, tolerance: float | None = None) -> Effort:
    """Return the effort that a preset names, that reaches a tolerance, or that is given.

    Raises:
        SettingError: an unknown name, a value that is neither a name nor an `Effort`, a preset
            together with a tolerance, or a tolerance that is not above 0.

    >>> effort_of("exact").exact, effort_of(None, tolerance=0.003).tolerance
    (True, 0.003)
    """
    if tolerance is not None:
        if preset is not None:
            raise SettingError(
                f"preset={shown(preset)} and tolerance={shown(tolerance)}: give one of them."
            )
        return Effort(PRESETS["fast"].width, tolerance=tolerance)
    if isinstance(preset, Effort):
        return preset
    if isinstance(preset, str) and preset in PRESETS:
        return PRESETS[preset]
    raise SettingError(
        f"unknown preset {shown(preset)}: choose one of {', '.join(PRESETS)}, or pass an Effort."
    )


@dataclass(frozen=True)
class Limits:
    """Bounds on the work beside the canonical tokens. `Score.limited` says if one was met.

    Attributes:
        memory: bytes that the evaluated contexts of one text may hold. A thirty-second part of it
            is the most that the log-probabilities of one model call may hold.
        contexts: the most contexts that are kept at a time.
        calls: the most rounds for each portion of a text: a round is one model call, or several
            where memory bounds a call.

    Raises:
        SettingError: a bound that is not a whole number above 0.

    >>> Limits(calls=16).contexts
    100000
    """

    memory: int = 2**30
    contexts: int = 100_000
    calls: int = 1000

    def __post_init__(self) -> None:
        for name in ("memory", "contexts", "calls"):
            value = getattr(self, name)
            if not (_is(value, Integral) and value >= 1):
                raise SettingError(
                    f"{name} is {shown(value)}: give a whole number above 0, or leave it out."
                )

    def in_call(self, width: int) -> int:
        """The most contexts of one call, for a vocabulary of so many tokens: float32 each."""
        return max(1, self.memory // (32 * 4 * width))
