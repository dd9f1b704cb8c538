"""Many short texts: one by one with `CharLM.score`, and together with `CharLM.scores`.

    python benchmarks/packing.py [--quick] [--json FILE]

The texts are lines of code that the embedded model never saw, of 20 bytes and more. Speeds are
texts for each second of processor time with one thread, both versions in turns. *With entropies*
is the time of `scores` with `entropy="byte"`, divided by the time without.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import texts
from harness import arguments, finish, lm_of, median_of_turns, seconds, table, versions


def measure(count: int, preset: str) -> dict[str, float]:
    """Texts a second each way, and the largest difference of a byte, nats."""
    lm = lm_of("embedded")
    code = texts.hard_text(10**6).splitlines()
    lines = [line for line in code if len(line) >= 20][:count]
    one, many, more = list[Any](), list[Any](), list[Any]()
    alone = seconds(lambda: one.extend(lm.score(line, preset=preset) for line in lines))
    together = seconds(lambda: many.extend(lm.scores(lines, preset=preset)))
    richer = seconds(lambda: more.extend(lm.scores(lines, preset=preset, entropy="byte")))
    pairs = zip(one, many, strict=True)
    return {
        "alone": count / alone,
        "together": count / together,
        "ratio": alone / together,
        "entropies": richer / together,
        "difference": max(float(np.abs(a.logprobs - b.logprobs).max()) for a, b in pairs),
    }


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--lines", type=int, help="how many texts")
    args, started = parser.parse_args(), time.perf_counter()
    count, repeat = args.lines or (20 if args.quick else 80), 1 if args.quick else 2
    found, rows = {}, []
    with versions(args) as both:
        for preset in ["default"] if args.quick else ["fast", "default"]:
            both.in_turns(measure, 10, preset)
            runs = [both.in_turns(measure, count, preset) for _ in range(repeat)]
            found[preset] = median_of_turns(runs)
            for version, row in found[preset].items():
                rows.append([preset, version, *(f"{value:.3g}" for value in row.values())])
    columns = [
        "preset",
        "version",
        "one by one, texts/s",
        "together, texts/s",
        "ratio",
        "with entropies",
    ]
    title = f"{count} lines of code"
    tables = [table(title, [*columns, "largest difference, nats"], rows)]
    finish(args, tables, found, started)


if __name__ == "__main__":
    main()
