"""Token healing in TensorRT-LLM: a logits processor for each request of the LLM API.

    llm = LLM(model=…, disable_overlap_scheduler=True)
    ids, params, reader = heal_request(llm, "raise ValueErr", SamplingParams(max_tokens=20))
    text = reader.text(llm.generate(ids, params).outputs[0].token_ids)

TensorRT-LLM shows a processor the tokens of the prompt and those it has generated, and wants the
logits changed in place. It pickles the processor into its worker, so this one holds the *name* of
the tokenizer, a few hundred bytes in all; the worker loads it once.

The overlap scheduler asks for a mask before the last token is known. Nothing in the call says so
(a prompt that is prefilled in chunks repeats its ids just the same), so no processor can tell, and
`heal_request` looks at the settings of the `LLM` instead. An exception inside a processor would
fail every request in the batch: what goes wrong in the worker is logged, that row is left alone,
and the reader refuses the completion when it comes back without its forced text.

A request that was paused comes back as a prompt with the tokens it had generated, and the PyTorch
backend calls no processor for the first step after that. Its token may fit, and the request goes
on; if not, nothing can take it back, so the next call ends the request, and the reader gives it an
empty completion: the prompt's bytes as they were.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from charwise.errors import CharwiseError, ModelError, SettingError, check_count
from charwise.healing import Rule, remaining
from charwise.healing.continuation import Bounds, Reader
from charwise.healing.decision import Decisions
from charwise.healing.prompt import heal_prompt
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompts import Prompt
from charwise.tokens.stops import Stops
from charwise.tokens.vocabulary import Vocabulary

logger = logging.getLogger(__name__)


class HealedRequest(NamedTuple):
    """The arguments of `LLM.generate`, and the reader of its answer.

    >>> from charwise.healing.prompt import HealedPrompt
    >>> reader = Reader(Vocabulary.from_bytes([b"a", b"ab"]), HealedPrompt([], b"a", 1))
    >>> HealedRequest(ids=[0], sampling_params=None, reader=reader).reader.text([1])
    'b'
    """

    ids: list[int]
    sampling_params: Any
    reader: Reader


def heal_request(
    llm: Any,
    prompt: Prompt,
    sampling_params: Any,
    *,
    rule: Rule = "auto",
    tokenizer: str | None = None,
) -> HealedRequest:
    """Token ids and sampling parameters for one request whose prompt is healed.

    Args:
        llm: the `tensorrt_llm.LLM` that will get the request.
        prompt: text, bytes, or a list of texts and token ids, as for `healing.cut`.
        sampling_params: is copied; its own processors run before the mask. `max_tokens` counts
            from where the prompt is reproduced: the engine is asked for as many more as the
            prompt gave back. `stop` strings of which a match could begin in the forced text are
            left to the reader.
        rule: where to cut.
        tokenizer: folder or name, by default that of the `llm`; its workers must find it too.

    Raises:
        ModelError: an `llm` whose settings keep processors from seeing every token, or beams in
            a TensorRT-LLM that shows processors only one of them.
        SettingError: `sampling_params` that would cut the prompt once more, or make no sense.
        VocabularyError: as `healing.cut`.
    """
    _check(llm, sampling_params)
    if tokenizer is None:
        tokenizer = str(getattr(llm.tokenizer, "tokenizer", llm.tokenizer).name_or_path)
    index = _decisions_of(tokenizer).index
    healed = heal_prompt(prompt, index, rule)
    kept, forced = healed.kept, healed.forced
    end_id = _end_id(sampling_params, index.vocabulary)
    processor = HealingLogitsProcessor(tokenizer, forced, len(kept), end_id)
    params = copy.copy(sampling_params)
    others = params.logits_processor
    if others is not None:
        params.logits_processor = [*(others if isinstance(others, list) else [others]), processor]
    else:
        params.logits_processor = processor
    asked = getattr(params, "max_tokens", None)
    if asked is not None:
        check_count("max_tokens", asked, 1)
        params.max_tokens = asked + healed.most_again
    stops = Stops(getattr(params, "stop", None))
    if stops:
        params.stop = stops.apart_from(forced) or None
    reader = Reader(
        index.vocabulary,
        healed,
        Bounds(stops.strings, max_tokens=asked),
        may_be_lost=end_id is not None,
    )
    return HealedRequest(kept, params, reader)


def _check(llm: Any, sampling_params: Any) -> None:
    """Refuse an engine that hides tokens from processors, and settings that go with none."""
    if not hasattr(llm, "args"):
        raise ModelError(f"{type(llm).__name__} is no tensorrt_llm.LLM.")
    settings = llm.args
    if getattr(settings, "disable_overlap_scheduler", True) is False:
        raise ModelError(
            "the overlap scheduler calls logits processors before the last token is known: make "
            "the LLM with disable_overlap_scheduler=True."
        )
    if getattr(settings, "speculative_config", None) is not None:
        raise ModelError(
            "TensorRT-LLM does not show draft tokens to logits processors: make the LLM without "
            "speculative_config."
        )
    beams = getattr(sampling_params, "use_beam_search", False)
    if beams and hasattr(settings, "disable_overlap_scheduler") and not _shows_every_beam():
        raise ModelError(
            "this TensorRT-LLM's PyTorch backend calls logits processors for one beam only: use a "
            "newer one, or no beam search."
        )
    if getattr(sampling_params, "truncate_prompt_tokens", None) is not None:
        raise SettingError("truncate_prompt_tokens would cut the prompt once more: leave it out.")


def _end_id(params: Any, vocabulary: Vocabulary) -> int | None:
    """The token that ends a request at any step, if there is one."""
    if getattr(params, "ignore_eos", False) or (getattr(params, "min_tokens", None) or 0) > 1:
        return None
    end_id: int | None = getattr(params, "end_id", None)
    if end_id is None:
        return vocabulary.end_ids[0] if vocabulary.end_ids else None
    return end_id if end_id >= 0 else None


@cache
def _shows_every_beam() -> bool:
    """Return whether the PyTorch backend's code gives processors the ids of each beam.

    Older versions have the same interface and another behaviour, so their own code is looked at.
    """
    import tensorrt_llm

    backend = Path(tensorrt_llm.__file__).parent / "_torch" / "pyexecutor"
    return any(
        "def _apply_logits_processors(" in file.read_text("utf-8", "replace")
        for file in sorted(backend.rglob("*.py"))
    )


@lru_cache(maxsize=8)
def _decisions_of(tokenizer: str) -> Decisions:
    """The decisions of a tokenizer by its folder or name; loaded once in each process.

    >>> from charwise.models import EMBEDDED
    >>> _decisions_of(str(EMBEDDED)) is _decisions_of(str(EMBEDDED))
    True
    """
    from transformers import AutoTokenizer

    vocabulary = Vocabulary.from_transformers(AutoTokenizer.from_pretrained(tokenizer))
    return Decisions(SortedVocabulary(vocabulary))


class HealingLogitsProcessor:
    """TensorRT-LLM's `LogitsProcessor`: one request may write only its forced text first.

    Args:
        tokenizer: folder or name of the model's fast tokenizer.
        forced: the bytes that the prompt gave back.
        prompt_length: how many ids the prompt has.
        end_id: the token to end with where the tokens have left the forced text; None to leave
            such rows as they are.

    Raises:
        VocabularyError: a forced text that the vocabulary cannot spell.
        SettingError: a `forced` that is not bytes, or a negative `prompt_length`.

    >>> from charwise.models import EMBEDDED
    >>> processor = HealingLogitsProcessor(str(EMBEDDED), b" Val", prompt_length=1)
    >>> logits = torch.zeros(1, 1, _decisions_of(str(EMBEDDED)).index.vocabulary.width)
    >>> processor(7, logits, [[0]], None, None)
    >>> int((logits == 0).sum())
    5
    """

    def __init__(
        self, tokenizer: str, forced: bytes, prompt_length: int, end_id: int | None = None
    ) -> None:
        if prompt_length is not None:
            check_count("prompt_length", prompt_length, 0)
        _decisions_of(tokenizer).check(forced)
        self.tokenizer = tokenizer
        self.forced = forced
        self.prompt_length = prompt_length
        self.end_id = end_id

    def __call__(
        self,
        req_id: int,
        logits: torch.Tensor,
        token_ids: list[list[int]],
        stream_ptr: int | None,
        client_id: int | None,
    ) -> None:
        """Masks logits `[beams, 1, width]` in place; `token_ids` has prompt and output of each."""
        done = self.prompt_length + len(self.forced)
        if all(len(ids) > done for ids in token_ids):
            return
        try:
            decisions = _decisions_of(self.tokenizer)
            with _on(stream_ptr):
                # A prompt's last position has one row of logits, whatever the number of beams.
                for row, ids in zip(logits, token_ids, strict=False):
                    generated = ids[self.prompt_length :]
                    if self._is_lost(generated, decisions):
                        logger.warning("request %s was not masked at a step: it ends", req_id)
                        row.fill_(-torch.inf)[0, self.end_id] = 0.0
                    else:
                        decisions.mask_(row[0], self.forced, generated)
        except (CharwiseError, OSError) as error:
            logger.error("request %s is not healed: %s", req_id, error)

    def _is_lost(self, generated: list[int], decisions: Decisions) -> bool:
        """Whether a step without a mask left the forced text, and the request can be ended."""
        if self.end_id is None or not 0 < len(generated) <= len(self.forced):
            return False
        return remaining(self.forced, generated, decisions.index.vocabulary) is None


class HealingBatchedLogitsProcessor:
    """TensorRT-LLM's `BatchedLogitsProcessor`: a whole batch in one call, on the executor's stream.

    It is given to the executor once, and learns of requests by their client id. It must live in
    the executor's own process: for the bindings' `Executor`, whose requests have the client id
    that you give them.

    >>> from charwise.models import EMBEDDED
    >>> batched = HealingBatchedLogitsProcessor()
    >>> batched.add(1, HealingLogitsProcessor(str(EMBEDDED), b" Val", prompt_length=1))
    >>> batched.discard(1)
    """

    def __init__(self) -> None:
        self._requests: dict[int, HealingLogitsProcessor] = {}

    def add(self, client_id: int, processor: HealingLogitsProcessor) -> None:
        """Heal the request of this client id, before it is enqueued."""
        self._requests[client_id] = processor

    def discard(self, client_id: int) -> None:
        """Forget a request that has ended; one that is unknown is no error."""
        self._requests.pop(client_id, None)

    def __call__(
        self,
        req_ids: Sequence[int],
        logits: Sequence[torch.Tensor],
        token_ids: Sequence[list[list[int]]],
        stream_ptr: int | None,
        client_ids: Sequence[int | None],
    ) -> None:
        """Masks each tensor of logits in place; requests that were not added stay as they are."""
        with _on(stream_ptr):
            for req_id, own, ids, client_id in zip(
                req_ids, logits, token_ids, client_ids, strict=True
            ):
                processor = None if client_id is None else self._requests.get(client_id)
                if processor is not None:
                    processor(req_id, own, ids, None, client_id)


def _on(stream_ptr: int | None) -> AbstractContextManager[Any]:
    """The engine's CUDA stream, if it named one, for all that is done to its logits."""
    if stream_ptr is None:
        return nullcontext()
    return torch.cuda.stream(torch.cuda.ExternalStream(stream_ptr))  # type: ignore[no-untyped-call]
