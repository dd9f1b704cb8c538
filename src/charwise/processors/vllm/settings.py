"""What an operator decides, by environment variables.

CHARWISE_HEAL         default: every request that can be healed is, unless it says "off";
                      request: only requests that ask for it; off: none
CHARWISE_MOST_FORCED  most bytes that one prompt may force
CHARWISE_MODELS       which models are healed: names with commas between, * and ? as in file names
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from charwise.errors import SettingError


class Settings(NamedTuple):
    """As read from the environment; `read` checks them.

    >>> Settings(models=("qwen*", "tiny")).heals("qwen-coder"), Settings(models=()).heals("x")
    (True, True)
    """

    heal: str = "default"
    most_forced: int | None = None
    models: tuple[str, ...] = ()

    def heals(self, model: str) -> bool:
        """Whether requests to the model of this name are healed."""
        return not self.models or any(fnmatchcase(model, each) for each in self.models)


def read(environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings of this process.

    Raises:
        SettingError: which variable says what it cannot, and what it may say.

    >>> read({"CHARWISE_HEAL": "request", "CHARWISE_MODELS": "tiny, qwen*"})
    Settings(heal='request', most_forced=None, models=('tiny', 'qwen*'))
    """
    heal = environment.get("CHARWISE_HEAL") or "default"
    if heal not in ("default", "request", "off"):
        raise SettingError(f"CHARWISE_HEAL is {heal!r}: it must be default, request or off.")
    most = environment.get("CHARWISE_MOST_FORCED") or None
    if most is not None and not (most.isascii() and most.isdecimal() and int(most) > 0):
        raise SettingError(
            f"CHARWISE_MOST_FORCED is {most!r}: it must be a number of bytes, 1 or more."
        )
    names = environment.get("CHARWISE_MODELS", "").split(",")
    return Settings(
        heal,
        None if most is None else int(most),
        tuple(name.strip() for name in names if name.strip()),
    )
