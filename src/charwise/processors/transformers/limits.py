"""When a row of `generate` has ended, and which of its bytes are new: one answer for both uses.

Tokens count from where the prompt is reproduced, bytes and stop strings from its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import StoppingCriteria

from charwise.errors import HealingError
from charwise.tokens.stops import Stops
from charwise.tokens.vocabulary import Vocabulary


@dataclass
class Limits:
    """When a row has ended, and which of its bytes are new: the same answer for both uses."""

    vocabulary: Vocabulary
    forced: list[bytes]
    begun: list[list[int]]  # tokens of each row that are in the prompt ids already, and count
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

    def all_ended(self) -> bool:
        """Return whether all texts are long enough, or fill the window."""
        if self.window is not None and self.prompt_length >= self.window:
            return True
        return all(self.ended([], prompt) for prompt in range(len(self.forced)))

    def ended(self, ids: Sequence[int], prompt: int) -> bool:
        """Whether the tokens generated for a prompt are enough."""
        ids = [*self.begun[prompt], *ids]
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
        ids = [*self.begun[prompt], *ids]
        forced = self.forced[prompt]
        spent = self.spent(ids, forced)
        if spent is not None and self.max_new_tokens is not None:
            ids = ids[: spent + self.max_new_tokens]
        text = self.vocabulary.decode(ids)
        if not (text.startswith(forced) or forced.startswith(text)):
            raise HealingError(
                f"a returned sequence starts with {text[: len(forced)]!r} instead of {forced!r}: "
                "it was not masked, or there are fewer ways to go on than beams to return. "
                "Lower num_return_sequences."
            )
        new = text[len(forced) :]
        match = self.stops.first(new)
        return new[: None if match is None else match[0]][: self.max_new_bytes]


class Stop(StoppingCriteria):  # type: ignore[misc]
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
