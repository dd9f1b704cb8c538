"""At the boundary: plain generation, the mask, and exact conditioning, on code cut at random bytes.

Usage: ``python benchmarks/exact_boundary.py [--engine vllm] [--prompts 200] [--json FILE]``

Each prompt is 300 to 600 bytes of a standard-library module that the embedded model never saw,
and ends at a random byte. Greedy, the same number of new tokens for all, one prompt a call, all
methods in turn. Reported:

next k   share of outputs that go on with the next k characters of the module, and its interval
         (Wilson's, 95 %)
ms/call  median time of a call, and its ratio to the plain one

Then how often exact and mask differ, and which of them is right where one is. The engine is
transformers' `generate`, or vLLM (its CPU build, in this process), which needs an environment with
vLLM (`make .venv-vllm/.ready`).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from rich.console import Console
from rich.table import Table
from transformers.utils import logging

from charwise.models import EMBEDDED
from healing import cases

AHEAD = (1, 3, 6)
NEW_TOKENS = 8

#: A method: the prompt → what comes after it.
Method = Callable[[str], str]


def in_transformers() -> dict[str, Method]:
    """The three ways of transformers, by name."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from charwise import heal_generate

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    model = AutoModelForCausalLM.from_pretrained(EMBEDDED, dtype=torch.float32).eval()

    def healed(**more: Any) -> Method:
        settings = {"max_new_tokens": NEW_TOKENS, "do_sample": False, **more}
        return lambda prompt: heal_generate(model, tokenizer, prompt, **settings)[0]

    return {"plain": healed(rule="off"), "mask": healed(), "exact": healed(conditioning="exact")}


def in_vllm() -> dict[str, Method]:
    """The three ways of vLLM, by name."""
    from vllm import LLM, SamplingParams

    from charwise.processors.vllm import heal_generate

    llm = LLM(
        EMBEDDED,
        dtype="float32",
        enforce_eager=True,
        block_size=32,
        max_model_len=512,
        distributed_executor_backend="uni",
    )

    def healed(**more: Any) -> Method:
        settings = SamplingParams(temperature=0, max_tokens=NEW_TOKENS)
        return lambda prompt: heal_generate(llm, [prompt], settings, **more)[0][0]

    return {"plain": healed(rule="off"), "mask": healed(), "exact": healed(conditioning="exact")}


def interval(right: int, of: int) -> tuple[float, float]:
    """Wilson's interval of a share, 95 %.

    >>> [round(end, 3) for end in interval(5, 10)]
    [0.237, 0.763]
    """
    z, share = 1.96, right / of
    middle = share + z * z / (2 * of)
    width = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return (middle - width) / (1 + z * z / of), (middle + width) / (1 + z * z / of)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--engine", choices=("transformers", "vllm"), default="transformers")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    methods = in_vllm() if args.engine == "vllm" else in_transformers()
    given = cases(args.prompts, args.seed)
    for method in methods.values():  # warm up
        method(given[0].prompt)
    texts: dict[str, list[str]] = {name: [] for name in methods}
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for number, case in enumerate(given):
        # In turn, each of them first as often: the first finds nothing of the prompt in a cache.
        names = list(methods)
        for name in names[number % 3 :] + names[: number % 3]:
            begin = time.perf_counter()
            texts[name].append(methods[name](case.prompt))
            seconds[name].append(time.perf_counter() - begin)
    count = len(given)
    right = {
        name: {
            k: [t.startswith(c.truth[:k]) for t, c in zip(found, given, strict=True)] for k in AHEAD
        }
        for name, found in texts.items()
    }
    plain = statistics.median(seconds["plain"])
    title = f"{count} prompts, the embedded model in {args.engine}, {NEW_TOKENS} new tokens, greedy"
    out = Table(title=title, title_justify="left")
    out.add_column("method")
    for name in (*(f"next {k}" for k in AHEAD), "ms/call", "ratio"):
        out.add_column(name, justify="right")
    for name in methods:
        cells = []
        for k in AHEAD:
            low, high = interval(sum(right[name][k]), count)
            cells.append(f"{sum(right[name][k]) / count:.1%} ({low:.1%} … {high:.1%})")
        median = statistics.median(seconds[name])
        out.add_row(name, *cells, f"{1000 * median:.0f}", f"{median / plain:.2f}")
    Console(width=120).print(out)
    differ = sum(a != b for a, b in zip(texts["mask"], texts["exact"], strict=True))
    print(f"mask and exact differ in {differ} of {count}")
    for k in AHEAD:
        pairs = list(zip(right["mask"][k], right["exact"][k], strict=True))
        only = {"mask": pairs.count((True, False)), "exact": pairs.count((False, True))}
        print(f"next {k}: right with the mask alone {only['mask']}, exactly alone {only['exact']}")
    if args.json:
        facts = {"engine": args.engine, "seed": args.seed, "texts": texts, "seconds": seconds}
        args.json.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
