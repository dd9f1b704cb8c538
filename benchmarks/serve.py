"""Clients of a completion server in a closed loop: how long an answer takes.

    python benchmarks/serve.py [--clients 1,8,32,64] [--seconds 45] [--requests N]
    python benchmarks/serve.py --before http://localhost:8000 [--tokens 64]

Each client asks for the rest of a line of a module that the model never saw, and asks again, after
one more character, as soon as it is answered, N times at most. `--before` compares a server of
another kind with the gateway before it, in turns, by completions of so many tokens.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np

import texts
from harness import arguments, finish, table

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from listening import started

#: Bytes of a text that is there before a client begins.
BEFORE = 1200

COLUMNS = ("clients", "requests", "a second", "refused", "median", "p95", "p99", "MiB")
BEFORE_COLUMNS = ("clients", "tokens/s", "gateway's", "share", "median", "gateway's", "added")

Body = dict[str, Any]


async def repeat(
    url: str, number: int, seconds: float, body: Body, most: int = 100_000
) -> list[tuple[float, Body]]:
    """One client: the milliseconds of each answer, and the answer; an empty one is a refusal."""
    modules, answers = list(texts.modules()), list[tuple[float, Body]]()
    text = modules[number % len(modules)].decode()[37 * number :]
    end = time.perf_counter() + seconds
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        for at in range(BEFORE, min(len(text), BEFORE + most)):
            started = time.perf_counter()
            if started > end:
                break
            answer = await client.post("/v1/completions", json={"prompt": text[:at], **body})
            if answer.status_code != 429:
                answer.raise_for_status()
            milliseconds = 1000 * (time.perf_counter() - started)
            answers.append((milliseconds, answer.json() if answer.is_success else {}))
    return answers


def ask(url: str, clients: int, *limits: Any) -> list[tuple[float, Body]]:
    """The answers to all clients, side by side."""

    async def ask_all() -> list[list[tuple[float, Body]]]:
        return await asyncio.gather(*(repeat(url, n, *limits) for n in range(clients)))

    return [answer for each in asyncio.run(ask_all()) for answer in each]


def server(*command: str) -> Any:
    """The address of a server of its own, in a `with` block."""
    return started([sys.executable, "-m", "charwise", *command, "--port", "PORT"])


def row(url: str, clients: int, seconds: float, most: int) -> list[int]:
    """A row of the table: the answers of our server."""
    body = {"suffix": "\n", "max_tokens": 32, "until": "line"}
    answers = ask(url, clients, seconds, body, most)
    times, metrics = [ms for ms, answer in answers if answer], httpx.get(url + "/metrics").text
    [memory] = re.findall(r"^process_resident_memory_bytes (\S+)$", metrics, re.MULTILINE)
    rate = len(times) / max(seconds, sum(times) / 1000 / clients)  # the last answers may come late
    values = [len(times), rate, len(answers) - len(times), *np.quantile(times, [0.5, 0.95, 0.99])]
    return [round(value) for value in [*values, float(memory) / 2**20]]


def row_before(urls: list[str], clients: int, seconds: float, body: Body) -> list[float]:
    """A row of the table: a server, and the gateway before it, in six turns."""
    answers: list[list[tuple[float, Body]]] = [[], []]
    ask(urls[0], clients, 0.01, body)  # then the server's cache has the prompts
    for turn in range(6):
        answers[turn % 2] += ask(urls[turn % 2], clients, seconds / 6, body)
    rates, medians = list[float](), list[float]()
    for some in answers:
        tokens = sum(each["usage"]["completion_tokens"] for _, each in some)
        times = [milliseconds for milliseconds, _ in some]
        # Turns end with their last answer: the clients' own time is what tokens are counted by.
        rates.append(tokens / (sum(times) / 1000 / clients))
        medians.append(statistics.median(times))
    return [*rates, rates[1] / rates[0], *medians, medians[1] - medians[0]]


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--clients", default="1,8,32,64")
    parser.add_argument("--seconds", type=float, default=45.0)
    parser.add_argument("--requests", type=int, default=100_000, help="of each client")
    parser.add_argument("--before", help="the address of a server, with a gateway before it")
    parser.add_argument("--tokens", type=int, default=64, help="of a completion, with --before")
    args = parser.parse_args()
    rows = dict[str, list[Any]]()
    title = f"{args.seconds:g} seconds, times in ms"
    if args.before:
        model = httpx.get(args.before + "/v1/models").json()["data"][0]["id"]
        body = {"model": model, "max_tokens": args.tokens, "temperature": 0, "ignore_eos": True}
        with server("gateway", args.before) as url:
            for clients in args.clients.split(","):
                rows[clients] = row_before([args.before, url], int(clients), args.seconds, body)
        finish(table(title, BEFORE_COLUMNS, rows))
        return
    for clients in args.clients.split(","):
        with server("serve", "--max-queue", "256") as url:
            rows[clients] = row(url, int(clients), args.seconds, args.requests)
    finish(table(title, COLUMNS, rows))


if __name__ == "__main__":
    main()
