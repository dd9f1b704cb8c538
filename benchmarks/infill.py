"""Filling in the middle, plain and healed, in both orders, of spans cut at random characters.

Usage: ``python benchmarks/infill.py [--model FOLDER] [--tasks 400] [--processes 2] [--json FILE]``

A task is a span of 1 to 64 characters of a standard-library module that the embedded model never
saw, with 600 characters before it and 300 after it. The control cuts the same spans at the nearest
boundaries of the module's own tokens, where nothing is divided. The third table is HumanEval's
random spans, from ``prompts/humaneval_random_span_light.jsonl`` of the folder CHARWISE_DATA.

plain    the template around both texts, as it is
left     the end of the prefix healed
both     the start of the suffix as well
exact    `CharLM.infill`

All are greedy. Reported, with 95 % intervals (Wilson's of shares, normal ones of means):

match    the middle is the one that was cut out
next 3   prefix and middle and suffix go on with the right three characters after the prefix
parses   the whole module parses, among those that did with the true middle
past     tokens beyond as many bytes as the true middle has, mean
s/call   median seconds of a call

The second table of each set has the differences, task by task: of every way to heal from the plain
one of the same order, and of plain SPM from plain PSM.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import random
import statistics
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from charwise import CharLM, heal_infill, load
from charwise.models import EMBEDDED

HELD_OUT = ["textwrap", "heapq", "shelve", "statistics", "fractions", "sched", "mailbox", "cmd"]
LONGEST, BEFORE, AFTER = 64, 600, 300
NEW_TOKENS, NEW_BYTES = 40, 128
SHARES = ("match", "next_3", "parses")
DATA = Path(os.environ.get("CHARWISE_DATA") or Path(__file__).parents[2] / "shared" / "data")
HUMANEVAL = DATA / "prompts" / "humaneval_random_span_light.jsonl"


class Task(NamedTuple):
    """What is known, what was cut out, and the whole text around it."""

    prefix: str
    middle: str
    suffix: str
    head: str = ""  # of the module, before the prefix
    tail: str = ""  # after the suffix

    def whole(self, middle: str) -> str:
        """The module with a middle."""
        return self.head + self.prefix + middle + self.suffix + self.tail


Method = Callable[[Task], str]


def spans(tokenizer: Any, count: int, seed: int, at_tokens: bool) -> Iterator[Task]:
    """Random spans of the held-out modules; `at_tokens` moves their ends to token boundaries."""
    rng = random.Random(seed)
    texts = {name: Path(str(find_spec(name).origin)).read_text("utf-8") for name in HELD_OUT}  # type: ignore[union-attr]
    ends = {name: boundaries(tokenizer, text) for name, text in texts.items()}
    for _ in range(count):
        name = rng.choice(HELD_OUT)
        text = texts[name]
        first = rng.randrange(BEFORE, len(text) - AFTER - LONGEST)
        last = first + rng.randint(1, LONGEST)
        if at_tokens:
            first, last = nearest(ends[name], first), nearest(ends[name], last)
            last = max(last, ends[name][bisect_right(ends[name], first)])  # a token at least
        begin, stop = first - BEFORE, last + AFTER
        yield Task(text[begin:first], text[first:last], text[last:stop], text[:begin], text[stop:])


def boundaries(tokenizer: Any, text: str) -> list[int]:
    """Where the canonical tokens of a text end, in characters."""
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    return [end for _, end in offsets["offset_mapping"]]


def nearest(ends: list[int], at: int) -> int:
    """The boundary that is nearest to a place."""
    after = bisect_left(ends, at)
    return min(ends[max(0, after - 1) : after + 1], key=lambda end: abs(end - at))


def human_eval() -> list[Task]:
    """HumanEval's random spans."""
    rows = map(json.loads, HUMANEVAL.read_text("utf-8").splitlines())
    return [Task(row["prompt"], row["canonical_solution"], row["suffix"]) for row in rows]


def methods(model: Any, tokenizer: Any, lm: CharLM) -> dict[str, Method]:
    """What is compared, by name."""

    def generated(task: Task, order: Any, left: Any, right: Any) -> str:
        [middle] = heal_infill(
            model,
            tokenizer,
            task.prefix,
            task.suffix,
            order=order,
            left=left,
            right=right,
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
        )
        return middle

    def exact(task: Task, order: Any) -> str:
        found = lm.infill(task.prefix, task.suffix, order=order, max_new_bytes=NEW_BYTES)
        return found[0].text

    rules = {"plain": ("off", "off"), "left": ("auto", "off"), "both": ("auto", "auto")}
    compared: dict[str, Method] = {}
    for order in ("psm", "spm"):
        for name, (left, right) in rules.items():
            compared[f"{order.upper()}, {name}"] = partial(
                generated, order=order, left=left, right=right
            )
        compared[f"{order.upper()}, exact"] = partial(exact, order=order)
    return compared


def measure(method: Method, task: Task, tokenizer: Any, parsed: bool) -> dict[str, Any]:
    """One call: what came out, and how long it took."""
    begin = time.perf_counter()
    middle = method(task)
    seconds = time.perf_counter() - begin
    beyond = middle.encode()[len(task.middle.encode()) :].decode("utf-8", "ignore")
    true, found = task.middle + task.suffix, middle + task.suffix
    return {
        "seconds": seconds,
        "match": middle == task.middle,
        "next_3": found[:3] == true[:3],
        "parses": parses(task.whole(middle)) if parsed else None,
        "past": len(tokenizer(beyond, add_special_tokens=False)["input_ids"]),
    }


