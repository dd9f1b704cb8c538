"""What the benchmarks share: options, models, times and tables."""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

import charwise
import texts

BUILD = Path(__file__).parents[1] / "build" / "benchmarks"


def arguments(doc: str, model: str | None = None) -> argparse.ArgumentParser:
    """The options that every script has, and that for the model; torch gets one thread."""
    torch.set_num_threads(1)  # others would be counted while they wait
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer texts and runs")
    parser.add_argument("--json", type=Path, help="write the tables and figures here too")
    if model is not None:
        parser.add_argument("--model", default=model, choices=texts.MODELS)
    return parser


@cache
def lm_of(model: str) -> charwise.CharLM:
    """A model by its name in `texts`, loaded once in each process."""
    folder = texts.folder_of(model)
    if folder is None:
        sys.exit(f"The model {model!r} is missing: run `make {model}`, or set CHARWISE_DATA.")
    return charwise.load(folder, device="cpu")


def seconds(run: Callable[[], Any]) -> float:
    """Seconds of one call: of the processor, as the machine may be shared."""
    started = time.process_time()
    run()
    return time.process_time() - started


def median(run: Callable[[], Any], count: int = 3) -> float:
    """The median time of some runs, seconds."""
    return statistics.median(seconds(run) for _ in range(count))


Rows = Mapping[str, Sequence[Any]]


def table(title: str, columns: Sequence[str], rows: Rows, form: str = ".3g") -> str:
    """A table in Markdown under its title; a row may lack cells at its end."""
    lines = [[*columns], ["---"] * len(columns)]
    for name, values in rows.items():
        cells = [format(x, form) if isinstance(x, float) else str(x) for x in values]
        lines.append([name, *cells, *[""] * (len(columns) - 1 - len(cells))])
    return f"**{title}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def finish(args: argparse.Namespace, tables: Sequence[str], figures: Any) -> None:
    """Print the tables; write them to `--json` too, with the figures and the machine."""
    print("\n".join(tables))
    print(f"{time.process_time():.0f} seconds of the processor", file=sys.stderr)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        record = {"machine": machine(), "tables": list(tables), "figures": figures}
        args.json.write_text(json.dumps(record, indent=1))


def machine() -> str:
    """Cores, processor and versions."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = re.findall(r"model name\s*: (.*)", info) or ["unknown processor"]
    return f"{os.cpu_count()} cores, {names[0]}, torch {torch.__version__}, one thread"
