"""Many short texts: one by one with `CharLM.score`, and together with `CharLM.scores`.

    python benchmarks/packing.py [--lines 200] [--repeat 5]

The texts are lines of code that the embedded model never saw, of 20 characters and more.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import charwise
import texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=5, help="runs whose median is taken")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    lm = charwise.load()
    lines = [line for line in texts.hard_text(10**6).splitlines() if len(line) >= 20][: args.lines]
    size = sum(map(len, lines))
    rows = []
    for preset in ("fast", "default"):
        alone, together = [], []
        for _ in range(args.repeat):
            started = time.perf_counter()
            one = [lm.score(line, preset=preset) for line in lines]
            alone.append(time.perf_counter() - started)
            started = time.perf_counter()
            many = lm.scores(lines, preset=preset)
            together.append(time.perf_counter() - started)
        pairs = zip(one, many, strict=True)
        difference = max(float(np.abs(a.logprobs - b.logprobs).max()) for a, b in pairs)
        rows.append(
            {
                "preset": preset,
                "one by one, texts/s": len(lines) / statistics.median(alone),
                "together, texts/s": len(lines) / statistics.median(together),
                "ratio": statistics.median(alone) / statistics.median(together),
                "largest difference, nats": difference,
            }
        )
    table = Table(*rows[0], title=f"{len(lines)} lines, {size:,} bytes")
    for row in rows:
        table.add_row(*(v if isinstance(v, str) else f"{v:,.3g}" for v in row.values()))
    Console(width=110).print(table)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
