"""What an operator says of healing, by environment variables, and what a request says.

CHARWISE_HEAL         default: every request that can be healed is, unless it says "off";
                      request: only requests that ask for it; off: none
CHARWISE_MOST_FORCED  most bytes that one prompt may force
CHARWISE_MODELS       which models are healed: names with commas between, * and ? as in file names

A request says it in `vllm_xargs`, as far as the operator lets it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from charwise.api.request import HEAL, Message
from charwise.api.settings import CheckedSettings
from charwise.errors import SettingError

#: Name of the argument that holds the bytes a completion must start with, in hexadecimal.
FORCED = "charwise_forced"


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


def rule_of(request: Message) -> Any:
    """Where a request says to cut; None if it does not say: null is as if it were not there.

    >>> rule_of({"vllm_xargs": {"charwise_heal": "word"}}), rule_of({"vllm_xargs": None})
    ('word', None)
    """
    return (request.get("vllm_xargs") or {}).get(HEAL)


def whether(request: Message, settings: Settings, model: str) -> str | None:
    """Why a request is not to be healed at all, in one word; None if it may be.

    Args:
        request: of any endpoint.
        settings: of the server.
        model: the name of the model that answers.

    Raises:
        SettingError: it asks for what this server does not do.
    """
    arguments = request.get("vllm_xargs") or {}
    rule = rule_of(request)
    if rule == "off":
        return "asked"
    if FORCED in arguments:
        if rule is not None:
            raise SettingError(f"this request brings {FORCED} of its own: leave {HEAL} out.")
        return FORCED
    if settings.heal == "off" or not settings.heals(model):
        if rule is not None:
            where = "in this server" if settings.heal == "off" else f"for the model {model!r}"
            raise SettingError(f"healing is switched off {where}: leave {HEAL} out.")
        return "setting"
    return "not-asked" if rule is None and settings.heal == "request" else None


def without_heal(request: Message) -> Message:
    """The request without our argument, which vLLM does not know.

    >>> without_heal({"vllm_xargs": {"charwise_heal": "off", "other": 1}})
    {'vllm_xargs': {'other': 1}}
    """
    arguments = request.get("vllm_xargs")
    if not arguments or HEAL not in arguments:
        return dict(request)
    rest = {name: value for name, value in arguments.items() if name != HEAL}
    return {**request, "vllm_xargs": rest}
