"""HumanEval's random spans: transformers in this process, and servers alone and behind charwise.

    python benchmarks/humaneval.py [NAME=ADDRESS ...] [--prompts 164]

Each server has the model of `make smollm2`, and keeps no prompt that it has read. How they are
started, and what the columns are, says docs/benchmarks.md.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import cache, partial
from statistics import fmean, median
from typing import Any

import httpx

import texts
from charwise import heal_generate
from harness import arguments, finish, lm_of, table

#: The text after a prompt, and how many tokens the prompt has.
Method = Callable[[str], tuple[str, int]]


def served(client: httpx.Client, prompt: str) -> tuple[str, int]:
    """By a server, in OpenAI's form."""
    body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "cache_prompt": False}
    answer = client.post("/v1/completions", json=body).raise_for_status().json()
    return str(answer["choices"][0]["text"]), int(answer["usage"]["prompt_tokens"])


@cache
def generated(rule: Any, prompt: str, starts: bool = True) -> tuple[str, int]:
    """By transformers: `rule` is "off" without healing."""
    lm: Any = lm_of("smollm2")
    ids = [*(lm.vocabulary.bos_ids if starts else ()), *lm.vocabulary.encode(prompt.encode())]
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "rule": rule}
    return heal_generate(lm.engine.model, lm.index, ids, **options)[0], len(ids)


def first_line(span: str) -> str:
    """A span up to the end of its first line that is not blank."""
    blank = len(span) - len(span.lstrip("\n"))
    return span[:blank] + span[blank:].split("\n")[0]


def measure(methods: dict[str, Method], tasks: list[dict[str, str]]) -> dict[str, list[Any]]:
    """The row of each method; the methods take turns."""
    rows: dict[str, list[list[float]]] = {name: [] for name in methods}
    for task in tasks:
        prompt, span, times = task["prompt"], task["canonical_solution"], list[float]()
        answers = list[tuple[str, int]]()
        for method in methods.values():
            start = time.perf_counter()
            answers.append(method(prompt))
            times.append(time.perf_counter() - start)
        for row, (text, size), spent in zip(rows.values(), answers, times, strict=True):
            starts = size == generated("auto", prompt)[1]
            right = [text.startswith(start) for start in (span[:1], span[:3], first_line(span))]
            same = text == generated("auto", prompt, starts)[0]
            row.append([same, *right, spent / times[0]])
    columns = {name: list(zip(*row, strict=True)) for name, row in rows.items()}
    return {name: [*map(fmean, c[:-1]), f"{median(c[-1]):.2f}"] for name, c in columns.items()}


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("servers", nargs="*", metavar="NAME=ADDRESS")
    parser.add_argument("--prompts", type=int, default=164, help="how many")
    args = parser.parse_args()
    file = texts.data_folder() / "prompts" / "humaneval_random_span_light.jsonl"
    tasks = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    methods: dict[str, Method] = {"transformers": partial(generated, "off")}
    methods["transformers, `heal_generate`"] = partial(generated, "auto")
    for server in args.servers:
        name, url = server.rsplit("=", 1)
        methods[name] = partial(served, httpx.Client(base_url=url, timeout=300))
    rows = measure(methods, tasks[: 4 if args.quick else args.prompts])
    columns = ["method", "same", "next 1", "next 3", "line", "time"]
    finish(table("HumanEval's random spans", columns, rows, ".1%"))


if __name__ == "__main__":
    main()
