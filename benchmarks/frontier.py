"""Known text: error against speed, for beams, presets and the settings that a paper may vary.

    python benchmarks/frontier.py [--json FILE] [--figure FILE]

What is judged on twenty passages is in `scoring.py`. Here are two texts: *hard*,
held-out code for the embedded model, and *easy*, stories that the TinyStories model wrote itself.
Errors are measured on the first bytes against a beam of width 128: the mean Jensen-Shannon distance
of the next-byte distributions, and the mean absolute difference of the surprisals in bits. Speed is
that of scoring alone, without distributions, in bytes for each second of processor time: the median
of several runs, of fewer where these take long. `× plain` compares with one teacher-forced pass per
window, timed right after. Beams go back to what they dropped when they empty.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import charwise
import texts
from charwise.evaluation.distance import js_distance
from charwise.evaluation.methods import Walk, walk_beam, walk_canonical, walk_rounds
from charwise.known_text.effort import PRESETS, Effort
from settings import timed

Method = Callable[[charwise.CharLM, bytes, bool], Walk]


def beam(k: int, theta: float = 0.0) -> Method:
    return lambda lm, text, rows: walk_beam(lm, text, k, theta, distributions=rows)


def canonical(lm: charwise.CharLM, text: bytes, rows: bool) -> Walk:
    """A teacher-forced pass, which has no distributions."""
    assert not rows
    return walk_canonical(lm, text)


def rounds(effort: Effort) -> Method:
    return lambda lm, text, rows: walk_rounds(lm, text, effort, distributions=rows)


#: Settings that reach the distance of beams on the easy text, where that is very small.
FINE = {
    "hard": [Effort(1e-2, 0.9, first=1e-4)],
    "easy": [
        Effort(1e-6, 0.885, 32, first=1e-9),
        Effort(1e-8, 0.8, 32, first=1e-12),
        Effort(1e-10, 0.6, 32, first=1e-13),
    ],
}


def named(effort: Effort) -> str:
    """The setting, as a table shows it."""
    return f"θ={effort.theta:g} γ={effort.gamma:g} φ={effort.first:g} s={effort.lookahead}"


def methods(case: str, quick: bool) -> dict[str, Method]:
    """Everything on the frontier of a text, by name."""
    found: dict[str, Method] = {
        f"beam K={k}": beam(k) for k in ([4, 16] if quick else [2, 4, 8, 16])
    }
    if not quick:
        found |= {f"beam K={k}": beam(k) for k in (32, 64)}
        found |= {"beam K=16 θ=1e-3": beam(16, 1e-3)}
    found |= {name: rounds(PRESETS[name]) for name in ("fast", "default", "accurate")}
    efforts = list(FINE[case])
    if not quick:
        for theta in (3e-2, 1e-2, 3e-3):
            efforts += [Effort(theta, gamma, first=theta**2) for gamma in (0.5, 0.7, 0.9)]
        efforts += [Effort(1e-2, 0.7, lookahead, first=1e-4) for lookahead in (0, 4)]
        efforts += [Effort(1e-2, 0.7, first=first) for first in (1.0, 1e-3, 1e-6)]
    return found | {named(effort): rounds(effort) for effort in efforts}


def measure(
    case: str, lm: charwise.CharLM, text: bytes, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """One row a method: errors on the first bytes, speed on all that is affordable."""
    sample = text[: args.error_bytes]
    reference = walk_beam(lm, sample, args.reference, distributions=True)

    def speed(method: Method, walked: bytes) -> float:
        return len(walked) / timed(lambda: method(lm, walked, False), args.repeat).cpu

    rows = [
        {
            "method": "teacher-forced",
            "bytes_per_second": speed(canonical, text),
            "times_plain": 1.0,
        }
    ]
    for name, method in track(methods(case, args.quick).items(), "measuring", transient=True):
        walk = method(lm, sample, True)
        fast = speed(method, text if name in ("fast", "default") else sample)
        # Relative to a plain pass right next to it: the machine's speed may drift.
        near = speed(canonical, text)
        rows.append(
            {
                "method": name,
                "js_distance": float(
                    js_distance(walk.distributions, reference.distributions).mean()
                ),
                "surprisal_error": float(
                    np.abs(walk.logprobs - reference.logprobs).mean() / math.log(2)
                ),
                "bits_per_byte": walk.bits_per_byte,
                "contexts_per_byte": walk.contexts / len(sample),
                "calls": walk.calls,
                "bytes_per_second": fast,
                "times_plain": fast / near,
            }
        )
    return rows


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """A table of the rows."""
    columns = {
        "js_distance": ("JS distance", "{:.2e}"),
        "surprisal_error": ("|ΔS| bits", "{:.2e}"),
        "bits_per_byte": ("bits/byte", "{:.4f}"),
        "contexts_per_byte": ("contexts/byte", "{:.2f}"),
        "calls": ("calls", "{}"),
        "bytes_per_second": ("bytes/s", "{:,.0f}"),
        "times_plain": ("× plain", "{:.3f}"),
    }
    table = Table("method", *(name for name, _ in columns.values()), title=title)
    for row in rows:
        cells = [form.format(row[key]) if key in row else "" for key, (_, form) in columns.items()]
        table.add_row(row["method"], *cells)
    Console(width=120).print(table)


def plot(results: dict[str, list[dict[str, Any]]], file: Path) -> None:
    """The frontiers: distance against bytes a second (left) and contexts a byte (right)."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    figure = Figure(figsize=(9.6, 3.6 * len(results)), layout="constrained")
    axes = figure.subplots(len(results), 2, squeeze=False)
    for row, (case, found) in zip(axes, results.items(), strict=True):
        for axis, key in zip(row, ("bytes_per_second", "contexts_per_byte"), strict=True):
            for label, style in (("beam", "o-"), ("rounds", "."), ("preset", "D")):
                points = [
                    (method[key], method["js_distance"], method["method"])
                    for method in found
                    if method.get("js_distance", 0) > 0 and kind(method["method"]) == label
                ]
                axis.plot([x for x, *_ in points], [y for _, y, _ in points], style, label=label)
                for x, y, name in points if label != "rounds" else ():
                    short = name.removeprefix("beam ")
                    axis.annotate(short, (x, y), xytext=(4, 3), textcoords="offset points")
            axis.set(xscale="log", yscale="log", title=case, xlabel=key.replace("_", " "))
            axis.set_ylabel("mean JS distance")
            axis.xaxis.set_minor_formatter(NullFormatter())
            axis.grid(alpha=0.3)
    axes[0][0].legend()
    figure.savefig(file, dpi=110)


