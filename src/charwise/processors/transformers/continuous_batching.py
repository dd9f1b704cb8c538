"""Token healing in transformers' continuous batching.

    manager = model.init_continuous_batching(generation_config=…)
    healing = ContinuousHealing(index)
    healing.attach(manager)
    manager.start()
    kept, forced = healing.cut("raise ValueErr")
    healing.add_request(manager, kept, forced, max_new_tokens=20)

Requests come and go there, and a batch shows a processor the last token of each at most. What is
forced is therefore an argument of the request, and its tokens are read off the engine's own record
of it while the engine prepares a batch. Not handled: asynchronous batching, which prepares a batch
before the tokens of the last one are known, and CUDA graphs and compilation, which replay a
decision instead of asking for it. `attach` refuses them.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
)

from charwise.errors import EngineError
from charwise.healing import Cut, Rule
from charwise.processors.decision import Decisions, cut_prompt
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.vocabulary import Prompt


class ContinuousHealing(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]
    """Lets each request of one manager write only what reproduces its forced text first.

    Args:
        index: of the model's vocabulary.

    One object serves one manager. Between the preparation of a batch and its logits it remembers
    which row belongs to which text; nothing else is kept.

    >>> from charwise import Vocabulary
    >>> healing = ContinuousHealing(SortedVocabulary(Vocabulary.from_bytes([b"->", b" N", b"o"])))
    >>> healing.cut("-> N", rule=1)
    Cut(kept=[0], forced=b' N')
    """

    supported_kwargs: ClassVar[dict[str, type]] = {"forced": bytes}
    ignored_kwargs = ()

    def __init__(self, index: SortedVocabulary) -> None:
        self.decisions = Decisions(index)
        self._left: list[bytes | None] = []

    def cut(self, prompt: Prompt, rule: Rule = "auto") -> Cut:
        """The ids to send and the bytes to force, as `decision.cut_prompt`."""
        return cut_prompt(prompt, self.decisions.index, rule)

    def attach(self, manager: Any) -> None:
        """Put the mask before all other processors of a manager that has not started.

        Raises:
            EngineError: a manager that runs already, or with settings that cannot be served.
        """
        config = manager.continuous_batching_config
        refused = {
            "use_async_batching": config.use_async_batching,
            "use_cuda_graph": any(config.cuda_graph_booleans),
            "varlen_compile_config": config.varlen_compile_config is not None,
            "decode_compile_config": config.decode_compile_config is not None,
        }
        for setting, on in refused.items():
            if on:
                raise EngineError(
                    f"{setting} is on: its batches do not wait for the tokens that healing must "
                    "see. Turn it off in the ContinuousBatchingConfig."
                )
        if getattr(manager, "batch_processor", None) is not None:
            raise EngineError("the manager has started already: attach the healing before start().")
        processors = manager.logit_processor
        processors.logits_processor.insert(0, self)
        processors.tensors_required += 1
        processors.supported_keys.update(self.supported_kwargs)
        processors.do_processing = True

    def add_request(self, manager: Any, kept: list[int], forced: bytes, **kwargs: Any) -> Any:
        """`manager.add_request` for a prompt that was cut; further arguments are passed along.

        Raises:
            HealingError: a forced text that the vocabulary cannot spell.
        """
        self.decisions.check(forced)
        return manager.add_request(kept, forced=forced, **kwargs)

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        """Nothing: what a row needs is no number."""
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> torch.Tensor:
        """Called with the requests of the next batch, in the order of the rows of its logits."""
        self._left = [self._left_of(request.state) for request in requests_with_new_token]
        return torch.zeros(len(self._left), dtype=torch.int32)

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        """Masks scores `[rows, width]` in place; rows beyond the requests are padding."""
        for row, left in enumerate(self._left):
            if left:
                self.decisions.mask_(scores[row], left, ())
        return scores

    def _left_of(self, state: Any) -> bytes | None:
        forced: bytes = state.logit_processor_kwargs.get("forced", b"")
        known = len(state.generated_tokens)
        if known >= len(forced):
            return b""
        if state.position_offset > len(state.initial_tokens) + known:
            raise EngineError(
                f"request {state.request_id} has more tokens than its record shows: batches are "
                "prepared too early. Set use_async_batching=False."
            )
        # A request that was pushed out starts again with its own tokens as part of the prompt.
        prompt_length = state._true_initial_tokens or len(state.initial_tokens)
        return self.decisions.left(
            forced, state.initial_tokens[prompt_length:] + state.generated_tokens
        )
