"""Where the time of scoring and of `next` goes: the model, the masses, the sums, the choices.

    python benchmarks/where.py

Processor time, medians of several runs; the parts are timed around each call, in runs of their
own, in turns with those of the whole. `floor` is the time of as many contexts at the price that
they have in one teacher-forced pass.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import charwise
import texts
from charwise.engines.transformers import TransformersLM, TransformersTree
from charwise.evaluation.methods import walk_canonical
from charwise.known_text.batches import Batches
from charwise.known_text.candidates import Candidates
from charwise.known_text.effort import PRESETS, Effort
from charwise.known_text.lattice import Lattice
from charwise.known_text.ranges import KnownText
from charwise.known_text.repeats import Repeats
from settings import timed

#: What is timed, by the column that it counts for. None of these calls another.
PARTS: dict[str, list[tuple[type, str]]] = {
    "model": [(TransformersLM, "tree"), (TransformersTree, "extend")],
    "log-softmax": [(TransformersTree, "logprobs")],
    "masses": [(KnownText, "starting"), (KnownText, "edges")],
    "sums": [(Lattice, "sum"), (Candidates, "wanted")],
    "choices": [(Batches, "plan"), (Repeats, "branches")],
}

#: Reaches the distance of a beam of width 4 on the easy text; see frontier.py.
AT_K4 = Effort(1e-6, 0.885, 32, first=1e-9)


@contextmanager
def divided(seconds: dict[str, float]) -> Iterator[None]:
    """Adds up the time spent in each part."""
    originals = [
        (owner, name, getattr(owner, name)) for part in PARTS.values() for owner, name in part
    ]

    def around(part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            started = time.process_time()
            try:
                return call(*args, **options)
            finally:
                seconds[part] += time.process_time() - started

        return run

    for part, members in PARTS.items():
        for owner, name in members:
            setattr(owner, name, around(part, getattr(owner, name)))
    try:
        yield
    finally:
        for owner, name, call in originals:
            setattr(owner, name, call)


def measure(run: Callable[[], Any], repeat: int) -> dict[str, float]:
    """Milliseconds of the whole, and of its parts."""
    run()
    spans, parts = list[float](), list[dict[str, float]]()
    for _ in range(repeat):
        spans.append(timed(run, 1).cpu)
        seconds: dict[str, float] = defaultdict(float)
        with divided(seconds):
            run()
        parts.append(seconds)
    found = {"whole": statistics.median(spans)}
    found |= {part: statistics.median(each[part] for each in parts) for part in PARTS}
    found["rest"] = found["whole"] - sum(found[part] for part in PARTS)
    return {name: 1000 * seconds for name, seconds in found.items()}


def scoring(lm: charwise.CharLM, text: bytes, effort: Effort, repeat: int) -> dict[str, float]:
    """A row for `score`."""
    score = lm.score(text, preset=effort)
    plain = timed(lambda: walk_canonical(lm, text), repeat).cpu
    price = plain / walk_canonical(lm, text).contexts
    row = measure(lambda: lm.score(text, preset=effort), repeat)
    return row | {
        "contexts": score.contexts,
        "calls": score.calls,
        "floor": 1000 * price * score.contexts,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, default=1000, help="length of the texts")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    lm, text = charwise.load(), texts.hard_text(args.bytes)
    rows = {
        f"hard, {name}": scoring(lm, text, PRESETS[name], args.repeat)
        for name in ("fast", "default", "accurate")
    }
    stories = texts.tinystories()
    if stories is not None:
        easy = texts.easy_text(stories, args.bytes)
        rows["easy, fast"] = scoring(stories, easy, PRESETS["fast"], args.repeat)
        rows["easy, at K=4"] = scoring(stories, easy, AT_K4, args.repeat)
    prompt = texts.hard_text(1500)
    tree = lm.state(prompt).shared.evaluated.tree
    rows["next, 1,500 bytes"] = measure(lambda: lm.next(prompt), args.repeat) | {
        "contexts": tree.contexts,
        "calls": tree.calls,
    }
    columns = ["whole", *PARTS, "rest", "floor", "contexts", "calls"]
    table = Table("milliseconds", *columns)
    for name, row in rows.items():
        cells = [f"{row[key]:,.0f}" if key in row else "" for key in columns]
        table.add_row(name, *cells)
    Console(width=110).print(table)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
