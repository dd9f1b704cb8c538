"""Token healing in vLLM: a logits processor for both of its model runners.

    vllm serve … --logits-processors charwise.processors.vllm:HealingLogitsProcessor

An installed charwise is found without the flag too (entry points `vllm.logits_processors`). A
request is healed if it has the argument `charwise_forced`: the bytes to reproduce, in hexadecimal,
in `SamplingParams.extra_args` or over HTTP in `vllm_xargs`. `heal_generate` and the middleware
(`charwise.processors.vllm.middleware`) cut the prompts and add it.

The V1 model runner shows a processor each request's live list of output ids; there the shared
decision core masks row by row. The V2 runner keeps ids on the device: `device_table` answers there.
Not handled: beam search, which vLLM runs as many requests that do not know of each other.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor as V1LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from charwise.errors import CharwiseError, SettingError, shown
from charwise.processors.decision import Decisions
from charwise.processors.healed_prompt import hold_end_of_
from charwise.processors.vllm.prompts import (
    ENDING,
    Served,
    most_forced,
    served,
)
from charwise.processors.vllm.settings import FORCED

try:
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as V2LogitsProcessor
except ImportError:  # up to vLLM 0.30 the V2 runner calls no processors but its own
    V2LogitsProcessor = None

if TYPE_CHECKING:
    from charwise.processors.vllm.device_table import ForcedSlots

logger = logging.getLogger(__name__)

_BASES = (
    (V1LogitsProcessor,) if V2LogitsProcessor is None else (V1LogitsProcessor, V2LogitsProcessor)
)

#: How the names of all arguments that are meant for charwise begin.
_PREFIX = "charwise_"


class _HealingArguments(NamedTuple):
    """The settings in a request's arguments.

    >>> bool(_HealingArguments()), bool(_HealingArguments(b"rang"))
    (False, True)
    """

    forced: bytes = b""
    ending: bytes = b""

    def __bool__(self) -> bool:
        return bool(self.forced or self.ending)


class HealingLogitsProcessor(*_BASES):  # type: ignore[misc]
    """Lets a request first write its `charwise_forced` bytes only.

    In the V1 runner a request with `charwise_ending` may end only where its text ends so.

    vLLM makes one for each worker: with (vllm_config, device, is_pin_memory) in the V1 model
    runner, with (vllm_config, req_states) in V2. Requests without the argument cost nothing but
    one look at their arguments; a batch without any costs one comparison.

    An exception here would end an engine that serves others too, so what goes wrong is logged, and
    that request, or every one, is left alone.
    """

    def __init__(self, vllm_config: Any, *runner: Any) -> None:
        # V1: row → its arguments, and the generated ids
        self._rows: dict[int, tuple[_HealingArguments, list[int]]] = {}
        self._slots: ForcedSlots | None = None  # V2
        self._decisions: Decisions | None = None  # V1
        self._most = 0  # V1: bytes that a request may force
        try:
            index = served(vllm_config.model_config).index
            if len(runner) == 1:
                from charwise.processors.vllm.device_table import ForcedSlots

                speculation = vllm_config.speculative_config
                drafts = speculation.num_speculative_tokens if speculation else 0
                self._slots = ForcedSlots(index, runner[0], drafts)
            else:
                self._decisions = Decisions(index)
                self._most = most_forced(index.vocabulary)
        except Exception as error:  # vLLM serves this model all the same; validate_params refuses
            logger.warning("charwise cannot heal here: %s: %s", type(error).__name__, error)

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse a request that cannot be healed as it asks; vLLM answers it with HTTP 400.

        Raises:
            SettingError: an unknown `charwise_…` argument, bytes that are not hexadecimal, a
                constraint that forbids the forced text, a server that cannot heal.
            HealingError: a forced text that the vocabulary cannot spell, or a very long one.
        """
        wanted = _arguments_of(sampling_params)
        if not wanted:
            return
        for name in ("structured_outputs", "allowed_token_ids"):
            if getattr(sampling_params, name, None):
                one = FORCED if wanted.forced else ENDING
                raise SettingError(f"{name} may forbid the text that {one} forces: use one.")
        config = _config_of_caller()
        if config is not None:
            reason = why_not(config)
            if reason:
                raise SettingError(reason)
            if wanted.ending and getattr(config, "use_v2_model_runner", False):
                raise SettingError(
                    f"{ENDING} is not taken here: vLLM's V2 model runner keeps what is written on "
                    "its device. Heal the prefix alone."
                )
            model = _served(config.model_config)
            for text in wanted:
                model.check_length(text)
                Decisions(model.index).check(text)

    def is_argmax_invariant(self) -> bool:
        """False: the mask changes which token is the most probable."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """V1: requests came, went or moved to other rows."""
        if self._decisions is not None:
            process_dict_updates(self._rows, batch_update, self._forced_row)

    def _forced_row(
        self, params: Any, _: Any, output_ids: list[int]
    ) -> tuple[_HealingArguments, list[int]] | None:
        wanted = _admitted(params)
        most = max(map(len, wanted))
        if most > self._most:  # refused on admission, where the server could be found
            logger.error("%d bytes are not forced: at most %d may be.", most, self._most)
            return None
        return (wanted, output_ids) if wanted else None

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """V2: a request takes a slot; True if its logits will be masked."""
        return self._slots is not None and self._slots.set(
            req_idx, _admitted(sampling_params).forced
        )

    def apply_staged_writes(self) -> None:
        """V2: send the notes of `add_request` to the device."""
        if self._slots is not None:
            self._slots.flush()

    def apply(self, logits: torch.Tensor, ctx: Any = None) -> torch.Tensor:
        """Set the disallowed tokens to −inf, in place: `[rows, width]` float32."""
        if self._slots is not None:
            self._slots.mask_(logits, ctx)
            return logits
        for row, (wanted, ids) in list(self._rows.items()):
            if not self._masks(logits[row], wanted, ids):
                del self._rows[row]
        return logits

    def _masks(self, row: torch.Tensor, wanted: _HealingArguments, ids: list[int]) -> bool:
        """Mask a row; False if all of the text is reproduced, or never will be."""
        assert self._decisions is not None
        try:
            if self._decisions.mask_(row, wanted.forced, ids):
                return True
            hold_end_of_(row, wanted.forced, wanted.ending, ids, self._decisions.index)
            return bool(wanted.ending)
        except CharwiseError as error:
            logger.error("a request is not healed: %s", error)
            return False


def _admitted(sampling_params: Any) -> _HealingArguments:
    """Return the settings of a request that vLLM admitted; none if it may not be healed."""
    try:
        return _arguments_of(sampling_params)
    except SettingError as error:
        logger.error("a request is not healed: %s", error)
        return _HealingArguments()


def _served(model_config: Any) -> Served:
    """The engine's tokenizer and settings, or a refusal of this request with the reason."""
    try:
        return served(model_config)
    except CharwiseError:
        raise
    except Exception as error:
        raise SettingError(f"this vLLM cannot heal: {type(error).__name__}: {error}.") from error


