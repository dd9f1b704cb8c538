"""Memory of scoring and of `next`, beyond that of one plain pass.

    python benchmarks/memory.py [--quick] [--json FILE]

Each figure is from a process of its own, after a warm-up on a short text: by how much the peak of
resident memory rises above the level before. It moves by some megabytes from run to run.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import texts
from harness import ROOT, Version, arguments, finish, lm_of, plain_pass, source_of, table

WAYS = ("plain", "default", "next")


def rise(way: str, size: int) -> float:
    """Mebibytes by which the peak rises while one way runs over a text."""
    lm, text = lm_of("embedded"), texts.hard_text(10_000 + size)[10_000:]
    run_of(way, lm, text[:200])()
    run, level = run_of(way, lm, text), resident()
    run()
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return max(0.0, peak - level) / 2**20


def run_of(way: str, lm: Any, text: bytes) -> Callable[[], Any]:
    """A way over a text, as a call."""
    if way == "plain":
        return plain_pass(lm, text)[0]
    if way == "next":
        return lambda: lm.next(text)
    return lambda: lm.score(text, preset=way)


def resident() -> int:
    """Resident memory now, bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--bytes", type=int, default=3000, help="length of the text")
    args, started = parser.parse_args(), time.perf_counter()
    sources = {"before": source_of(args.base), "after": ROOT / "src"}
    found: dict[str, dict[str, float]] = {}
    for way in WAYS:
        for name, source in sources.items():
            rises = []
            for _ in range(1 if args.quick else 3):
                version = Version(source)
                rises.append(version.call(rise, way, args.bytes))
                version.close()
            found.setdefault(way, {})[name] = statistics.median(rises)
    lines = [[way, f"{row['before']:.0f}", f"{row['after']:.0f}"] for way, row in found.items()]
    title = f"Peak of memory over {args.bytes:,} bytes of code, MiB"
    tables = [table(title, ["way", "before", "after"], lines)]
    finish(args, tables, found, started)


if __name__ == "__main__":
    main()
