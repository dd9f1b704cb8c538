"""What token healing adds to a decoding step of an engine, per request.

    python benchmarks/processors.py [--json FILE] [--tokenizer qwen2] [--threads 1]

The tokenizer is read from the folder that CHARWISE_DATA names (default `../shared/data` beside
the repository); without it, the vocabulary of the embedded model is used. Batches of 1, 32 and 256
requests with float32 and bfloat16 logits on the CPU, each request at its own row:

    forced      some bytes remain: the row is masked. By what remains: a space (a third of a
                vocabulary starts with it), a letter, half a word; and "mixed", where every request
                has another text, taken from the vocabulary at random
    afterwards  nothing remains: a comparison
    first time  the tensors for a text that the cache has not seen, made and used once
    adapters    the whole call, as the engine makes it, while "mixed" texts are forced and
                afterwards. TensorRT-LLM calls once for each request, the others once for a batch

Times are medians over steps, divided by the number of requests.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
from array import array
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

from charwise import SortedVocabulary, Vocabulary
from charwise.models import EMBEDDED
from charwise.processors.decision import Decisions
from charwise.processors.sglang import FORCED, HealingLogitProcessor
from charwise.processors.tensorrt_llm import HealingLogitsProcessor as TensorRTProcessor
from charwise.processors.transformers import HealingLogitsProcessor

BATCHES = (1, 32, 256)
TEXTS = {"a space": b" ", "a letter": b"a", "half a word": b" rando"}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TOKEN = 0  # what each request has generated, where it has generated anything


def per_step(step: Callable[[], object], budget: float = 0.5) -> float:
    """Median µs of a call, within a budget of seconds and after one to warm up."""
    step()
    times: list[float] = []
    end = perf_counter() + budget
    while perf_counter() < end or len(times) < 5:
        start = perf_counter()
        step()
        times.append(perf_counter() - start)
    return statistics.median(times) * 1e6


def mixed(index: SortedVocabulary, n: int) -> list[bytes]:
    """Different texts to force: beginnings of tokens of the vocabulary."""
    rng = random.Random(1)
    texts = list(dict.fromkeys(token[:-1] for token in index.sorted if len(token) > 2))
    return rng.sample(texts, n)


def core(index: SortedVocabulary, dtype: torch.dtype) -> dict[str, dict[int, float]]:
    """Masking the rows of a batch: µs per request, by what remains and the batch size."""
    width = index.vocabulary.width
    decisions, fresh = Decisions(index), Decisions(index, max_bytes=0)
    found: dict[str, dict[int, float]] = {}
    for batch in BATCHES:
        logits = torch.randn(batch, width).to(dtype)
        start: list[list[int]] = [[]] * batch
        cases = {name: [text] * batch for name, text in TEXTS.items()}
        cases["mixed"] = mixed(index, batch)
        for name, forced in cases.items():
            step = per_step(partial(decisions.mask_rows_, logits, forced, start))
            found.setdefault(f"forced: {name}", {})[batch] = step / batch
        ended = [[TOKEN] * 20] * batch
        step = per_step(partial(decisions.mask_rows_, logits, cases["half a word"], ended))
        found.setdefault("afterwards", {})[batch] = step / batch
        for name, forced in cases.items():
            step = per_step(partial(fresh.mask_rows_, logits, forced, start))
            found.setdefault(f"first time: {name}", {})[batch] = step / batch
    return found


def adapters(tokenizer: Any, folder: str, index: SortedVocabulary) -> dict[str, dict[int, float]]:
    """Whole calls of each adapter: µs per request, float32 logits."""
    found: dict[str, dict[int, float]] = {}
    for batch in BATCHES:
        logits = torch.randn(batch, index.vocabulary.width)
        forced = mixed(index, batch)
        for state, generated in (("forced", 0), ("afterwards", 300)):
            calls = {
                "transformers": in_transformers(index, logits, forced, generated),
                "SGLang": in_sglang(tokenizer, logits, forced, generated),
                "TensorRT-LLM": in_tensorrt_llm(folder, logits, forced, generated),
            }
            for name, call in calls.items():
                found.setdefault(f"{name}, {state}", {})[batch] = per_step(call) / batch
    return found


def in_transformers(
    index: SortedVocabulary, scores: torch.Tensor, forced: list[bytes], generated: int
) -> Callable[[], object]:
    ids = torch.zeros(len(forced), 1 + generated, dtype=torch.int64)
    process = HealingLogitsProcessor(index, forced, prompt_length=1)
    return lambda: process(ids, scores)


def in_sglang(
    tokenizer: Any, logits: torch.Tensor, forced: list[bytes], generated: int
) -> Callable[[], object]:
    params = []
    for text in forced:
        request = SimpleNamespace(
            origin_input_ids=array("q", [TOKEN]),
            output_ids=array("q", [TOKEN] * generated),
            kv=SimpleNamespace(kv_committed_len=1 + generated),
            tokenizer=tokenizer,
        )
        params.append({FORCED: text.hex(), "__req__": request})
    process = HealingLogitProcessor()
    return lambda: process(logits, params)


def in_tensorrt_llm(
    folder: str, logits: torch.Tensor, forced: list[bytes], generated: int
) -> Callable[[], object]:
    processors = [TensorRTProcessor(folder, text, prompt_length=1) for text in forced]
    rows = [row.view(1, 1, -1) for row in logits]
    ids = [[TOKEN] * (1 + generated)]

    def step() -> None:
        for process, row in zip(processors, rows, strict=True):
            process(1, row, ids, None, None)

    return step


def show(title: str, found: dict[str, dict[int, float]], out: Console) -> None:
    table = Table(title=title)
    table.add_column("µs per request")
    for batch in BATCHES:
        table.add_column(f"batch {batch}", justify="right")
    for name, by_batch in found.items():
        table.add_row(name, *(f"{by_batch[batch]:.2f}" for batch in BATCHES))
    out.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokenizer", default="qwen2", help="a folder in CHARWISE_DATA/tokenizers")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here, too")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    root = Path(__file__).resolve().parents[1]
    data = Path(os.environ.get("CHARWISE_DATA") or root.parent / "shared" / "data")
    out = Console()
    folder = data / "tokenizers" / arguments.tokenizer
    if not folder.is_dir():
        out.print(f"No tokenizer in {folder}: this is the vocabulary of the embedded model.")
        folder = EMBEDDED
    tokenizer = AutoTokenizer.from_pretrained(folder)
    index = SortedVocabulary(Vocabulary.from_transformers(tokenizer))
    results: dict[str, Any] = {"width": index.vocabulary.width, "threads": arguments.threads}
    for name, dtype in DTYPES.items():
        results[name] = core(index, dtype)
        show(f"the decision, {index.vocabulary.width:,} ids, {name}", results[name], out)
    results["adapters"] = adapters(tokenizer, str(folder), index)
    show("whole calls, float32", results["adapters"], out)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
