"""What a request says of healing itself, in `vllm_xargs`, and what the operator lets it."""

from __future__ import annotations

from typing import Any

from charwise.api.request import HEAL, Message
from charwise.errors import SettingError
from charwise.processors.vllm.prompts import FORCED
from charwise.processors.vllm.settings import Settings


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
