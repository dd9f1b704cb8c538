"""Clients of a completion server in a closed loop: how long an answer takes.

    python benchmarks/serve.py [--clients 1,8,32] [--seconds 60] [--json FILE]

Each client asks for the rest of a line of a module that the model never saw, and asks again, after
one more character, as soon as it is answered.
"""

from __future__ import annotations

import asyncio
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

import texts
from harness import arguments, finish, table

#: Bytes of a text that is there before a client begins.
BEFORE = 1200

COLUMNS = ("clients", "requests", "refused", "median", "p95", "p99", "MiB")


async def repeat(url: str, number: int, seconds: float, times: list[float]) -> int:
    """One client: its milliseconds for each answer, and how many requests were refused."""
    modules, refused = list(texts.modules()), 0
    text = modules[number % len(modules)].decode()[37 * number :]
    end = time.perf_counter() + seconds
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        for at in range(BEFORE, len(text)):
            started = time.perf_counter()
            if started > end:
                break
            body = {"prompt": text[:at], "suffix": "\n", "max_tokens": 32, "until": "line"}
            answer = await client.post("/v1/completions", json=body)
            if answer.status_code == 429:
                refused += 1
                continue
            answer.raise_for_status()
            times.append(1000 * (time.perf_counter() - started))
    return refused


@contextmanager
def server(*options: str) -> Iterator[str]:
    """The address of a server of its own."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    command = [sys.executable, "-m", "charwise", "serve", "--port", str(port), *options]
    process = subprocess.Popen([*command, "--max-queue", "256"])
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            try:
                httpx.get(url + "/health", timeout=5)
                break
            except httpx.TransportError:
                if process.poll() is not None:
                    raise
                time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait()


def row(url: str, clients: int, seconds: float) -> list[int]:
    """A row of the table: all clients, side by side."""
    times = list[float]()

    async def ask_all() -> list[int]:
        return await asyncio.gather(*(repeat(url, n, seconds, times) for n in range(clients)))

    refused = sum(asyncio.run(ask_all()))
    ranks, metrics = sorted(times), httpx.get(url + "/metrics").text
    [memory] = re.findall(r"^process_resident_memory_bytes (\S+)$", metrics, re.MULTILINE)
    quantiles = [ranks[min(len(ranks) - 1, n * len(ranks) // 100)] for n in (95, 99)]
    values = [len(times), refused, statistics.median(ranks), *quantiles, float(memory) / 2**20]
    return [round(value) for value in values]


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--clients", default="1,8,32")
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    rows = {}
    for clients in args.clients.split(","):
        with server() as url:
            rows[clients] = row(url, int(clients), args.seconds)
    finish(args, [table(f"{args.seconds:g} seconds, times in ms", COLUMNS, rows)], rows)


if __name__ == "__main__":
    main()