def kind(name: str) -> str:
    """What a method of the table is: a beam, a preset, or rounds with a setting of their own."""
    if name.startswith("beam"):
        return "beam" if "θ" not in name else "thinned"
    return "preset" if name in PRESETS else "rounds"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, default=4000, help="length of each text")
    parser.add_argument("--error-bytes", type=int, default=1000, help="bytes compared with K=128")
    parser.add_argument("--reference", type=int, default=128, help="width of the reference beam")
    parser.add_argument("--repeat", type=int, default=5, help="runs whose median is taken")
    parser.add_argument("--quick", action="store_true", help="presets and two beams only")
    parser.add_argument("--only", choices=["hard", "easy"], help="one text only")
    parser.add_argument("--json", type=Path, help="write the rows here too")
    parser.add_argument("--figure", type=Path, help="draw the frontiers here, as png or svg")
    args = parser.parse_args()
    cases: dict[str, tuple[charwise.CharLM, bytes]] = {}
    if args.only != "easy":
        cases["hard"] = (charwise.load(), texts.hard_text(args.bytes))
    stories = texts.tinystories() if args.only != "hard" else None
    if stories is not None:
        cases["easy"] = (stories, texts.easy_text(stories, args.bytes))
    elif args.only != "hard":
        print("The easy text is left out: no tinystories-3m in CHARWISE_DATA.")
    results = {}
    for name, (lm, text) in cases.items():
        rows = measure(name, lm, text, args)
        show(f"{name}: {len(text)} bytes, {len(lm.vocabulary.encode(text))} tokens", rows)
        results[name] = rows
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
    if args.figure:
        plot(results, args.figure)


if __name__ == "__main__":
    main()
