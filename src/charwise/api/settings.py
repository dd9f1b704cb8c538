"""Settings as pydantic models whose mistakes are errors of ours."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from charwise.errors import SettingError, shown


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
            raise SettingError(complaint(error)) from None


def complaint(error: ValidationError) -> str:
    """Return the first mistake of some settings: its name, its value, and what is wanted."""
    first = error.errors(include_url=False)[0]
    name = ".".join(str(part) for part in first["loc"][:1])
    why = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"{name} is {shown(first['input'])}: it {why}."
