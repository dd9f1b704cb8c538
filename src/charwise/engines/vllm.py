"""A model that vLLM runs as a `TokenLM`: one short request for each context, prefixes cached.

Every context is sent as token ids and asked for one token with all its log-probabilities. What a
context shares with those before it is in vLLM's prefix cache, so that mostly the last few tokens
are evaluated. How the model is spread over GPUs and machines is vLLM's own business: what it can
serve, charwise can score. Not handled: LoRA adapters, prompts that are not text.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from charwise.engines.pretrained import DEFAULT_MODEL, read_vocabulary
from charwise.engines.tree_nodes import TreeNodes
from charwise.errors import EngineError, SettingError
from charwise.models import EMBEDDED
from charwise.tokens.vocabulary import Vocabulary


class VllmLM:
    """A causal language model of vLLM.

    Args:
        llm: a `vllm.LLM` made with `max_logprobs=-1`.
        vocabulary: as wide as the model's output layer.
        batch_values: most log-probabilities in one call of vLLM, which hands them over as Python
            lists, about 100 bytes each. Larger calls to `extend` are split.

    Raises:
        EngineError: an `llm` that does not give all log-probabilities, or has another width.
    """

    def __init__(self, llm: Any, vocabulary: Vocabulary, *, batch_values: int = 2**22) -> None:
        config = llm.llm_engine.model_config
        if config.max_logprobs != -1 or config.logprobs_mode != "raw_logprobs":
            raise EngineError(
                f"this vLLM gives {config.max_logprobs} log-probabilities, {config.logprobs_mode}: "
                'make it with LLM(…, max_logprobs=-1, logprobs_mode="raw_logprobs").'
            )
        if config.get_vocab_size() != vocabulary.width:
            raise EngineError(
                f"the model's output layer has the width {config.get_vocab_size()}, the vocabulary "
                f"{vocabulary.width}: make the vocabulary with width={config.get_vocab_size()}."
            )
        #: What `__reduce__` returns: set by who can open this engine again, by its arguments.
        self.origin: tuple[Any, ...] | None = None
        self.vocabulary = vocabulary
        self.llm = llm
        self.window: int = config.max_model_len - 1  # vLLM wants room for the token it generates
        self.device = torch.device("cpu")
        self._per_call = max(1, batch_values // vocabulary.width)
        self._uncounted = torch.from_numpy(np.flatnonzero(~vocabulary.counted))
        self._lock = threading.Lock()

    def tree(self, prompt_ids: Sequence[int], edges: Sequence[tuple[int, int]] = ()) -> VllmTree:
        """A tree whose root is this prompt, and its first nodes; see `TokenLM.tree`."""
        tree = VllmTree(self, prompt_ids)
        tree.extend(edges)
        return tree

    def info(self) -> dict[str, str]:
        """Engine, device, dtype, how contexts share prefixes, and why."""
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
        """log p(· | context) of each context: `[n, width]` float32, nats, on the host.

        Raises:
            EngineError: numbers that are not finite.
        """
        from vllm import SamplingParams

        params = SamplingParams(
            max_tokens=1, temperature=0, logprobs=-1, flat_logprobs=True, detokenize=False
        )
        rows = np.full((len(contexts), self.vocabulary.width), -np.inf, dtype=np.float32)
        with self._lock:
            for first in range(0, len(contexts), self._per_call):
                some = contexts[first : first + self._per_call]
                outputs = self._generate([{"prompt_token_ids": ids} for ids in some], params)
                for row, output in enumerate(outputs, start=first):
                    flat = output.outputs[0].logprobs
                    rows[row, np.array(flat.token_ids)] = flat.logprobs
        # What is not counted is left out before the softmax: it gets nothing, and takes nothing.
        logits = torch.from_numpy(rows).index_fill_(1, self._uncounted, -torch.inf)
        logs = logits.log_softmax(-1)
        if logs.isnan().any():
            raise EngineError(
                f"the model's log-probabilities are not finite in {self.info()['dtype']}. Load it "
                "in bfloat16 or float32."
            )
        return logs

    def _generate(self, prompts: list[Any], params: Any) -> Any:
        try:
            if not hasattr(self.llm, "enqueue"):  # older versions
                return self.llm.generate(prompts, params, use_tqdm=False)
            self.llm.enqueue(prompts, params, use_tqdm=False)
            _take_lists_whole(self.llm.llm_engine.output_processor)
            return self.llm.wait_for_completion(use_tqdm=False)
        except BaseException:
            # An interrupted call leaves its requests behind, and the next one gets their answers.
            engine = self.llm.llm_engine
            engine.abort_request(list(engine.output_processor.request_states), internal=True)
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        if self.origin is None:
            raise EngineError(
                "a vLLM engine cannot be copied to another process: make it there, or open it by "
                'name, charwise.load(…, engine="vllm"), whose copies open it where they arrive.'
            )
        return self.origin


class VllmTree(TreeNodes):
    """The `TokenTree` of a `VllmLM`. Contexts that nobody asks about are not evaluated."""

    def __init__(self, lm: VllmLM, prompt_ids: Sequence[int]) -> None:
        super().__init__(lm, prompt_ids)
        self._lm = lm
        self.contexts = self._evaluate([0], [True])

    def _evaluate(self, nodes: list[int], wanted: list[bool]) -> int:
        asked = [node for node, want in zip(nodes, wanted, strict=True) if want]
        if asked:
            paths = [[*self._prompt_ids, *self.tokens(node)] for node in asked]
            self._logits.put(asked, self._lm.next_logprobs(paths))
            self.calls += 1
        return len(asked)

    def logprobs(self, nodes: Sequence[int]) -> torch.Tensor:
        """See `TokenTree.logprobs`: `[n, width]` float32."""
        with self._lock:
            self._check(nodes)
            if not nodes:
                return torch.empty((0, self._lm.vocabulary.width))
            return self._logits.take(nodes).clone()  # callers may write to what they are given


def _take_lists_whole(output_processor: Any) -> None:
    """Let what collects the log-probabilities of waiting requests take vLLM's lists as they are.

    It copies them number by number, in Python, which costs several times what the model does.
    """
    from vllm.logprobs import FlatLogprobs

    class Whole(FlatLogprobs):  # type: ignore[misc]
        def append_fast(
            self, token_ids: list[int], logprobs: list[float], ranks: Any, decoded_tokens: Any
        ) -> None:
            self.start_indices.append(0)
            self.token_ids, self.logprobs = token_ids, logprobs
            self.end_indices.append(len(logprobs))

    for state in output_processor.request_states.values():
        processor = state.logprobs_processor
        if type(getattr(processor, "logprobs", None)) is FlatLogprobs:
            processor.logprobs = Whole()


def load_vllm(
    name: str,
    device: str | None = None,
    dtype: str | None = None,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> VllmLM:
    """Start vLLM with a model: "embedded", a folder, or a name on the hub.

    Args:
        name: the model.
        device: None; vLLM runs where it was built for.
        dtype: "float32", "bfloat16" or "float16"; by default float32 on a CPU, else the
            model's own.
        revision, trust_remote_code: as in `open_engine`.

    Raises:
        ModelNotFoundError: what was looked for, and where.
        SettingError: a device; a revision of a folder.
        EngineError: vLLM is not installed.
    """
    # Says at once what is missing.
    vocabulary = read_vocabulary(name, revision=revision, trust_remote_code=trust_remote_code)
    try:
        from vllm import LLM
        from vllm.platforms import current_platform
    except ImportError as error:
        raise EngineError(f"engine 'vllm' needs vLLM: pip install vllm. ({error})") from error
    if device is not None:
        raise SettingError(f"device is {device!r}, but vLLM runs where it was built for: leave it.")
    llm = LLM(
        EMBEDDED if name == DEFAULT_MODEL else name,
        dtype=dtype or ("float32" if current_platform.is_cpu() else "auto"),
        revision=revision,
        tokenizer_revision=revision,
        trust_remote_code=trust_remote_code,
        max_logprobs=-1,
        enable_prefix_caching=True,
    )
    return VllmLM(llm, vocabulary)
