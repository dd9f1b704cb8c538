"""The limits of one request, and settings whose mistakes are errors of ours."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from charwise.errors import SettingError, shown

#: Tokens of a completion whose request does not say how many; OpenAI's number.
DEFAULT_TOKENS = 16

#: The most that one request to the completion server may ask for: prompts, completions of each,
#: tokens of a completion, and alternatives to a token.
MOST_PROMPTS, MOST_COMPLETIONS, MOST_TOKENS, MOST_LOGPROBS = 256, 64, 1_000_000, 100


class CheckedSettings(BaseModel):
    """Settings that cannot be changed, of exact types, each checked when they are made."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, populate_by_name=True
    )

    def __init__(self, **given: Any) -> None:
        """Raise `SettingError` for the first setting that is wrong."""
        try:
            super().__init__(**given)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = ".".join(str(part) for part in first["loc"][:1])
            why = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
            raise SettingError(f"{name} is {shown(first['input'])}: it {why}.") from None
