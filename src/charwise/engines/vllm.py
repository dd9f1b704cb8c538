"""A model that vLLM runs as a `TokenLM`: one short request for each context, prefixes cached.

A context is sent as token ids and asked for one token with all its log-probabilities; what it
shares with those before it is in vLLM's prefix cache. Many contexts on one path are one request,
which is asked for the log-probabilities of its prompt. Not handled: LoRA adapters, prompts that are
not text.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from charwise.engine import Branches
from charwise.engines.base import BaseTree
from charwise.errors import ModelError
from charwise.tokens.vocabulary import Vocabulary


class VllmLM:
    """A causal language model of vLLM.

    Args:
        llm: a `vllm.LLM` made with `max_logprobs=-1`.
        vocabulary: as wide as the model's output layer.

    Attributes:
        batch_values: most log-probabilities in one call of vLLM, some 20 bytes each. Larger calls
            to `extend` are split.
        origin: what `__reduce__` returns: set by who can open this engine again, by its name.

    Raises:
        ModelError: an `llm` that does not give all log-probabilities, or has another width.
    """

    batch_values = 2**22

    def __init__(self, llm: Any, vocabulary: Vocabulary) -> None:
        config = llm.llm_engine.model_config
        if config.max_logprobs != -1 or config.logprobs_mode != "raw_logprobs":
            raise ModelError(
                f"this vLLM gives {config.max_logprobs} log-probabilities, {config.logprobs_mode}: "
                'make it with LLM(…, max_logprobs=-1, logprobs_mode="raw_logprobs").'
            )
        if config.get_vocab_size() != vocabulary.width:
            raise ModelError(
                f"the model's output layer has the width {config.get_vocab_size()}, the vocabulary "
                f"{vocabulary.width}: make the vocabulary with width={config.get_vocab_size()}."
            )
        self.origin: tuple[Any, ...] | None = None
        self.vocabulary = vocabulary
        self.llm = llm
        self.window: int = config.max_model_len - 1  # vLLM wants room for the token it generates
        self.device = torch.device("cpu")
        self._lock = threading.Lock()

    def tree(self, prompt_ids: Sequence[int], branches: Branches = ()) -> _VllmTree:
        tree = _VllmTree(self, prompt_ids)
        tree.extend(branches)
        return tree

    def info(self) -> dict[str, str]:
        import vllm

        config = self.llm.llm_engine.vllm_config
        parallel = config.parallel_config
        return {
            "engine": f"vllm {vllm.__version__}",
            "model": config.model_config.architecture,
            "device": str(config.device_config.device),
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "parallel": (
                f"tensor {parallel.tensor_parallel_size}, pipeline "
                f"{parallel.pipeline_parallel_size}, data {parallel.data_parallel_size}"
            ),
            "path": "prefix cache" if config.cache_config.enable_prefix_caching else "recomputed",
            "why": "vLLM's own",
        }

    def next_logprobs(self, contexts: Sequence[list[int]]) -> torch.Tensor:
        """Return vLLM's log p(· | context) of each context: `[n, width]` float32, on the host."""
        rows = torch.full((len(contexts), self.vocabulary.width), -torch.inf)
        with self._lock:
            for first in range(0, len(contexts), self.most):
                some = contexts[first : first + self.most]
                outputs = self._generate([{"prompt_token_ids": ids} for ids in some])
                parts = [output.outputs[0].logprobs for output in outputs]
                ids = torch.from_numpy(np.array([each.token_ids for each in parts], dtype=np.int64))
                logs = torch.from_numpy(np.array([each.logprobs for each in parts], np.float32))
                rows[first : first + len(some)].scatter_(1, ids, logs)
        return rows

    @property
    def most(self) -> int:
        """Most contexts in one call."""
        return max(1, self.batch_values // self.vocabulary.width)

    def path_logprobs(self, path: list[int], lengths: Sequence[int]) -> torch.Tensor:
        """Return log p(· | the first so many tokens) for each length, by one request."""
        with self._lock:
            [output] = self._generate([{"prompt_token_ids": path}], prompt_logprobs=-1)
        last = output.outputs[0].logprobs
        parts = [*output.prompt_logprobs, _Logprobs(last.token_ids[None], last.logprobs[None])]
        rows_of_lengths = torch.tensor(lengths) - 1
        ids = torch.from_numpy(np.concatenate([each.token_ids for each in parts]))[rows_of_lengths]
        logs = torch.from_numpy(np.concatenate([each.logprobs for each in parts]))[rows_of_lengths]
        rows = torch.full((len(lengths), self.vocabulary.width), -torch.inf)
        return rows.scatter_(1, ids.long(), logs)

    def _generate(self, prompts: list[Any], **more: Any) -> Any:
        from vllm import SamplingParams

        params = SamplingParams(
            max_tokens=1, temperature=0, logprobs=-1, flat_logprobs=True, detokenize=False, **more
        )
        if hasattr(params, "skip_clone"):
            params.skip_clone = True  # each request copies it, all the way down
        try:
            self.llm.enqueue(prompts, params, use_tqdm=False)
            _take_arrays(self.llm.llm_engine.output_processor)
            return self.llm.wait_for_completion(use_tqdm=False)
        except BaseException:
            # An interrupted call leaves its requests behind, and the next one gets their answers.
            engine = self.llm.llm_engine
            engine.abort_request(list(engine.output_processor.request_states), internal=True)
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        if self.origin is None:
            raise ModelError(
                "a vLLM engine cannot be copied to another process: make it there, or open it by "
                'name, charwise.load(…, engine="vllm"), whose copies open it where they arrive.'
            )
        return self.origin


class _VllmTree(BaseTree):
    """The `TokenTree` of a `VllmLM`."""

    def __init__(self, lm: VllmLM, prompt_ids: Sequence[int]) -> None:
        super().__init__(lm, prompt_ids)
        self._lm = lm
        self._evaluate([0])
        self.contexts = 1

    def _evaluate(self, nodes: list[int]) -> None:
        self.calls += 1
        path = self._path_of_many(nodes)
        if path:
            ids = [*self._prompt_ids, *self.tokens(path[-1])]
            lengths = [len(self._prompt_ids) + self.depth(node) for node in path]
            self._put(path, self._lm.path_logprobs(ids, lengths))
        together = set(path)
        single = [node for node in nodes if node not in together]
        if single:
            contexts = [[*self._prompt_ids, *self.tokens(node)] for node in single]
            self._put(single, self._lm.next_logprobs(contexts))

    def _path_of_many(self, nodes: list[int]) -> list[int]:
        """Those of the nodes that lie on one path, if they are many and most of it; else none."""
        above: dict[int, int] = {}  # how many of them lie on the path to each, and with it
        for node in nodes:  # parents come first
            above[node] = 1 + above.get(self._parent[node], 0)
        path = [max(nodes, key=above.__getitem__)]
        while self._parent[path[-1]] in above:
            path.append(self._parent[path[-1]])
        path.reverse()
        length = len(self._prompt_ids) + self.depth(path[-1])
        # A path of many contexts is evaluated as one request.
        many = len(path) >= 8 and 2 * len(path) >= length
        return path if many and length <= self._lm.most else []


class _Logprobs(NamedTuple):
    """Log-probabilities of a position, or of several, as the engine sends them: ids may repeat."""

    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]


def _take_arrays(output_processor: Any) -> None:
    """Let waiting requests keep the arrays that they get.

    vLLM makes lists of them, number by number, which costs several times what the model does.
    """

    def take(processor: Any, lists: Any) -> None:
        processor.logprobs = _Logprobs(lists.logprob_token_ids[-1], lists.logprobs[-1])

    def take_prompt(processor: Any, tensors: Any) -> None:
        part = _Logprobs(tensors.logprob_token_ids.numpy(), tensors.logprobs.numpy())
        processor.prompt_logprobs = [*(processor.prompt_logprobs or ()), part]

    for state in output_processor.request_states.values():
        processor = state.logprobs_processor
        processor._update_sample_logprobs = partial(take, processor)
        if processor.num_prompt_logprobs is not None:
            processor.prompt_logprobs = None
            processor._update_prompt_logprobs = partial(take_prompt, processor)