def _arguments_of(sampling_params: Any) -> _HealingArguments:
    """Return the settings of a request; none if it is not to be healed.

    Raises:
        SettingError: for an unknown argument of ours, or bytes that are not hexadecimal.
    """
    arguments = sampling_params.extra_args
    if not arguments:
        return _HealingArguments()
    for name in arguments:
        if name.startswith(_PREFIX) and name not in (FORCED, ENDING):
            raise SettingError(
                f"unknown argument {shown(name)}: the logits processor knows {FORCED!r} and "
                f"{ENDING!r}, bytes to begin and to end with, in hexadecimal. charwise_heal needs "
                "the middleware in front of it: start vLLM with --middleware "
                "charwise.processors.vllm.middleware.HealingMiddleware."
            )
    return _HealingArguments(_bytes_of(arguments, FORCED), _bytes_of(arguments, ENDING))


def _bytes_of(arguments: Mapping[str, Any], name: str) -> bytes:
    value = arguments.get(name, b"")
    if isinstance(value, bytes):
        return value
    try:
        return bytes.fromhex(value)
    except (TypeError, ValueError):
        raise SettingError(
            f"{name} is {shown(value)}: it must be the bytes to force, in hexadecimal."
        ) from None


def why_not(vllm_config: Any) -> str | None:
    """Why this engine would not call the logits processor as it must; None if it does.

    The V1 model runner leaves out processors that come from entry points when it speculates, and
    with asynchronous scheduling shows them placeholders instead of the last token.
    """
    if getattr(vllm_config, "use_v2_model_runner", False):
        if V2LogitsProcessor is None:
            return (
                "this vLLM cannot heal: its V2 model runner calls no logits processors but its "
                "own. Serve with VLLM_USE_V2_MODEL_RUNNER=0, or use vLLM 0.31 or newer."
            )
        return None
    if vllm_config.speculative_config is not None:
        return (
            "this vLLM cannot heal: its V1 model runner does not call logits processors when it "
            "speculates. Serve without speculative decoding, or with VLLM_USE_V2_MODEL_RUNNER=1."
        )
    if vllm_config.scheduler_config.async_scheduling and not (
        vllm_config.model_config.logits_processors
    ):
        return (
            "this vLLM cannot heal: with asynchronous scheduling its V1 model runner shows the "
            "generated tokens only to processors that are named. Start it with "
            "--logits-processors charwise.processors.vllm:HealingLogitsProcessor."
        )
    return None


def _config_of_caller() -> Any:
    """The VllmConfig of the engine that is admitting a request; None if it cannot be found.

    vLLM hands `validate_params` the sampling parameters alone, and may do so in a process where
    no instance of the class exists (the engine is in another), or will (V1 never makes one when
    it speculates): there is nowhere that the class could have been told. But it calls it from a
    method of its InputProcessor, which has the configuration, so the frames of the call are
    looked through. Where that changes, requests are admitted unchecked, and
    tests_vllm/test_offline.py fails.
    """
    frame = sys._getframe(1)
    while frame is not None:
        config = getattr(frame.f_locals.get("self"), "vllm_config", None)
        if config is not None:
            return config
        frame = frame.f_back  # type: ignore[assignment]
    return None
