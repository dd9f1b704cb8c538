"""The settings of an operator, by environment variables.

CHARWISE_HEAL         default: every request that can be healed is, unless it says "off";
                      request: only requests that ask for it; off: none
CHARWISE_MOST_FORCED  most bytes that one prompt may force
CHARWISE_MODELS       which models are healed: names with commas between, * and ? as in file names
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from charwise.api.settings import CheckedSettings


def _names(given: object) -> object:
    if isinstance(given, str):
        return tuple(name.strip() for name in given.split(",") if name.strip())
    return given


class Settings(CheckedSettings):
    """The settings of one process; each is called as its variable.

    >>> Settings(models=("qwen*", "tiny")).heals("qwen-coder"), Settings(models=()).heals("x")
    (True, True)
    """

    model_config = ConfigDict(alias_generator=lambda name: f"CHARWISE_{name.upper()}")

    heal: Literal["default", "request", "off"] = "default"
    most_forced: Annotated[int, Field(ge=1, strict=False)] | None = None
    models: Annotated[tuple[str, ...], BeforeValidator(_names)] = ()

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Return the settings of an environment; an empty variable is none.

        Raises:
            SettingError: which variable is wrong, and what it may be.

        >>> Settings.read({"CHARWISE_HEAL": "request", "CHARWISE_MODELS": "tiny, qwen*"})
        Settings(heal='request', most_forced=None, models=('tiny', 'qwen*'))
        """
        names = [str(field.alias) for field in cls.model_fields.values()]
        given: dict[str, Any] = {name: environment[name] for name in names if environment.get(name)}
        return cls(**given)

    def heals(self, model: str) -> bool:
        """Return whether requests to the model of this name are healed."""
        return not self.models or any(fnmatchcase(model, each) for each in self.models)
