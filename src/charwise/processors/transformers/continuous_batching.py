"""Token healing in transformers' continuous batching.

    manager = model.init_continuous_batching(generation_config=…)
    healing = ContinuousHealing(index)
    healing.attach(manager)
    manager.start()
    request = healing.heal_request(manager, "raise ValueErr", max_new_tokens=20)
    text = request.reader.text(manager.get_result().generated_tokens)

Requests come and go there, and a batch shows a processor the last token of each at most. What is
forced is therefore an argument of the request, and its tokens are read off the engine's own record
of it while the engine prepares a batch. Not handled: asynchronous batching, which prepares a batch
before the tokens of the last one are known, and CUDA graphs and compilation, which replay a
decision instead of asking for it. `attach` refuses them.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
)

from charwise.errors import ModelError, check_count
from charwise.healing import Rule
from charwise.processors.decision import Decisions
from charwise.processors.healed_prompt import heal_prompt
from charwise.processors.new_text import Bounds, Reader
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompt_parts import Prompt


class HealedRequest(NamedTuple):
    """A request that is under way: its id, and the reader of its answer.

    `reader.text(result.generated_tokens)` is what a result adds to the prompt.

    >>> from charwise.processors.healed_prompt import HealedPrompt
    >>> from charwise import Vocabulary
    >>> reader = Reader(Vocabulary.from_bytes([b"a", b"ab"]), HealedPrompt([], b"a", 1))
    >>> HealedRequest("req_0", reader).reader.text([1])
    'b'
    """

    id: str
    reader: Reader


class ContinuousHealing(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]
    """Lets each request of one manager first write its forced text only.

    Args:
        index: of the model's vocabulary.

    One object serves one manager. Between the preparation of a batch and its logits it remembers
    which row belongs to which text; nothing else is kept.

    >>> from charwise import Vocabulary
    >>> healing = ContinuousHealing(SortedVocabulary(Vocabulary.from_bytes([b"->", b" N", b"o"])))
    >>> healing.decisions.left(b" No", [1])
    b'o'
    """

    supported_kwargs: ClassVar[dict[str, type]] = {"forced": bytes}
    ignored_kwargs = ()

    def __init__(self, index: SortedVocabulary) -> None:
        self.decisions = Decisions(index)
        self._left: list[bytes | None] = []

    def attach(self, manager: Any) -> None:
        """Put the mask before all other processors of a manager that has not started.

        Raises:
            ModelError: a manager that runs already, or with settings that cannot be served.
        """
        if not hasattr(manager, "continuous_batching_config"):
            raise ModelError(
                f"{type(manager).__name__} is no manager: model.init_continuous_batching makes one."
            )
        config = manager.continuous_batching_config
        refused = {
            "use_async_batching": config.use_async_batching,
            "use_cuda_graph": any(config.cuda_graph_booleans),
            "varlen_compile_config": config.varlen_compile_config is not None,
            "decode_compile_config": config.decode_compile_config is not None,
        }
        for setting, on in refused.items():
            if on:
                raise ModelError(
                    f"{setting} is on: its batches do not wait for the tokens that healing must "
                    "see. Turn it off in the ContinuousBatchingConfig."
                )
        if getattr(manager, "batch_processor", None) is not None:
            raise ModelError("the manager has started already: attach the healing before start().")
        processors = manager.logit_processor
        processors.logits_processor.insert(0, self)
        processors.tensors_required += 1
        processors.supported_keys.update(self.supported_kwargs)
        processors.do_processing = True

    def heal_request(
        self,
        manager: Any,
        prompt: Prompt,
        *,
        rule: Rule = "auto",
        max_new_tokens: int | None = None,
        **kwargs: Any,
    ) -> HealedRequest:
        """`manager.add_request` for a prompt whose end is healed.

        Args:
            manager: the one that this object was attached to.
            prompt: text, bytes, or a list of texts and token ids, as for `healing.cut`.
            rule: where to cut.
            max_new_tokens: from where the prompt is reproduced; by default the manager's. The
                engine is asked for as many more as the forced text has bytes.
            **kwargs: passed along.

        Raises:
            VocabularyError, SettingError: as `healing.cut`.
        """
        index = self.decisions.index
        healed = heal_prompt(prompt, index, rule)
        kept, forced = healed.kept, healed.forced
        if max_new_tokens is None:
            max_new_tokens = manager.generation_config.max_new_tokens
        if max_new_tokens is not None:
            check_count("max_new_tokens", max_new_tokens, 1)
        asked = None if max_new_tokens is None else max_new_tokens + healed.most_again
        name = manager.add_request(kept, forced=forced, max_new_tokens=asked, **kwargs)
        return HealedRequest(
            name, Reader(index.vocabulary, healed, Bounds(max_tokens=max_new_tokens))
        )

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        """Do nothing: a row needs no numbers."""
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
            raise ModelError(
                f"request {state.request_id} has more tokens than its record shows: batches are "
                "prepared too early. Set use_async_batching=False."
            )
        # A request that was pushed out starts again with its own tokens as part of the prompt.
        prompt_length = state._true_initial_tokens or len(state.initial_tokens)
        return self.decisions.left(
            forced, state.initial_tokens[prompt_length:] + state.generated_tokens
        )
