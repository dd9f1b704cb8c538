"""What the server accepts: requests beyond it go through as they came, and vLLM refuses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from charwise.api import limits as request_limits
from charwise.api.request import Message
from charwise.processors.new_text import HealedPrompt
from charwise.processors.vllm.structured import extensible


class Limits(NamedTuple):
    """What the server behind accepts; it refuses the rest itself, in its own words.

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
