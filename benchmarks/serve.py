"""Writers at a completion server: how long after a key its completion is there.

    python benchmarks/serve.py [--writers 1,8,64] [--seconds 60] [--modes plain,exact] [--json FILE]

Each writer types a held-out module of its own at five characters a second, with pauses after some
words and now and then a deletion, and asks for the rest of the line after every key; the key ends
the request before it. Times are of those that were answered before the next key. Each mode has a
server of its own, one after the other, on the same keys. `--url` asks a server that runs already;
one that does not know `until` needs `--also '{"stop": ["\\n"]}'`.
With `--seconds` above 60, the server's resident memory is told for each minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

import texts

#: Characters a second; of a text that is there before a writer begins.
SPEED, BEFORE = 5.0, 1200


@dataclass
class Seen:
    """What became of the keys of all writers of a run."""

    keys: int = 0
    times: list[float] = field(default_factory=list)
    overtaken: int = 0
    remembered: int = 0
    cut: int = 0
    refused: int = 0
    failed: int = 0
    memory: list[float] = field(default_factory=list)  # MiB, each minute


def keys(text: str, rng: random.Random) -> Iterator[tuple[str, float]]:
    """What is before the cursor after each key, and the seconds until the next one."""
    at = BEFORE
    while at < len(text):
        at += 1
        pause = rng.expovariate(1.0) / SPEED * 0.5 + 0.5 / SPEED
        if text[at - 1] in " (.\n" and rng.random() < 0.2:
            pause += rng.uniform(0.5, 2.0)
        yield text[:at], pause
        if rng.random() < 0.03:
            wrong = rng.randrange(1, 4)
            for size in [*range(1, wrong + 1), *range(wrong - 1, -1, -1)]:
                yield text[:at] + "xyz"[:size], 0.5 / SPEED


async def ask(
    client: httpx.AsyncClient, before: str, after: str, seen: Seen, extra: dict[str, Any]
) -> None:
    """One request, unless it is overtaken."""
    body = {"prompt": before, "suffix": after, "max_tokens": 32, "until": "line"} | extra
    started = time.perf_counter()
    try:
        answer = await client.post("/v1/completions", json=body)
    except asyncio.CancelledError:
        seen.overtaken += 1
        raise
    took = time.perf_counter() - started
    if answer.status_code == 429:
        seen.refused += 1
    elif answer.status_code != 200:
        seen.failed += 1
    else:
        seen.times.append(1000 * took)
        told = answer.json()["choices"][0].get("charwise", {})
        seen.remembered += bool(told.get("from_memory"))
        seen.cut += told.get("finish") == "time"


async def write(url: str, number: int, seconds: float, seen: Seen, extra: dict[str, Any]) -> None:
    """One writer."""
    rng = random.Random(number)
    module = texts.HELD_OUT[number % len(texts.HELD_OUT)]
    folder = Path(statistics.__file__).parent
    text = (folder / f"{module}.py").read_text()
    start = rng.randrange(max(1, len(text) - BEFORE - int(2 * SPEED * seconds)))
    text, after = text[start:], "\n"
    await asyncio.sleep(rng.uniform(0, 1 / SPEED))
    end = time.perf_counter() + seconds
    asking: asyncio.Task[None] | None = None
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        for before, pause in keys(text, rng):
            if time.perf_counter() > end:
                break
            if asking is not None and not asking.done():
                asking.cancel()
            seen.keys += 1
            asking = asyncio.create_task(ask(client, before, after, seen, extra))
            await asyncio.sleep(pause)
        if asking is not None:
            await asyncio.gather(asking, return_exceptions=True)


async def write_all(url: str, writers: int, seconds: float, extra: dict[str, Any]) -> Seen:
    """All writers of a run, side by side."""
    seen = Seen()
    watching = asyncio.create_task(watch(url, seen))
    await asyncio.gather(*(write(url, number, seconds, seen, extra) for number in range(writers)))
    watching.cancel()
    return seen


async def watch(url: str, seen: Seen) -> None:
    """Resident memory, now and at the end of each minute."""
    while True:
        counters = await asyncio.to_thread(told, url)
        seen.memory.append(counters.get("process_resident_memory_bytes", 0) / 2**20)
        await asyncio.sleep(60)


@contextmanager
def served(mode: str, model: str, queue: int) -> Iterator[str]:
    """A server of its own."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    command = [sys.executable, "-m", "charwise", "serve", "--port", str(port), "--mode", mode]
    command += ["--model", model, "--max-queue", str(queue)]
    process = subprocess.Popen(command)
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


def told(url: str) -> dict[str, float]:
    """The server's counters; none where it has none."""
    answer = httpx.get(url + "/metrics", timeout=60)
    if not answer.is_success:
        return {}
    lines = re.findall(r"^(\w+) ([-+.\de]+)$", answer.text, re.MULTILINE)
    return {name: float(value) for name, value in lines}


def run(url: str, writers: int, seconds: float, extra: dict[str, Any]) -> dict[str, Any]:
    """A row of the table."""
    before = told(url)
    seen = asyncio.run(write_all(url, writers, seconds, extra))
    after = told(url)
    times = sorted(seen.times) or [float("nan")]

    def spent(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    return {
        "writers": writers,
        "keys": seen.keys,
        "answered": len(seen.times),
        "median_ms": statistics.median(times),
        "p95_ms": times[min(len(times) - 1, int(0.95 * len(times)))],
        "overtaken": seen.overtaken,
        "remembered": seen.remembered,
        "cut": seen.cut,
        "refused": seen.refused,
        "failed": seen.failed,
        "cpu_ms": 1000 * spent("process_cpu_seconds_total") / max(1, seen.keys),  # a key
        "calls": spent("charwise_model_calls"),
        "shared": spent("charwise_shared_calls"),
        "memory_mb": after.get("process_resident_memory_bytes", 0) / 2**20,
        "grown_mb": spent("process_resident_memory_bytes") / 2**20,
        "minutes": " ".join(f"{megabytes:.0f}" for megabytes in seen.memory),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--modes", default="plain,exact")
    parser.add_argument("--writers", default="1,8,64")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--max-queue", type=int, default=256)
    parser.add_argument("--url", help="of a server that runs; in place of one for each mode")
    parser.add_argument("--also", type=json.loads, default={}, help="more fields of each request")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    counts = [int(count) for count in args.writers.split(",")]
    rows = []
    if args.url:
        rows = [
            {"mode": "there"} | run(args.url, count, args.seconds, args.also) for count in counts
        ]
    else:
        for mode in args.modes.split(","):
            with served(mode, args.model, args.max_queue) as url:
                rows += [
                    {"mode": mode} | run(url, count, args.seconds, args.also) for count in counts
                ]
    table = Table(title=f"{args.seconds:g} seconds of typing")
    for name in rows[0]:
        table.add_column(name, justify="right" if name != "mode" else "left")
    for row in rows:
        table.add_row(
            *(f"{value:.0f}" if isinstance(value, float) else str(value) for value in row.values())
        )
    Console(width=160).print(table)
    plain = {row["writers"]: row for row in rows if row["mode"] == "plain"}
    for row in rows:
        if row["mode"] != "plain" and row["writers"] in plain:
            other = plain[row["writers"]]
            print(
                f"{row['mode']} / plain at {row['writers']} writers: "
                f"median {row['median_ms'] / other['median_ms']:.2f}, "
                f"95th percentile {row['p95_ms'] / other['p95_ms']:.2f}, "
                f"processor time a key {row['cpu_ms'] / other['cpu_ms']:.2f}"
            )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
