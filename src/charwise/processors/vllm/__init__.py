"""Token healing in vLLM.

The names load when they are first used: only the processor needs vLLM. vLLM looks for the processor
wherever charwise is installed, and ends if it does not load. So something always loads: in a vLLM
that has not what it takes, a processor that does nothing (`unavailable`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from charwise.processors.vllm.logits_processor import HealingLogitsProcessor, why_not
    from charwise.processors.vllm.prompts import heal_generate, served
    from charwise.processors.vllm.settings import FORCED

_HOME = {
    "FORCED": "settings",
    "HealingLogitsProcessor": "logits_processor",
    "heal_generate": "prompts",
    "served": "prompts",
    "why_not": "logits_processor",
}

__all__ = ["FORCED", "HealingLogitsProcessor", "heal_generate", "served", "why_not"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    except Exception as error:
        if name != "HealingLogitsProcessor":
            raise
        value = import_module(f"{__name__}.unavailable").unavailable_processor(error)
    globals()[name] = value
    return value
