"""What token healing adds to a decoding step of an engine, µs for each request.

    python benchmarks/processors.py [--tokenizer qwen2] [--quick]

*forced* masks a row: by what remains to be forced, a space (which a third of a vocabulary starts
with), a letter, half a word, or another text for each request (*mixed*). *afterwards*, nothing
remains. The last table has whole calls of adapters, with mixed texts. Times are medians of
seven runs of 50 steps, with one thread.
"""

from __future__ import annotations

import random
import statistics
import timeit
from collections.abc import Callable
from functools import partial

import torch
from transformers import AutoTokenizer

from charwise import SortedVocabulary, Vocabulary
from charwise.healing.mask import Mask
from charwise.healing.tensorrt_llm import HealingLogitsProcessor as TensorRTProcessor
from charwise.healing.transformers import HealingLogitsProcessor
from harness import arguments, finish, table, tokenizer_folder

BATCHES = (1, 32, 256)
TEXTS = {"a space": b" ", "a letter": b"a", "half a word": b" rando"}

Steps = dict[str, Callable[[], object]]


def mixed(index: SortedVocabulary, n: int) -> list[bytes]:
    """Different texts to force: beginnings of tokens of the vocabulary."""
    starts = list(dict.fromkeys(token[:-1] for token in index.sorted if len(token) > 2))
    return random.Random(1).sample(starts, n)


def masks(index: SortedVocabulary, dtype: torch.dtype, batch: int) -> Steps:
    """Masking the rows of a batch, by what remains."""
    mask, logits = Mask(index), torch.randn(batch, index.vocabulary.width).to(dtype)
    cases = {name: [text] * batch for name, text in TEXTS.items()} | {"mixed": mixed(index, batch)}
    begin: list[list[int]] = [[]] * batch
    steps: Steps = {
        f"forced: {name}": partial(mask.apply_, logits, forced, begin)
        for name, forced in cases.items()
    }
    ended = [[0] * 20] * batch
    return steps | {"afterwards": partial(mask.apply_, logits, cases["half a word"], ended)}


def adapters(index: SortedVocabulary, folder: str, batch: int) -> Steps:
    """Whole calls of each adapter, float32 logits."""
    logits, forced, steps = torch.randn(batch, index.vocabulary.width), mixed(index, batch), Steps()
    hf = HealingLogitsProcessor(index, forced, prompt_length=1)
    trt = [TensorRTProcessor(folder, text, prompt_length=1) for text in forced]
    pairs = [(process, row.view(1, 1, -1)) for process, row in zip(trt, logits, strict=True)]
    for state, size in (("forced", 1), ("afterwards", 301)):
        ids = torch.zeros(batch, size, dtype=torch.int64)
        steps[f"transformers, {state}"] = partial(hf, ids, logits)
        one = [[0] * size]
        steps[f"TensorRT-LLM, {state}"] = lambda one=one: [
            process(1, row, one, None, None) for process, row in pairs
        ]
    return steps


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--tokenizer", default="qwen2", help="a folder in CHARWISE_DATA/tokenizers")
    args = parser.parse_args()
    place = tokenizer_folder(args.tokenizer, args.quick)
    index = SortedVocabulary(Vocabulary.from_transformers(AutoTokenizer.from_pretrained(place)))
    sections: dict[str, Callable[[int], Steps]] = {
        f"{index.vocabulary.width:,} ids, float32": partial(masks, index, torch.float32),
        "bfloat16": partial(masks, index, torch.bfloat16),
        "Whole calls, float32": partial(adapters, index, place),
    }
    batches, number = ((1, 2), 5) if args.quick else (BATCHES, 50)
    tables = list[str]()
    for title, steps_of in sections.items():
        rows = dict[str, list[float]]()
        for batch in batches:
            for name, step in steps_of(batch).items():
                runs = timeit.repeat(step, number=number, repeat=7)
                spent = 1e6 * statistics.median(runs) / number
                rows.setdefault(name, []).append(spent / batch)
        columns = ["µs per request", *(f"batch {batch}" for batch in batches)]
        tables.append(table(title, columns, rows, ".2f"))
    finish(*tables)


if __name__ == "__main__":
    main()
