"""The logits processor of a vLLM in which charwise cannot heal: it does nothing, and says why.

vLLM loads the processors of all installed packages, and ends if one does not load. Nobody may
have asked for healing there, so this takes the place of the one that failed.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

from charwise.errors import SettingError

logger = logging.getLogger(__name__)

#: Where vLLM's base classes are, of both model runners; some versions have one of them.
_BASES = ("vllm.v1.sample.logits_processor", "vllm.v1.worker.gpu.sample.logits_processor")


def unavailable_processor(error: Exception) -> type:
    """A processor that masks nothing and refuses requests that ask for it.

    Args:
        error: why the real one did not load; logged here, once.

    >>> Processor = unavailable_processor(ImportError("no such module"))
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
    found: list[type] = []
    for path in _BASES:
        try:
            found.append(import_module(path).LogitsProcessor)
        except Exception as error:  # an engine without it does not ask for it
            logger.debug("no %s: %s", path, error)
    return tuple(found)
