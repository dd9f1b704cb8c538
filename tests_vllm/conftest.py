"""vLLM's CPU build with the model in the package, once for each of its two model runners.

These tests need an environment of their own (`make test-vllm`), and one process for each file:
an engine is started once, and which model runner it has is settled when vLLM is imported.
"""

import os
import random
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from charwise import SortedVocabulary
from charwise.healing.transformers import index_of
from charwise.models import EMBEDDED
from masked import gaps

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("CHARWISE_DATA") or ROOT.parent / "shared" / "data")

#: For every vLLM that is started here, in this process or as a server.
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
}

#: What the CPU build needs, and little room: prompts are read in pieces, requests are preempted.
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "block_size": 32,
    "max_model_len": 512,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 32,
    "num_gpu_blocks_override": 80,
    "distributed_executor_backend": "uni",
    "max_logprobs": -1,
    "disable_log_stats": False,
}

#: Logits of two engines that are closer than this are a tie: which token wins is left open.
TIE = 2e-3


def code_prompts(number: int) -> list[str]:
    """Code cut at random characters."""
    code = Path(textwrap.__file__).read_text("utf-8")
    rng = random.Random(0)
    return [code[end - 200 : end] for end in (rng.randrange(200, len(code)) for _ in range(number))]


@pytest.fixture(scope="session")
def llm() -> Any:
    os.environ.update(ENVIRONMENT)
    from vllm import LLM

    return LLM(EMBEDDED, **ENGINE)


@dataclass(frozen=True)
class Reference:
    """The same model in transformers."""

    model: Any
    tokenizer: Any

    @property
    def index(self) -> SortedVocabulary:
        return index_of(self.tokenizer, self.model)

    def gaps(self, kept: list[int], forced: bytes, generated: list[int]) -> list[float]:
        """For each generated token, by how many nats the best allowed token is better."""
        return gaps(self.model, self.index, kept, forced, generated)


@pytest.fixture(scope="session")
def reference() -> Reference:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(EMBEDDED, dtype=torch.float32).eval()
    return Reference(model, AutoTokenizer.from_pretrained(EMBEDDED))
