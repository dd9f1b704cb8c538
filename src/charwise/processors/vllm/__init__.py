"""Token healing in vLLM.

The names load when they are first used: only the processor needs vLLM. vLLM looks for the processor
wherever charwise is installed, and ends if it does not load. So something always loads: in a vLLM
that has not what it takes, a processor that does nothing, and says why.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from charwise.errors import SettingError

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

logger = logging.getLogger(__name__)

__all__ = ["FORCED", "HealingLogitsProcessor", "heal_generate", "served", "why_not"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    except Exception as error:
        if name != "HealingLogitsProcessor":
            raise
        value = _unavailable_processor(error)
    globals()[name] = value
    return value


def _unavailable_processor(error: Exception) -> type:
    """A processor that masks nothing and refuses requests that ask for it.

    Args:
        error: why the real one did not load; logged here, once.

    >>> Processor = _unavailable_processor(ImportError("no such module"))
    >>> Processor(None, None).apply([0.5])
    [0.5]
    """
    why = (
        f"charwise cannot heal in this vLLM ({type(error).__name__}: {error}). Its logits "
        "processor does nothing; requests without charwise arguments are served as ever."
    )
    logger.warning(why)

    class HealingLogitsProcessor(*_bases()):  # type: ignore[misc]
        """Takes the place of `charwise.processors.vllm.HealingLogitsProcessor`."""

        def __init__(self, *_: Any) -> None:
            pass

        @classmethod
        def validate_params(cls, sampling_params: Any) -> None:
            """Refuse requests that ask for healing, which would not be healed."""
            arguments = getattr(sampling_params, "extra_args", None) or {}
            if any(str(name).startswith("charwise_") for name in arguments):
                raise SettingError(why)

        def is_argmax_invariant(self) -> bool:
            """True: nothing changes."""
            return True

        def update_state(self, batch_update: Any) -> None:
            """V1: nothing to note."""

        def add_request(self, req_idx: int, sampling_params: Any) -> bool:
            """V2: no request is masked."""
            return False

        def apply_staged_writes(self) -> None:
            """V2: nothing was noted."""

        def apply(self, logits: Any, ctx: Any = None) -> Any:
            """The logits as they are."""
            return logits

    return HealingLogitsProcessor


def _bases() -> tuple[type, ...]:
    """vLLM's base classes, of both model runners; some versions have one of them."""
    found: list[type] = []
    for path in ("vllm.v1.sample.logits_processor", "vllm.v1.worker.gpu.sample.logits_processor"):
        try:
            found.append(import_module(path).LogitsProcessor)
        except Exception as error:  # an engine without it does not ask for it
            logger.debug("no %s: %s", path, error)
    return tuple(found)
