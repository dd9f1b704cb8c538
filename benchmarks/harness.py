"""What the benchmarks share: options, models, times, tables, and the process of an old version."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import charwise
import texts

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "benchmarks"

#: The revision that "before" is, where none is named.
BASE = "54cfee0"


def arguments(doc: str) -> argparse.ArgumentParser:
    """The options that every script has."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--base", default=os.environ.get("BASE", BASE), help="revision of before")
    parser.add_argument("--quick", action="store_true", help="fewer texts and runs")
    parser.add_argument("--json", type=Path, help="write the tables and figures here too")
    return parser


def source_of(revision: str) -> Path:
    """The folder `src` of a revision, unpacked into build/."""
    commit = subprocess.check_output(
        ["git", "rev-parse", f"{revision}^{{commit}}"], cwd=ROOT, text=True
    ).strip()
    folder = BUILD / f"base-{commit[:12]}"
    if not folder.exists():
        archive = subprocess.check_output(["git", "archive", commit, "src"], cwd=ROOT)
        half = folder.with_suffix(f".{os.getpid()}")
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(half, filter="data")
        half.rename(folder)
    return folder / "src"


def in_version(revision: str | None, words: Sequence[str]) -> Any:
    """The JSON that this script prints with these words, run with the source of a revision."""
    source = ROOT / "src" if revision is None else source_of(revision)
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, sys.argv[0], *words]
    return json.loads(subprocess.run(command, check=True, stdout=-1, env=environment).stdout)


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


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table in Markdown under its title."""
    lines = [[str(cell) for cell in row] for row in (columns, *rows)]
    lines.insert(1, ["---"] * len(columns))
    return f"**{title}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def finish(args: argparse.Namespace, tables: Sequence[str], figures: Any, started: float) -> None:
    """Print the tables; write them to `--json` too, with the figures and the machine."""
    print("\n".join(tables))
    print(f"{time.perf_counter() - started:.0f} seconds", file=sys.stderr)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        record = {"machine": machine(), "tables": list(tables), "figures": figures}
        args.json.write_text(json.dumps(record, indent=1))


def machine() -> str:
    """Cores, processor and versions."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = re.findall(r"model name\s*: (.*)", info) or ["unknown processor"]
    import torch

    return f"{os.cpu_count()} cores, {names[0]}, torch {torch.__version__}, one thread"
