"""Plain generation, transformers' own token healing and charwise, on code cut at random bytes.

Usage: ``python benchmarks/healing.py [--model FOLDER] [--prompts 200] [--json FILE]``

Each prompt is 300 to 600 bytes of a standard-library module that the embedded model never saw,
and ends at a random byte. Greedy, the same number of new tokens for all. Reported:

exact    share of outputs that still start with the prompt's exact bytes
next k   share of outputs that go on with the next k characters of the module; an output that
         lost the whitespace before its prompt, but nothing else, counts as well
s/call   median seconds of a call, and its ratio to the plain one
failed   calls that raised an error

The last row is exact conditioning, `CharLM.complete`, for about as many bytes. Then the time of one
call of the processor after the forced text is reproduced.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
import timeit
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from charwise import CharLM, heal_generate, load
from charwise.models import EMBEDDED
from charwise.processors.transformers import HealingLogitsProcessor
from charwise.processors.transformers.generate import index_of

HELD_OUT = ["textwrap", "heapq", "shelve", "statistics", "fractions", "sched", "mailbox", "cmd"]
AHEAD = (1, 3)
NEW_TOKENS = 8

#: A method: the prompt → the prompt and what it made of it.
Method = Callable[[str], str]


class Case(NamedTuple):
    """A prompt and the text that follows it."""

    prompt: str
    truth: str


def cases(count: int, seed: int) -> list[Case]:
    """Random cuts of the held-out modules, the same for the same seed."""
    rng = random.Random(seed)
    sources = {name: Path(str(find_spec(name).origin)).read_bytes() for name in HELD_OUT}  # type: ignore[union-attr]
    found: list[Case] = []
    while len(found) < count:
        source = sources[rng.choice(HELD_OUT)]
        length = rng.randint(300, 600)
        end = rng.randrange(length, len(source) - 16)
        try:
            found.append(Case(source[end - length : end].decode(), source[end : end + 16].decode()))
        except UnicodeDecodeError:  # inside a character: transformers takes text only
            continue
    return found


def methods(model: Any, tokenizer: Any, lm: CharLM) -> dict[str, Method]:
    """What is compared, by name."""
    if tokenizer.pad_token_id is None:  # the built-in needs one
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    settings: dict[str, Any] = {"max_new_tokens": NEW_TOKENS, "do_sample": False}

    def by_transformers(prompt: str, **more: Any) -> str:
        inputs = tokenizer(prompt, return_tensors="pt").to(model.device)
        ids = model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            pad_token_id=tokenizer.pad_token_id,
            **settings,
            **more,
        )
        text = tokenizer.decode(ids[0], skip_special_tokens=True)
        assert isinstance(text, str)
        return text

    def by_charwise(prompt: str, rule: Any) -> str:
        return prompt + heal_generate(model, tokenizer, prompt, rule=rule, **settings)[0]

    return {
        "transformers, plain": by_transformers,
        "transformers, token_healing=True": lambda prompt: by_transformers(
            prompt, token_healing=True, tokenizer=tokenizer
        ),
        "charwise, rule=1": lambda prompt: by_charwise(prompt, 1),
        "charwise": lambda prompt: by_charwise(prompt, "auto"),
        "charwise, exact": lambda prompt: (
            prompt + lm.complete(prompt, max_new_bytes=3 * NEW_TOKENS)[0].text
        ),
    }


def measure(method: Method, case: Case) -> dict[str, Any]:
    """One call: what came out and how long it took."""
    begin = time.perf_counter()
    try:
        output = method(case.prompt)
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
        seconds = time.perf_counter() - begin
        return {"seconds": seconds, "exact": False, "right": [False] * len(AHEAD), "error": failure}
    seconds = time.perf_counter() - begin
    whole = [case.prompt + case.truth[:k] for k in AHEAD]
    return {
        "seconds": seconds,
        "exact": output.startswith(case.prompt),
        "right": [output.startswith((text, text.lstrip())) for text in whole],
        "error": None,
    }


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Shares and the median time of one method."""
    row: dict[str, Any] = {"exact": statistics.mean(r["exact"] for r in results)}
    for at, k in enumerate(AHEAD):
        row[f"next_{k}"] = statistics.mean(r["right"][at] for r in results)
    row["median_seconds"] = statistics.median(r["seconds"] for r in results)
    row["failed"] = sum(r["error"] is not None for r in results)
    row["errors"] = sorted({r["error"] for r in results if r["error"]})
    return row


def table(rows: dict[str, dict[str, Any]], title: str) -> Table:
    """The rows, with times as ratios to the first."""
    out = Table(title=title, title_justify="left")
    out.add_column("method")
    for name in ("exact", *(f"next {k}" for k in AHEAD), "s/call", "ratio", "failed"):
        out.add_column(name, justify="right")
    for name, row in rows.items():
        shares = [f"{row[key]:.1%}" for key in ("exact", *(f"next_{k}" for k in AHEAD))]
        times = [f"{row['median_seconds']:.4f}", f"{row['ratio']:.2f}"]
        out.add_row(name, *shares, *times, str(row["failed"]))
    return out


def finished_call(model: Any, tokenizer: Any) -> float:
    """Median seconds of the processor once there is nothing left to force."""
    process = HealingLogitsProcessor(index_of(tokenizer, model), [b" x"], prompt_length=1)
    ids, scores = torch.zeros(1, 9, dtype=torch.long), torch.zeros(1, model.config.vocab_size)
    times = timeit.repeat(lambda: process(ids, scores), number=1000, repeat=15)
    return statistics.median(times) / 1000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default=EMBEDDED, help="folder or name on the hub")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0, help="0: as many as torch likes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    given = cases(args.prompts, args.seed)
    compared = methods(model, tokenizer, load(args.model))
    for method in compared.values():  # warm up: indices, kernels
        measure(method, given[0])
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in compared}
    for case in given:
        for name, method in compared.items():  # in turn, so that all see the same load
            results[name].append(measure(method, case))
    rows = {name: summary(found) for name, found in results.items()}
    plain = rows["transformers, plain"]["median_seconds"]
    for row in rows.values():
        row["ratio"] = row["median_seconds"] / plain
    model_name = "the embedded model" if args.model == EMBEDDED else args.model
    title = f"{len(given)} prompts, {model_name}, {NEW_TOKENS} new tokens, greedy"
    Console(width=100).print(table(rows, title))
    for name, row in rows.items():
        for error in row["errors"][:3]:
            print(f"{name} failed with {error}")
    finished = finished_call(model, tokenizer)
    print(f"the processor, when nothing is left to force: {finished * 1e6:.2f} µs a call")
    if args.json:
        facts = {"model": model_name, "prompts": len(given), "seed": args.seed, "methods": rows}
        facts["finished_call_seconds"] = finished
        args.json.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