def parses(text: str) -> bool:
    """Whether a text is Python."""
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


class Bench:
    """The methods, on one model; of a process that has one."""

    def __init__(self, name: str, threads: int) -> None:
        if threads:
            torch.set_num_threads(threads)
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self.tokenizer = AutoTokenizer.from_pretrained(name)
        model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32).eval()
        self.methods = methods(model, self.tokenizer, load(name))

    def results(self, task: Task) -> dict[str, dict[str, Any]]:
        """What each method makes of a task: one after the other, so that all see the same load."""
        parsed = parses(task.whole(task.middle))
        return {
            name: measure(method, task, self.tokenizer, parsed)
            for name, method in self.methods.items()
        }


_here: list[Bench] = []


def begin(name: str, threads: int) -> None:
    """Load the model, in a process that measures."""
    _here.append(Bench(name, threads))


def results_here(task: Task) -> dict[str, dict[str, Any]]:
    """The results of a task in this process."""
    return _here[0].results(task)


def share(results: list[dict[str, Any]], name: str) -> tuple[float, float, float]:
    """A share and its Wilson interval: one of none or of all has a width too."""
    known = [bool(result[name]) for result in results if result[name] is not None]
    if not known:
        return math.nan, math.nan, math.nan
    n, found, z = len(known), statistics.mean(known), 1.96
    middle = (found + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(found * (1 - found) / n + z * z / (4 * n * n))
    return found, max(0.0, middle - half), min(1.0, middle + half)


def mean(values: list[float]) -> tuple[float, float]:
    """A mean, and half the width of its interval."""
    if len(values) < 2:
        return (values[0] if values else math.nan), math.nan
    return statistics.mean(values), 1.96 * statistics.stdev(values) / math.sqrt(len(values))


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The numbers of one method, with their intervals."""
    row: dict[str, Any] = {name: share(results, name) for name in SHARES}
    row["past"] = mean([result["past"] for result in results])
    row["median_seconds"] = statistics.median(result["seconds"] for result in results)
    return row


def differences(results: list[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """How much better each method is than the plain one of its order, by pairs."""
    pairs = [(name, f"{name.split(',')[0]}, plain") for name in results[0]]
    pairs = [("SPM, plain", "PSM, plain"), *(pair for pair in pairs if pair[0] != pair[1])]
    found = {}
    for one, other in pairs:
        row = {}
        for name in (*SHARES, "past"):
            both = [(task[one][name], task[other][name]) for task in results]
            row[name] = mean([float(a) - float(b) for a, b in both if None not in (a, b)])
        found[f"{one} − {other}"] = row
    return found


def table(rows: dict[str, dict[str, Any]], title: str) -> Table:
    """The rows of one set of tasks."""
    out = Table(title=title, title_justify="left")
    out.add_column("method")
    for name in ("match", "next 3", "parses", "past", "s/call"):
        out.add_column(name, justify="right")
    for name, row in rows.items():
        shares = [
            f"{row[key][0]:.1%} [{100 * row[key][1]:.1f}, {100 * row[key][2]:.1f}]"
            for key in SHARES
        ]
        past, half = row["past"]
        out.add_row(name, *shares, f"{past:.1f} ± {half:.1f}", f"{row['median_seconds']:.3f}")
    return out


def difference_table(rows: dict[str, dict[str, Any]]) -> Table:
    """The differences of one set of tasks, in percentage points and tokens."""
    out = Table()
    out.add_column("difference")
    for name in ("match", "next 3", "parses", "past"):
        out.add_column(name, justify="right")
    for name, row in rows.items():
        shares = [f"{100 * row[key][0]:+.1f} ± {100 * row[key][1]:.1f}" for key in SHARES]
        out.add_row(name, *shares, f"{row['past'][0]:+.1f} ± {row['past'][1]:.1f}")
    return out


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default=EMBEDDED, help="folder or name on the hub")
    parser.add_argument("--tasks", type=int, default=400, help="of each table, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1, help="that measure side by side")
    parser.add_argument("--threads", type=int, default=0, help="0: as many as torch likes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    sets = {
        "spans at random characters": list(spans(tokenizer, args.tasks, args.seed, False)),
        "the same at token boundaries": list(spans(tokenizer, args.tasks, args.seed, True)),
    }
    if HUMANEVAL.exists():
        sets["HumanEval, random spans"] = human_eval()[: args.tasks]
    else:
        print("HumanEval's spans are not here: CHARWISE_DATA names no folder that has them.")
    threads = args.threads or (1 if args.processes > 1 else 0)
    facts: dict[str, Any] = {}
    with ProcessPoolExecutor(
        args.processes, get_context("spawn"), begin, (args.model, threads)
    ) as pool:
        for title, tasks in sets.items():
            results = list(pool.map(results_here, tasks))
            rows = {name: summary([task[name] for task in results]) for name in results[0]}
            pairs = differences(results)
            screen = Console(width=110)
            screen.print(table(rows, f"{len(tasks)} tasks, {title}"), difference_table(pairs))
            facts[title] = {"tasks": len(tasks), "methods": rows, "differences": pairs}
    if args.json:
        args.json.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
