"""Writers at a completion server: how long after a key its completion is there.

    python benchmarks/serve.py [--writers 1,8,64] [--seconds 60] [--json FILE]
    python benchmarks/serve.py --closed --writers 1,8,32,64 --base 3deeccb

Each writer types a held-out module of its own at five characters a second, with pauses after some
words and now and then a deletion, and asks for the rest of the line after every key; the key ends
the request before it. Times are of those that were answered before the next key.

With --closed, each writer asks again as soon as it is answered, and types one character in between.
The server of --base then runs too, on the same texts, before and after the one of the working tree.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

import texts
from harness import arguments, finish, source_of, table

#: Asks a server for so many seconds, with a number of its own, and counts.
Client = Callable[[str, int, float, Counter[str], list[float]], Coroutine[Any, Any, None]]

#: Characters a second; bytes of a text that is there before a writer begins.
SPEED, BEFORE = 5.0, 1200


def keys(text: str, rng: random.Random) -> Iterator[tuple[str, float]]:
    """What is before the cursor after each key, and the seconds until the next one."""
    for at in range(BEFORE + 1, len(text) + 1):
        pause = rng.expovariate(1.0) / SPEED * 0.5 + 0.5 / SPEED
        if text[at - 1] in " (.\n" and rng.random() < 0.2:
            pause += rng.uniform(0.5, 2.0)
        yield text[:at], pause
        if rng.random() < 0.03:
            wrong = rng.randrange(1, 4)
            for size in [*range(1, wrong + 1), *range(wrong - 1, -1, -1)]:
                yield text[:at] + "xyz"[:size], 0.5 / SPEED


async def ask(client: httpx.AsyncClient, before: str, seen: Counter[str], ms: list[float]) -> None:
    """One request, unless it is overtaken."""
    body = {"prompt": before, "suffix": "\n", "max_tokens": 32, "until": "line"}
    started = time.perf_counter()
    try:
        answer = await client.post("/v1/completions", json=body)
    except asyncio.CancelledError:
        seen["overtaken"] += 1
        raise
    if answer.status_code != 200:
        seen["refused" if answer.status_code == 429 else "failed"] += 1
        return
    ms.append(1000 * (time.perf_counter() - started))
    told = answer.json()["choices"][0].get("charwise", {})
    seen["remembered"] += bool(told.get("from_memory"))
    seen["cut"] += told.get("finish") == "time"


async def write(url: str, number: int, seconds: float, seen: Counter[str], ms: list[float]) -> None:
    """One writer."""
    rng, modules = random.Random(number), list(texts.modules())
    text = modules[number % len(modules)].decode()
    text = text[rng.randrange(max(1, len(text) - BEFORE - int(2 * SPEED * seconds))) :]
    await asyncio.sleep(rng.uniform(0, 1 / SPEED))
    end = time.perf_counter() + seconds
    asking: asyncio.Task[None] | None = None
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        for before, pause in keys(text, rng):
            if time.perf_counter() > end:
                break
            if asking is not None and not asking.done():
                asking.cancel()
            seen["keys"] += 1
            asking = asyncio.create_task(ask(client, before, seen, ms))
            await asyncio.sleep(pause)
        if asking is not None:
            await asyncio.gather(asking, return_exceptions=True)


async def repeat(
    url: str, number: int, seconds: float, seen: Counter[str], ms: list[float]
) -> None:
    """One client in a closed loop: a request, its answer, a character, and the next request."""
    modules = list(texts.modules())
    text = modules[number % len(modules)].decode()[37 * number :]
    end = time.perf_counter() + seconds
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        for at in range(BEFORE, len(text)):
            if time.perf_counter() > end:
                return
            seen["keys"] += 1
            await ask(client, text[:at], seen, ms)


@contextmanager
def served(source: Path | None = None) -> Iterator[str]:
    """A server of its own, of the working tree or of another source."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    command = [sys.executable, "-m", "charwise", "serve", "--port", str(port)]
    path = {} if source is None else {"PYTHONPATH": str(source)}
    process = subprocess.Popen([*command, "--max-queue", "256"], env=os.environ | path)
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


def counters(url: str) -> Counter[str]:
    """The server's."""
    lines = re.findall(r"^(\w+) ([-+.\de]+)$", httpx.get(url + "/metrics").text, re.MULTILINE)
    return Counter({name: float(value) for name, value in lines})  # type: ignore[misc]


def run(url: str, writers: int, seconds: float, client: Client = write) -> dict[str, Any]:
    """A row of the table: all writers, side by side."""
    seen, ms, before = Counter[str](), list[float](), counters(url)

    async def write_all() -> None:
        await asyncio.gather(*(client(url, n, seconds, seen, ms) for n in range(writers)))

    asyncio.run(write_all())
    after, times = counters(url), sorted(ms) or [float("nan")]
    cpu = after["process_cpu_seconds_total"] - before["process_cpu_seconds_total"]
    calls = after["charwise_model_calls"] - before["charwise_model_calls"]
    found = {"writers": writers, "keys": seen["keys"], "answered": len(ms)}
    found |= {name: seen[name] for name in ("overtaken", "remembered", "cut", "refused", "failed")}
    return found | {
        "median ms": round(statistics.median(times)),
        "p95 ms": round(times[min(len(times) - 1, int(0.95 * len(times)))]),
        "p99 ms": round(times[min(len(times) - 1, int(0.99 * len(times)))]),
        "cpu ms a key": round(1000 * cpu / max(1, seen["keys"])),
        "calls": round(calls),
        "memory, MiB": round(after["process_resident_memory_bytes"] / 2**20),
    }


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--writers", default="1,8,64")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--closed", action="store_true", help="ask again after each answer")
    args, started = parser.parse_args(), time.perf_counter()
    sources = {"after": None, "before": source_of(args.base)} if args.closed else {"": None}
    client = repeat if args.closed else write
    rows = []
    for count in map(int, args.writers.split(",")):
        for name, source in sources.items():
            with served(source) as url:
                row = {"version": name} if name else {}
                rows.append(row | run(url, count, args.seconds, client))
    lines = [list(row.values()) for row in rows]
    tables = [table(f"{args.seconds:g} seconds of typing", list(rows[0]), lines)]
    finish(args, tables, rows, started)


if __name__ == "__main__":
    main()
