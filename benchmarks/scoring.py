"""Known text: error, contexts, calls and speed of each preset, before and after.

    python benchmarks/scoring.py [--half choosing] [--quick] [--json FILE]

Errors are against the references of `references.py`: the mean Jensen-Shannon distance of the
distributions of the next byte (JS), and the mean |Δ log p| in nats a byte. Contexts are a byte,
calls are 400 bytes' worth. Speeds are bytes for each second of processor time with one thread,
both versions in turns; a teacher-forced pass over the canonical tokens stands beside them.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np

import texts
from harness import (
    PRESETS,
    Versions,
    arguments,
    finish,
    lm_of,
    median_of_turns,
    plain_pass,
    seconds,
    table,
    versions,
)
from references import difference, reference, scored, selected
from texts import Passage

#: Bytes of a long text.
LONG = 3000

Row = dict[str, Any]


def measure(both: Versions, passage: Passage) -> list[Row]:
    """A row for each version and preset: errors and costs on one passage."""
    true, rows = reference(both, passage), list[Row]()
    for preset in PRESETS:
        for version, found in both.kept(scored, passage, preset).items():
            row: Row = {"passage": passage.name, "kind": passage.kind, "preset": preset}
            row |= {"version": version, **difference(found, true)._asdict()}
            size = len(passage.text)
            row |= {"contexts": int(found["contexts"]) / size, "reference": str(true["by"])}
            row |= {"calls": int(found["calls"]) * 400 / size, "bytes": size}
            rows.append(row)
    return rows


def speeds(passage: Passage) -> dict[str, float]:
    """Bytes a second of each preset and of a plain pass; long texts go without `fast`."""
    lm, size = lm_of(passage.model), len(passage.text)
    plain, _ = plain_pass(lm, passage.text)
    plain()
    found = {"plain": size / seconds(plain)}
    for preset in PRESETS if size < LONG else PRESETS[1:]:
        found[preset] = size / seconds(partial(lm.score, passage.text, preset=preset))
    return found


def speed_texts(quick: bool) -> list[Passage]:
    """An easy text, and code and English of 400 bytes and of 3,000."""
    sources = {"code": texts.hard_text(23000)[20000:], "English": texts.english(3000)}
    found = [
        Passage("embedded", f"{what}, {size} bytes", "speed", text[:size])
        for what, text in sources.items()
        for size in ((400,) if quick else (400, LONG))
        if text
    ]
    return [*texts.passages("judging", ["easy"])[:1], *found]


def means(rows: list[Row]) -> list[list[str]]:
    """A line for each kind and preset: means over passages, before and after."""
    lines = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        for preset in PRESETS:
            line = [kind, preset]
            for key, digits in (("js", 4), ("nats", 4), ("contexts", 2), ("calls", 0)):
                for version in ("before", "after"):
                    line.append(f"{mean(rows, key, kind, preset, version):.{digits}f}")
            lines.append(line)
    return lines


def mean(rows: list[Row], key: str, kind: str, preset: str, version: str) -> float:
    """The mean of a figure over the passages of a kind."""
    wanted = (kind, preset, version)
    return float(
        np.mean([r[key] for r in rows if (r["kind"], r["preset"], r["version"]) == wanted])
    )


def ratios(fast: dict[str, Any]) -> list[list[str]]:
    """A line for each text and preset: bytes a second, after by before, and after by plain."""
    lines = []
    for name, found in fast.items():
        for what in found["after"]:
            before, after = found["before"][what], found["after"][what]
            ratio = f"{after / before:.2f}"
            plain = f"{after / found['after']['plain']:.3f}"
            lines.append([name, what, f"{before:,.0f}", f"{after:,.0f}", ratio, plain])
    return lines


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--half", default="judging", choices=["choosing", "judging"])
    parser.add_argument("--kinds", nargs="*", default=["code", "easy", "far", "other"])
    parser.add_argument("--repeat", type=int, help="rounds of timing")
    parser.add_argument("--no-speed", action="store_true", help="errors and costs only")
    args, started = parser.parse_args(), time.perf_counter()
    rows, fast = list[Row](), {}
    with versions(args) as both:
        for passage in selected(args.half, args.quick, *args.kinds):
            rows += measure(both, passage)
        for passage in [] if args.no_speed else speed_texts(args.quick):
            repeat = args.repeat or (1 if len(passage.text) >= LONG else 2 if args.quick else 4)
            runs = [both.in_turns(speeds, passage) for _ in range(repeat)]
            fast[passage.name] = median_of_turns(runs)
    title = f"Means over the passages of the half {args.half}"
    what = ("JS", "nats", "contexts", "calls")
    pairs = [f"{name}, {version}" for name in what for version in ("before", "after")]
    tables = [table(title, ["kind", "preset", *pairs], means(rows))]
    if fast:
        columns = ["text", "preset", "before, bytes/s", "after, bytes/s", "× before", "× plain"]
        tables.append(table("Speed", columns, ratios(fast)))
    finish(args, tables, {"rows": rows, "speeds": fast}, started)


if __name__ == "__main__":
    main()
