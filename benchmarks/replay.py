"""Writers at the model's thread, in its own time: what sharing model calls does to their waiting.

    python benchmarks/replay.py [--writers 8,64] [--seconds 20] [--modes plain,exact]
    python benchmarks/replay.py --steps

The keys are those of benchmarks/serve.py, and what answers is what the server runs; but no time
passes save the processor time that the work takes. So a machine that does other things besides
measures the same, as if one processor were free, and HTTP's own part (the same for all) is left
out. With `--together 1` one request is answered after the other. `--steps` times one step of one
token behind prompts of 300 to 650 tokens: a call for each tree, against one call for all.
"""

from __future__ import annotations

import argparse
import random
import statistics
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import charwise
import texts
from charwise.cursor.limit import Limit
from charwise.serve.asked import Asked
from charwise.serve.completions import Completions
from charwise.serve.drawing import advance
from serve import BEFORE, SPEED, keys


@dataclass
class Request:
    """A key whose completion is wanted, until the next."""

    writer: int
    at: float
    text: str
    cancel: threading.Event = field(default_factory=threading.Event)
    steps: Any = None
    drawing: Any = None


def typed(writer: int, seconds: float) -> list[tuple[float, str]]:
    """When a writer has typed what."""
    rng = random.Random(writer)
    module = texts.HELD_OUT[writer % len(texts.HELD_OUT)]
    text = (Path(statistics.__file__).parent / f"{module}.py").read_text()
    start = rng.randrange(max(1, len(text) - BEFORE - int(2 * SPEED * seconds)))
    now, found = rng.uniform(0, 1 / SPEED), []
    for before, pause in keys(text[start:], rng):
        if now > seconds:
            break
        found.append((now, before))
        now += pause
    return found


def replay(
    completions: Completions, mode: Any, writers: int, seconds: float, together: int
) -> dict[str, Any]:
    """A row of the table: the worker's own order, in virtual time."""
    events = deque(sorted((at, w, text) for w in range(writers) for at, text in typed(w, seconds)))
    total, now, busy = len(events), 0.0, 0.0
    waiting, under_way, latest = list[Request](), list[Request](), dict[int, Request]()
    times, remembered, overtaken, calls = list[float](), 0, 0, completions.engine.calls
    while events or waiting or under_way:
        if not waiting and not under_way:
            now = max(now, events[0][0])
        while events and events[0][0] <= now:
            at, writer, text = events.popleft()
            if writer in latest:
                latest[writer].cancel.set()
            latest[writer] = Request(writer, at, text)
            waiting.append(latest[writer])
        begun = time.thread_time()
        running = list[Request]()
        if waiting and len(under_way) < together:
            one = waiting.pop()
            if not one.cancel.is_set():
                asked = Asked(one.text, "\n", mode=mode, max_tokens=32, until="line")
                one.steps = completions.steps(asked, Limit(None, one.cancel))
                running.append(one)
        if under_way:
            advance([one.drawing for one in under_way])
            running += under_way
        under_way, done = [], list[tuple[Request, Any]]()
        for one in running:
            try:
                one.drawing = next(one.steps)
                under_way.append(one)
            except StopIteration as ended:
                done.append((one, ended.value))
            except charwise.errors.CharwiseError:
                overtaken += 1
        spent = time.thread_time() - begun
        now, busy = now + spent, busy + spent
        for one, answer in done:
            nxt = next((at for at, writer, _ in events if writer == one.writer), now + 1)
            if latest[one.writer] is one and nxt > now:
                times.append(1000 * (now - one.at))
                remembered += answer.from_memory
            else:
                overtaken += 1
    times.sort()
    return {
        "mode": mode,
        "writers": writers,
        "together": together,
        "keys": total,
        "answered": len(times),
        "median_ms": statistics.median(times),
        "p95_ms": times[int(0.95 * (len(times) - 1))],
        "remembered": remembered,
        "busy_s": round(busy, 1),
        "calls": completions.engine.calls - calls,
        "kept_mb": completions.size / 2**20,
    }


def steps() -> None:
    """One token after each of several prompts: in a call each, and in one."""
    lm = charwise.load()
    text = (Path(statistics.__file__).parent / "argparse.py").read_text()
    ids, engine = lm.vocabulary.encode(text), lm.engine
    trees = [engine.tree([*lm.vocabulary.bos_ids, *ids[400 * n : 450 * n + 300]]) for n in range(8)]
    for tree in trees:
        tree.extend([(0, 5)])
    print("contexts  a call each, ms  one call, ms  ratio")
    for count in (1, 2, 4, 8):
        alone, joint = list[float](), list[float]()
        for _ in range(30):
            begun = time.thread_time()
            for tree in trees[:count]:
                tree.extend([(0, 7)])
            alone.append(time.thread_time() - begun)
            begun = time.thread_time()
            engine.extend_together([(tree, [(0, 7)]) for tree in trees[:count]])  # type: ignore[attr-defined]
            joint.append(time.thread_time() - begun)
        one, other = 1000 * statistics.median(alone), 1000 * statistics.median(joint)
        print(f"{count:8} {one:16.1f} {other:13.1f} {one / other:6.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modes", default="plain,exact")
    parser.add_argument("--writers", default="8,64")
    parser.add_argument("--together", default="1,8", help="requests that are under way at most")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--steps", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)  # so that the thread's time is all of it
    if args.steps:
        steps()
        return
    rows = []
    for mode in args.modes.split(","):
        for writers in map(int, args.writers.split(",")):
            for together in map(int, args.together.split(",")):
                completions = Completions(charwise.load())
                rows.append(replay(completions, mode, writers, args.seconds, together))
    table = Table(title=f"{args.seconds:g} seconds of typing, in processor time")
    for name in rows[0]:
        table.add_column(name, justify="right" if name != "mode" else "left")
    for row in rows:
        table.add_row(*(f"{v:.0f}" if isinstance(v, float) else str(v) for v in row.values()))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
