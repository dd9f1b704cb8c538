"""What token healing adds to a decoding step of an engine, µs for each request.

    python benchmarks/processors.py [--tokenizer qwen2] [--threads 1] [--json FILE]

*forced* masks a row: by what remains to be forced, a space (which a third of a vocabulary starts
with), a letter, half a word, or another text for each request (*mixed*). *afterwards*, nothing
remains. The last table has whole calls of adapters, with mixed texts. Times are medians over steps.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import AutoTokenizer

import texts
from charwise import SortedVocabulary, Vocabulary
from charwise.healing.mask import Mask
from charwise.healing.tensorrt_llm import HealingLogitsProcessor as TensorRTProcessor
from charwise.healing.transformers import HealingLogitsProcessor
from charwise.models import EMBEDDED
from harness import arguments, finish, table

BATCHES = (1, 32, 256)
TEXTS = {"a space": b" ", "a letter": b"a", "half a word": b" rando"}

Times = dict[str, dict[int, float]]


def per_step(step: Callable[[], object], budget: float = 0.5) -> float:
    """Median µs of a call, within a budget of seconds and after one to warm up."""
    step()
    times: list[float] = []
    end = time.perf_counter() + budget
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def mixed(index: SortedVocabulary, n: int) -> list[bytes]:
    """Different texts to force: beginnings of tokens of the vocabulary."""
    starts = list(dict.fromkeys(token[:-1] for token in index.sorted if len(token) > 2))
    return random.Random(1).sample(starts, n)


def core(index: SortedVocabulary, dtype: torch.dtype) -> Times:
    """Masking the rows of a batch, by what remains."""
    mask = Mask(index)
    found: Times = {}
    for batch in BATCHES:
        logits = torch.randn(batch, index.vocabulary.width).to(dtype)
        cases = {name: [text] * batch for name, text in TEXTS.items()}
        cases["mixed"] = mixed(index, batch)
        start: list[list[int]] = [[]] * batch
        steps = {
            f"forced: {name}": partial(mask.apply_, logits, forced, start)
            for name, forced in cases.items()
        }
        ended = [[0] * 20] * batch
        steps["afterwards"] = partial(mask.apply_, logits, cases["half a word"], ended)
        for name, step in steps.items():
            found.setdefault(name, {})[batch] = per_step(step) / batch
    return found


def adapters(tokenizer: Any, folder: str, index: SortedVocabulary) -> Times:
    """Whole calls of each adapter, float32 logits."""
    found: Times = {}
    for batch in BATCHES:
        logits, forced = torch.randn(batch, index.vocabulary.width), mixed(index, batch)
        for state, generated in (("forced", 0), ("afterwards", 300)):
            calls = {
                "transformers": in_transformers(index, logits, forced, generated),
                "TensorRT-LLM": in_tensorrt_llm(folder, logits, forced, generated),
            }
            for name, call in calls.items():
                found.setdefault(f"{name}, {state}", {})[batch] = per_step(call) / batch
    return found


def in_transformers(
    index: SortedVocabulary, scores: torch.Tensor, forced: list[bytes], generated: int
) -> Callable[[], object]:
    """A call for the whole batch."""
    ids = torch.zeros(len(forced), 1 + generated, dtype=torch.int64)
    return partial(HealingLogitsProcessor(index, forced, prompt_length=1), ids, scores)


def in_tensorrt_llm(
    folder: str, logits: torch.Tensor, forced: list[bytes], generated: int
) -> Callable[[], object]:
    """A call for each request."""
    processors = [TensorRTProcessor(folder, text, prompt_length=1) for text in forced]
    rows, ids = [row.view(1, 1, -1) for row in logits], [[0] * (1 + generated)]
    pairs = list(zip(processors, rows, strict=True))
    return lambda: [process(1, row, ids, None, None) for process, row in pairs]


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--tokenizer", default="qwen2", help="a folder in CHARWISE_DATA/tokenizers")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    args, started = parser.parse_args(), time.perf_counter()
    torch.set_num_threads(args.threads)
    folder = texts.data_folder() / "tokenizers" / args.tokenizer
    place = str(folder) if folder.is_dir() else EMBEDDED
    tokenizer = AutoTokenizer.from_pretrained(place)
    index = SortedVocabulary(Vocabulary.from_transformers(tokenizer))
    found = {f"{index.vocabulary.width:,} ids, float32": core(index, torch.float32)}
    found["bfloat16"] = core(index, torch.bfloat16)
    found["Whole calls, float32"] = adapters(tokenizer, place, index)
    columns = ["µs per request", *(f"batch {batch}" for batch in BATCHES)]
    tables = [
        table(
            title, columns, [[name, *(f"{t:.2f}" for t in row.values())] for name, row in f.items()]
        )
        for title, f in found.items()
    ]
    finish(args, tables, found, started)


if __name__ == "__main__":
    main()
