"""How much to spend, by name."""

from __future__ import annotations

from charwise.errors import SettingError
from charwise.known_text.effort import Effort

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


def effort(preset: str | Effort) -> Effort:
    """An `Effort` by its name, or as it is.

    Raises:
        SettingError: for an unknown name, θ outside [0, 1], γ outside (0, 1], a negative
            lookahead, less than one round, or a negative `first`.

    >>> effort("exact").theta
    0.0
    """
    if isinstance(preset, str):
        if preset not in PRESETS:
            raise SettingError(f"unknown preset {preset!r}: choose one of {', '.join(PRESETS)}.")
        return PRESETS[preset]
    if not 0 <= preset.theta <= 1:
        raise SettingError(f"theta is {preset.theta}: it is a share of probability, in [0, 1].")
    if not 0 < preset.gamma <= 1:
        raise SettingError(f"gamma is {preset.gamma}: it must lie in (0, 1].")
    if preset.lookahead < 0:
        raise SettingError(f"lookahead is {preset.lookahead}: it must be 0 tokens or more.")
    if not preset.first >= 0:
        raise SettingError(f"first is {preset.first}: it is a share of probability, 0 or more.")
    if preset.rounds < 1:
        raise SettingError(f"rounds is {preset.rounds}: at least one is needed.")
    return preset
