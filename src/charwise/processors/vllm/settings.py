"""Which requests are healed: the settings of the operator, the request, and the limits of vLLM.

CHARWISE_HEAL         default: every request that can be healed is, unless it says "off";
                      request: only requests that ask for it; off: none
CHARWISE_MOST_FORCED  most bytes that one prompt may force
CHARWISE_MODELS       which models are healed: names with commas between, * and ? as in file names

A request says it by `charwise_heal`, as far as the operator lets it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, ConfigDict, Field

from charwise.api import limits as request_limits
from charwise.api.limits import CheckedSettings
from charwise.api.request import HEAL, heal_rule
from charwise.api.writer import Message
from charwise.errors import SettingError
from charwise.processors.healed_prompt import HealedPrompt
from charwise.processors.vllm.structured import extensible

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
    rule = heal_rule(request)
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


class Limits(NamedTuple):
    """The limits of the server behind; it refuses other requests in its own words.

    Attributes:
        window: tokens of prompt and completion together.
        prompts, completions, stops: most in one request; None for no bound.
        grammars: the kinds of structured output that can take a literal.
        clamps: whether a prompt may leave less room than is asked for; older versions refuse it.
        holds_ends: whether a middle can be kept from ending before it may.
    """

    window: int
    prompts: int | None = None
    completions: int | None = None
    stops: int | None = None
    grammars: frozenset[str] = frozenset()
    clamps: bool = False
    holds_ends: bool = False

    @classmethod
    def of(cls, config: Any) -> Limits:
        """Of this vLLM; older versions have fewer bounds."""
        from vllm import envs
        from vllm.renderers.params import TokenizeParams

        return cls(
            config.model_config.max_model_len,
            getattr(envs, "VLLM_MAX_COMPLETION_PROMPTS", None),
            getattr(envs, "VLLM_MAX_N_SEQUENCES", None),
            getattr(envs, "VLLM_MAX_STOP_STRINGS", None),
            extensible(getattr(config, "structured_outputs_config", None)),
            TokenizeParams(max_total_tokens=2, max_output_tokens=1).max_input_tokens == 2,
            not getattr(config, "use_v2_model_runner", False),
        )

    @property
    def of_request(self) -> request_limits.Limits:
        """The limits that every server has."""
        return request_limits.Limits(
            prompts=self.prompts,
            completions=self.completions,
            stops=self.stops,
            tokens=self.window,
        )

    def room(self, healed: HealedPrompt, most: int | None) -> int:
        """How many tokens may follow a prompt, if `most` are asked for; 0 for too few.

        >>> Limits(10, clamps=True).room(HealedPrompt([1] * 5, b"ab", 2), 8), Limits(10).room(
        ...     HealedPrompt([1] * 5, b"ab", 2), 8)
        (3, 0)
        """
        room = self.window - len(healed.kept) - healed.given_back
        if most is None or most <= room:
            return max(room if most is None else most, 0)
        return max(room, 0) if self.clamps else 0


def is_refused(
    request: Message, texts: Sequence[Any], most: int | None, limits: Limits, munch: int
) -> bool:
    """Whether vLLM will refuse a request, as far as that shows without tokenizing it."""
    return (
        limits.of_request.exceeded(len(texts), request.get("n") or 1, request.get("stop"), most)
        is not None
        or bool(request.get("stream_options") and not request.get("stream"))
        or (request.get("min_tokens") or 0) > (most or limits.window)
        or any(len(prompt) > limits.window * munch for prompt in texts)
    )


def sampling(parameters: Any) -> dict[str, Any]:
    """The arguments of `Members.weights`, of `SamplingParams` or of a request's fields.

    >>> sampling({"temperature": 0.5, "top_k": 3, "n": 2})
    {'temperature': 0.5, 'top_k': 3, 'top_p': None, 'min_p': None}
    """
    found: dict[str, Any] = dict.fromkeys(("temperature", "top_k", "top_p", "min_p"))
    for name in found:
        value: Any
        value = parameters.get(name) if isinstance(parameters, dict) else getattr(parameters, name)
        with suppress(TypeError, ValueError, OverflowError):  # vLLM itself refuses what is none
            found[name] = int(value) if name == "top_k" else float(value)
    return {**found, "temperature": 1.0 if found["temperature"] is None else found["temperature"]}
