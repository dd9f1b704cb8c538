"""The keyword arguments of `generate`: the caller's checked, and those that healing adds.

`generate` reads a setting from an argument, a generation config that is handed over, or the
model's own; so does this. `Limits` says when a row has ended: tokens count from where the prompt is
reproduced, bytes and stop strings from its end.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from charwise.errors import SettingError, VocabularyError, check_count, items
from charwise.tokens.stops import Stops
from charwise.tokens.vocabulary import Vocabulary


@dataclass
class Limits:
    """When a row has ended, and which of its bytes are new: the same answer for both uses."""

    vocabulary: Vocabulary
    forced: list[bytes]
    prompt_length: int
    max_new_tokens: int | None
    max_new_bytes: int | None
    stops: Stops
    window: int | None

    def spent(self, ids: Sequence[int], forced: bytes) -> int | None:
        """How many tokens lie within the forced text, and do not count; None until it is whole."""
        at = 0
        for n, id in enumerate(ids):
            end = at + len(self.vocabulary.tokens[id] or b"")
            if at == len(forced) or end > len(forced):
                return n
            at = end
        return len(ids) if at == len(forced) else None

    def ended(self, ids: Sequence[int], prompt: int) -> bool:
        """Whether the tokens generated for a prompt are enough."""
        forced = self.forced[prompt]
        spent = self.spent(ids, forced)
        if spent is None:
            return False
        if self.max_new_tokens is not None and len(ids) - spent >= self.max_new_tokens:
            return True
        if self.max_new_bytes is None and not self.stops:
            return False
        new = self.vocabulary.decode(ids)[len(forced) :]
        enough = self.max_new_bytes is not None and len(new) >= self.max_new_bytes
        return enough or self.stops.first(new) is not None

    def new_bytes(self, ids: Sequence[int], prompt: int) -> bytes:
        """The bytes that these tokens add to the prompt, within the limits."""
        forced = self.forced[prompt]
        spent = self.spent(ids, forced)
        if spent is not None and self.max_new_tokens is not None:
            ids = ids[: spent + self.max_new_tokens]
        text = self.vocabulary.decode(ids)
        if not (text.startswith(forced) or forced.startswith(text)):
            raise VocabularyError(
                f"a returned sequence starts with {text[: len(forced)]!r} instead of {forced!r}: "
                "it was not masked, or there are fewer ways to go on than beams to return. "
                "Lower num_return_sequences."
            )
        new = text[len(forced) :]
        match = self.stops.first(new)
        return new[: None if match is None else match[0]][: self.max_new_bytes]


class _Stop(StoppingCriteria):  # type: ignore[misc]
    """Ends each row by its limits."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        limits = self.limits
        rows, length = input_ids.shape
        generated = length - limits.prompt_length
        only_tokens = limits.max_new_bytes is None and not limits.stops
        if only_tokens and (limits.max_new_tokens is None or generated < limits.max_new_tokens):
            return torch.zeros(rows, dtype=torch.bool, device=input_ids.device)
        copies = rows // len(limits.forced)
        new = input_ids[:, limits.prompt_length :].tolist()
        ended = [limits.ended(ids, row // copies) for row, ids in enumerate(new)]
        return torch.tensor(ended, device=input_ids.device)


def left_padded(rows: Sequence[list[int]], filler: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and attention mask, both `[rows, longest]` int64, on the host.

    >>> left_padded([[1, 2], [3]], filler=0)
    (tensor([[1, 2],
            [0, 3]]), tensor([[1, 1],
            [0, 1]]))
    """
    length = max(map(len, rows))
    ids = torch.tensor([[filler] * (length - len(row)) + row for row in rows])
    seen = torch.tensor([[0] * (length - len(row)) + [1] * len(row) for row in rows])
    return ids, seen


def check_arguments(model: Any, kwargs: dict[str, Any], max_new_bytes: int | None) -> None:
    """Refuse arguments that make no sense with healing, before any work.

    Raises:
        SettingError: what it is, and what to do.
    """
    if not hasattr(model, "generate") or not hasattr(model, "config"):
        raise SettingError(
            f"{type(model).__name__} is no model of transformers: give a causal language model."
        )
    for name in ("inputs", "input_ids", "attention_mask", "inputs_embeds", "position_ids"):
        if name in kwargs:
            raise SettingError(f"{name} is made from the prompts here: leave it out.")
    if kwargs.get("token_healing"):
        raise SettingError("token_healing=True would heal a second time: leave it out.")
    if max_new_bytes is not None:
        check_count("max_new_bytes", max_new_bytes, 1)
    if getattr(model.config, "is_encoder_decoder", False):
        raise SettingError(
            f"{type(model).__name__} is an encoder-decoder model: it does not continue its prompt, "
            "so there is nothing to heal. Use a causal language model."
        )


class Arguments:
    """The keyword arguments of one call of `generate`.

    Args:
        model: of transformers.
        given: the caller's; those that `generate` must not see are taken out.
    """

    def __init__(self, model: Any, given: dict[str, Any]) -> None:
        self.model, self.given = model, given

    def new_tokens(self, max_new_bytes: int | None) -> int | None:
        """Take out max_new_tokens, or return the default; None if something else sets the end."""
        tokens: int | None = self.given.pop("max_new_tokens", None)
        tokens = self._configured("max_new_tokens") if tokens is None else tokens
        if tokens is not None:
            check_count("max_new_tokens", tokens, 1)
        if tokens is None and max_new_bytes is None and self._max_length() is None:
            return 20  # as many as `generate` writes when nobody says how many
        return tokens

    def settings(
        self, limits: Limits, mask: LogitsProcessor
    ) -> tuple[dict[str, Any], set[int], int]:
        """Return the keyword arguments of `generate`, the end tokens and the id to pad with."""
        settings = dict(self.given)
        processors = list(settings.get("logits_processor") or ())
        warpers = (
            at
            for at, processor in enumerate(processors)
            if type(processor).__name__.endswith("Warper")
        )
        processors.insert(next(warpers, len(processors)), mask)
        settings["logits_processor"] = LogitsProcessorList(processors)
        settings["stopping_criteria"] = StoppingCriteriaList(
            [*(settings.get("stopping_criteria") or ()), _Stop(limits)]
        )
        own = self._own(limits)
        if self.given.get("generation_config") is None:
            settings |= own
        else:  # generate wants either such an object or the arguments
            settings["generation_config"] = copy.deepcopy(self.given["generation_config"])
            settings["generation_config"].update(**{"max_new_tokens": None, **own})
        filler = own["pad_token_id"]
        return settings, set(as_list(own["eos_token_id"])), 0 if filler is None else filler

    def _configured(self, name: str) -> Any:
        """Return the caller's generation config, or else the model's own."""
        configs = (self.given.get("generation_config"), self.model.generation_config)
        values = (getattr(config, name, None) for config in configs)
        return next((value for value in values if value is not None), None)

    def _max_length(self) -> int | None:
        """The caller's bound on prompt and completion together."""
        length: int | None = self.given.get("max_length")
        length = self._configured("max_length") if length is None else length
        if length is not None:
            check_count("max_length", length, 1)
        return length

    def _own(self, limits: Limits) -> dict[str, Any]:
        """Return the settings of `heal_generate` itself: length, end tokens and padding."""
        own: dict[str, Any] = {}
        bounds = [limits.max_new_tokens, limits.max_new_bytes]
        new = min((bound for bound in bounds if bound is not None), default=None)
        lengths = [limits.window]
        if new is not None:
            # A byte takes at most one token, so this never ends a row before its own limit does.
            lengths.append(limits.prompt_length + new + max(map(len, limits.forced)))
        if limits.max_new_tokens is None:
            lengths.append(self._max_length())
        length = min((bound for bound in lengths if bound is not None), default=None)
        if length is not None:
            if getattr(self.model.generation_config, "max_new_tokens", None) is not None:
                own["max_new_tokens"] = length - limits.prompt_length
            else:  # quiet even if the model's own generation config has a max_length
                own["max_length"] = length
        for name, value in (
            ("eos_token_id", list(limits.vocabulary.stop_ids) or None),
            ("pad_token_id", filler_of(limits.vocabulary, self.model)),
        ):
            config = getattr(self.given.get("generation_config"), name, None)
            own[name] = self.given.get(name, value if config is None else config)
        return own


def filler_of(vocabulary: Vocabulary, model: Any) -> int:
    """An id to pad with. The attention mask hides it, so any will do; best one without bytes."""
    known = getattr(model.generation_config, "pad_token_id", None)
    if known is not None:
        return int(known)
    without = (id for id, token in enumerate(vocabulary.tokens) if token is None)
    return next(iter(vocabulary.end_ids), next(without, 0))


def as_list(value: Any) -> list[Any]:
    """None → [], a single value → [value], anything iterable → its list."""
    if value is None:
        return []
    found = items(value)
    listed = [value] if found is None else found
    return [int(item) if hasattr(item, "__index__") else item for item in listed]
