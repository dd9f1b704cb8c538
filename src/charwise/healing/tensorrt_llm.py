"""A logits processor of TensorRT-LLM, for an `LLM` without guided decoding.

It pickles the processor into its worker, so this one holds the *name* of the tokenizer; the worker
loads it once. The overlap scheduler calls processors before the last token is known: make the `LLM`
with `disable_overlap_scheduler=True`, and without speculation.
"""

import logging
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import torch

from charwise.errors import CharwiseError
from charwise.healing.mask import Mask
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.vocabulary import Vocabulary

logger = logging.getLogger(__name__)


@lru_cache(maxsize=8)
def _mask_of(tokenizer: str) -> Mask:
    """The mask of a tokenizer by its folder or name; loaded once in each process."""
    from transformers import AutoTokenizer

    vocabulary = Vocabulary.from_transformers(AutoTokenizer.from_pretrained(tokenizer))
    return Mask(SortedVocabulary(vocabulary))


class HealingLogitsProcessor:
    """TensorRT-LLM's `LogitsProcessor`: one request may write only its forced text first.

    The tokenizer is the folder or name of the model's fast one.
    """

    def __init__(self, tokenizer: str, forced: bytes, prompt_length: int) -> None:
        _mask_of(tokenizer).check(forced)
        self.tokenizer, self.forced, self.prompt_length = tokenizer, forced, prompt_length

    def __call__(
        self,
        req_id: int,
        logits: torch.Tensor,
        token_ids: list[list[int]],
        stream_ptr: int | None,
        client_id: int | None,
    ) -> None:
        """Masks logits `[beams, 1, width]` in place; `token_ids` has prompt and output of each."""
        generated = [ids[self.prompt_length :] for ids in token_ids[: len(logits)]]
        if all(len(ids) >= len(self.forced) for ids in generated):
            return
        stream: Any = nullcontext()
        if stream_ptr is not None:  # the engine's own, for all that is done to its logits
            stream = torch.cuda.stream(torch.cuda.ExternalStream(stream_ptr))  # type: ignore[no-untyped-call]
        try:
            with stream:
                forced = [self.forced] * len(generated)
                _mask_of(self.tokenizer).apply_(logits[:, 0], forced, generated)
        except (CharwiseError, OSError) as error:  # it would fail every request of the batch
            logger.error("request %s is not healed: %s", req_id, error)
