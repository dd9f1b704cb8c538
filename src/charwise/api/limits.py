"""The limits of one request, and settings whose mistakes are errors of ours."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from charwise.errors import SettingError, shown

#: Bytes of a body that is read to heal its prompts; a longer one goes through as it came.
HEALED_BODY = 2**23

#: Tokens of a completion whose request does not say how many; OpenAI's number.
DEFAULT_TOKENS = 16


class Limits(NamedTuple):
    """The most of everything that one request may ask for; None for no bound.

    Attributes:
        prompts: prompts of one request.
        completions: completions of one prompt.
        together: completions of all prompts of a request.
        stops: stop strings.
        tokens: tokens of one completion.
    """

    prompts: int | None = None
    completions: int | None = None
    together: int | None = None
    stops: int | None = None
    tokens: int | None = None

    def exceeded(
        self, prompts: int, completions: int, stop: str | Sized | None, tokens: int | None
    ) -> str | None:
        """Return the limit that a request exceeds, in words; None if it exceeds none.

        >>> Limits(prompts=2).exceeded(3, 1, None, None)
        'more than 2 prompts'
        """
        stops = 0 if isinstance(stop, str) else len(stop or ())
        numbers = {
            "prompts": (prompts, self.prompts),
            "completions of a prompt": (completions, self.completions),
            "completions in one request": (prompts * completions, self.together),
            "stop strings": (stops, self.stops),
            "tokens": (tokens or 0, self.tokens),
        }
        for what, (number, most) in numbers.items():
            if most is not None and number > most:
                return f"more than {most} {what}"
        return None


#: Of the completion server.
SERVER = Limits(prompts=256, completions=64, tokens=1_000_000)


class CheckedSettings(BaseModel):
    """Settings that cannot be changed, of exact types, each checked when they are made.

    >>> class Limits(CheckedSettings):
    ...     seconds: float = 1.0
    >>> Limits(seconds="many")
    Traceback (most recent call last):
    charwise.errors.SettingError: seconds is 'many': it should be a valid number.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, populate_by_name=True
    )

    def __init__(self, **given: Any) -> None:
        """Raise `SettingError` for the first setting that is wrong."""
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise SettingError(_complaint(error)) from None


def _complaint(error: ValidationError) -> str:
    """Return the first mistake of some settings: its name, its value, and what is wanted."""
    first = error.errors(include_url=False)[0]
    name = ".".join(str(part) for part in first["loc"][:1])
    why = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"{name} is {shown(first['input'])}: it {why}."
