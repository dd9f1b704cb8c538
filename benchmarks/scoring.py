"""Twenty passages of known text: error and cost of presets and tolerances, against beams.

    python benchmarks/scoring.py --cache FOLDER [--peer PYTHON] [--json FILE]

The passages are for three models (`held_out.py`). Errors are against beams that prune at
random, 1,024 bundles in all (`references.kept_estimate`), as a beam that drops is too low: the mean
Jensen-Shannon distance of the next-byte distributions, and the mean absolute difference of the
surprisals. Speeds are of scoring alone, in bytes for each second of processor time with one thread,
all in one process. With `--cache`, beams whose speed is not judged are kept on disk, as the
reference is. The peer is genlm-bytes, in an environment of its own (`peer_genlm.py`).
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import charwise
import held_out
import peer_genlm
import references
from charwise.evaluation.methods import walk_beam, walk_canonical
from held_out import Passage
from settings import PRESETS, TOLERANCES, asked, difference, name_of, scored, timed

#: What is shown of every method, and how.
FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "js_distance": ("JS distance, × 1e-4", lambda value: f"{1e4 * value:.3g}"),
    "bits": ("|ΔS|, 1e-3 bits a byte", lambda value: f"{1e3 * value:.3g}"),
    "contexts": ("contexts a byte", lambda value: f"{value:.2f}"),
    "speed": ("bytes for each second of processor time", lambda value: f"{value:,.0f}"),
}

#: Distances below this are those of equal numbers, rounded otherwise.
EQUAL = 1e-6

Row = dict[str, dict[str, float]]  # of a passage: method -> figures


def measure(lm: charwise.CharLM, passage: Passage, args: argparse.Namespace) -> Row:
    """All methods on one passage."""
    text, size, model = passage.text, len(passage.text), references.name_of(passage.model)
    reference = references.kept_estimate(
        lm, model, text[: args.error_bytes], args.reference, args.cache
    )
    runs: dict[str, Callable[[], Any]] = {"plain": partial(walk_canonical, lm, text)}
    row: Row = {"plain": {}}
    for k in args.beams:
        walk = references.kept_beam(lm, model, text, k, args.cache)
        row[f"K={k}"] = {**difference(walk, reference)._asdict(), "contexts": walk.contexts / size}
    runs["K=4"] = partial(walk_beam, lm, text, 4)
    for setting in [*args.presets, *args.tolerances]:
        name, score = name_of(setting), scored(lm, text, setting)
        row[name] = {**difference(score, reference)._asdict(), "contexts": score.contexts / size}
        row[name]["beginning"] = difference(score, reference, args.peer_bytes).js_distance
        runs[name] = partial(lm.score, text, **asked(setting))
    for name, run in runs.items():
        seconds = timed(run, args.repeat)
        row.setdefault(name, {}).update(speed=size / seconds.cpu, by_the_clock=size / seconds.wall)
    if args.peer:
        folder = held_out.folder_of(passage.model) or ""
        row["genlm K=4"] = peer(args.peer, folder, text[: args.peer_bytes], reference)
    return row


def peer(python: str, folder: str, text: bytes, reference: Any) -> dict[str, float]:
    """genlm-bytes at K=4 on the beginning of a passage."""
    found = peer_genlm.run(python, folder, text, k=4)
    away = difference(found.walk, reference, len(text))
    return {
        "beginning": away.js_distance,
        "bits": away.bits,
        "speed": len(text) / found.cpu_seconds,
        "by_the_clock": found.walk.bytes_per_second,
    }


def show(figure: str, rows: dict[str, Row], names: list[str]) -> None:
    """One figure of all methods on all passages, and the medians."""
    title, form = FIGURES[figure]
    methods = [name for name in names if any(figure in row.get(name, {}) for row in rows.values())]
    table = Table("passage", *methods, title=title)
    for passage, row in rows.items():
        cells = [row[name].get(figure) if name in row else None for name in methods]
        table.add_row(passage, *("" if cell is None else form(cell) for cell in cells))
    table.add_section()
    medians = [
        statistics.median(row[name][figure] for row in rows.values() if figure in row[name])
        for name in methods
    ]
    table.add_row("median", *map(form, medians))
    Console(width=140).print(table)


def judged(rows: dict[str, Row]) -> dict[str, str]:
    """What the presets promise, and on how many passages they keep it."""
    found: dict[str, str] = {}
    all_rows = list(rows.values())

    def no_worse(name: str, beam: str) -> str:
        good = sum(
            row[name]["js_distance"] <= max(EQUAL, row[beam]["js_distance"]) for row in all_rows
        )
        return f"{good} of {len(all_rows)}"

    def ratio(figure: str, name: str, other: str) -> float:
        return statistics.median(row[name][figure] / row[other][figure] for row in all_rows)

    if "default" in all_rows[0] and "K=4" in all_rows[0]:
        found["default: distance no more than K=4's"] = no_worse("default", "K=4")
        found["default: × the speed of K=4, median"] = f"{ratio('speed', 'default', 'K=4'):.1f}"
    if "accurate" in all_rows[0] and "K=16" in all_rows[0]:
        found["accurate: distance no more than K=16's"] = no_worse("accurate", "K=16")
        share = ratio("contexts", "accurate", "K=16")
        found["accurate: × the contexts of K=16, median"] = f"{share:.2f}"
    for clock in ("speed", "by_the_clock"):
        gains = [over_peer(row, clock) for row in all_rows if "genlm K=4" in row]
        if gains:
            what = "processor time" if clock == "speed" else "by the clock"
            some = f"reached on {sum(gain > 0 for gain in gains)} of {len(gains)}"
            gain = statistics.median(gains)
            found[f"× genlm's speed at its distance, {what}, median"] = f"{gain:.0f}; {some}"
    return found


def over_peer(row: Row, clock: str) -> float:
    """Of the settings no farther off than the peer, the fastest: × the peer's speed; 0 if none."""
    theirs = row["genlm K=4"]
    speeds = [
        ours[clock]
        for name, ours in row.items()
        if name != "genlm K=4" and ours.get("beginning", 1.0) <= max(EQUAL, theirs["beginning"])
    ]
    return max(speeds, default=0.0) / theirs[clock]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=held_out.MODELS, choices=held_out.MODELS)
    parser.add_argument("--only", nargs="+", help="passages, by the names in the tables")
    parser.add_argument("--bytes", type=int, default=held_out.SIZE, help="of each passage")
    parser.add_argument("--skip", type=int, default=0, help="bytes of each passage, before those")
    parser.add_argument("--error-bytes", type=int, default=held_out.SIZE, help="compared, of those")
    parser.add_argument("--reference", type=int, default=1024, help="bundles of the reference")
    parser.add_argument("--beams", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--presets", nargs="*", default=list(PRESETS))
    parser.add_argument("--tolerances", type=float, nargs="*", default=list(TOLERANCES))
    parser.add_argument("--repeat", type=int, default=3, help="runs whose median is taken")
    parser.add_argument("--cache", type=Path, help="keep the beams in this folder")
    parser.add_argument("--peer", help="python of an environment with genlm-bytes")
    parser.add_argument("--peer-bytes", type=int, default=150, help="bytes that the peer walks")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    lms = held_out.models(args.models)
    rows: dict[str, Row] = {}
    for passage in held_out.after(lms, args.bytes, args.skip):
        if args.only and passage.name not in args.only:
            continue
        rows[passage.name] = measure(lms[passage.model], passage, args)
        Console(stderr=True).print(f"measured {passage.name}")
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1))
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    for figure in FIGURES:
        show(figure, rows, names)
    table = Table("judged", "", title=f"{len(rows)} passages of {args.bytes} bytes")
    for what, value in judged(rows).items():
        table.add_row(what, value)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
