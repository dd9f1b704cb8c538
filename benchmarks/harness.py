"""Two versions of charwise side by side, each in a process of its own.

`before` is the revision BASE, unpacked from git into build/; `after` is the working tree. A script
sends both of them its own functions:

    with harness.versions(args) as both:
        found = both.together(measure, passage)    # {"before": …, "after": …}, at the same time
        found = both.in_turns(seconds, passage)    # one after the other, for what is timed

The functions must use only the public interface, which both versions have. `both.kept` keeps
arrays in build/ under the digest of the version's source, so that nothing is measured twice.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import io
import json
import os
import pickle
import platform
import re
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import charwise
import texts

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build"

#: The revision that "before" is, where none is named.
BASE = "6354b5a"

PRESETS = ("fast", "default", "accurate")

Arrays = dict[str, Any]


def arguments(doc: str) -> argparse.ArgumentParser:
    """The options that every script has."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--base", default=os.environ.get("BASE", BASE), help="revision of before")
    parser.add_argument("--quick", action="store_true", help="fewer texts and runs")
    parser.add_argument("--json", type=Path, help="write the tables and figures here too")
    return parser


class Version:
    """One version of charwise: its source, and a process that has loaded it."""

    def __init__(self, source: Path) -> None:
        digest = hashlib.sha256()
        for file in sorted((source / "charwise").rglob("*.py")):
            digest.update(file.read_bytes())
        self.digest = digest.hexdigest()
        environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(source)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """The result of a function of a script, called in the version's process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        module = Path(function.__code__.co_filename).stem
        pickle.dump((module, function.__name__, args), self._process.stdin)
        self._process.stdin.flush()
        result, error = pickle.load(self._process.stdout)
        if error:
            raise RuntimeError(f"{module}.{function.__name__}: {error}")
        return result

    def kept(self, function: Callable[..., Arrays], *args: Any) -> Arrays:
        """Named arrays that a function returns: from build/, if they are there."""
        what = f"{self.digest} {function.__name__} {function.__code__.co_code!r} {args!r}"
        name = hashlib.sha256(what.encode()).hexdigest()[:32]
        path = BUILD / "benchmarks" / "kept" / f"{name}.npz"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            half = path.with_suffix(f".{os.getpid()}-{id(self)}.npz")
            np.savez_compressed(half, **self.call(function, *args))
            half.replace(path)
        with np.load(path) as stored:
            return {name: stored[name] for name in stored.files}

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Versions(dict[str, Version]):
    """`before` and `after`."""

    def together(self, function: Callable[..., Any], *args: Any) -> dict[str, Any]:
        """The results of both, at the same time: not for what is timed."""
        return self._both(lambda version: version.call(function, *args))

    def kept(self, function: Callable[..., Arrays], *args: Any) -> dict[str, Arrays]:
        """The arrays of both, from build/ where they are there."""
        return self._both(lambda version: version.kept(function, *args))

    def in_turns(self, function: Callable[..., Any], *args: Any) -> dict[str, Any]:
        """The results of both, one after the other."""
        return {name: version.call(function, *args) for name, version in self.items()}

    def _both(self, call: Callable[[Version], Any]) -> dict[str, Any]:
        with ThreadPoolExecutor(len(self)) as pool:
            return dict(zip(self, pool.map(call, self.values()), strict=True))


@contextmanager
def versions(args: argparse.Namespace) -> Iterator[Versions]:
    """Both versions, in processes that end with the block."""
    both = Versions(before=Version(source_of(args.base)), after=Version(ROOT / "src"))
    try:
        yield both
    finally:
        for version in both.values():
            version.close()


def source_of(revision: str) -> Path:
    """The folder `src` of a revision, unpacked into build/."""
    commit = subprocess.check_output(
        ["git", "rev-parse", f"{revision}^{{commit}}"], cwd=ROOT, text=True
    ).strip()
    folder = BUILD / "benchmarks" / f"base-{commit[:12]}"
    if not folder.exists():
        archive = subprocess.check_output(["git", "archive", commit, "src"], cwd=ROOT)
        half = folder.with_suffix(f".{os.getpid()}")
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(half, filter="data")
        half.rename(folder)
    return folder / "src"


@cache
def lm_of(model: str) -> charwise.CharLM:
    """A model by its name in `texts`, loaded once in each process."""
    return texts.models([model])[model]


def plain_pass(lm: charwise.CharLM, text: bytes) -> tuple[Callable[[], Any], int]:
    """A teacher-forced pass over the canonical tokens, as a call, and how many tokens it has."""
    import torch

    model: Any = lm.engine.model  # type: ignore[attr-defined]
    tokens = [*lm.vocabulary.bos_ids, *lm.vocabulary.encode(text)]
    ids = torch.tensor([tokens], device=model.device)

    @torch.inference_mode()
    def run() -> Any:
        logs = model(ids).logits.log_softmax(-1)
        return logs[0, :-1].gather(1, ids[0, 1:, None])

    return run, len(tokens)


def seconds(run: Callable[[], Any]) -> float:
    """Seconds of one call: of the processor, as the machine may be shared."""
    started = time.process_time()
    run()
    return time.process_time() - started


def median_of_turns(runs: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, Any]]:
    """Medians over rounds: of every figure of `before` and of `after`."""
    return {
        name: {key: statistics.median(run[name][key] for run in runs) for key in runs[0][name]}
        for name in runs[0]
    }


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
        found = {"command": command(), "machine": machine(), "base": args.base}
        found |= {"commit": commit(), "seconds": round(time.perf_counter() - started)}
        found |= {"tables": list(tables), "figures": figures}
        args.json.write_text(json.dumps(found, indent=1))


def command() -> str:
    """The command line, without paths of this machine."""
    words = [word for word in sys.argv[1:] if not word.startswith("--json")]
    words = [word for word in words if not word.endswith(".json")]
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words])


def machine() -> str:
    """Cores, processor and versions."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = re.findall(r"model name\s*: (.*)", info) or [platform.processor()]
    import torch

    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{os.cpu_count()} cores, {names[0]}, {versions}, one thread"


def commit() -> str:
    """The commit of the working tree, with a mark if the source has other changes."""
    found = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True)
    dirty = subprocess.check_output(["git", "status", "--short", "src"], cwd=ROOT, text=True)
    return found.strip() + (", with changes" if dirty else "")


def _serve(source: str) -> None:
    """Answer calls until the input ends. Prints of the functions go to stderr."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    import torch

    torch.set_num_threads(1)
    assert Path(charwise.__file__).is_relative_to(source), (charwise.__file__, source)
    while True:
        try:
            module, name, args = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        result, error = None, ""
        try:
            result = getattr(importlib.import_module(module), name)(*args)
        except Exception as caught:
            error = f"{type(caught).__name__}: {caught}"
        pickle.dump((result, error), answers)
        answers.flush()


if __name__ == "__main__":
    # The functions import this module by its name: keep one copy of it.
    importlib.import_module("harness")._serve(sys.argv[1])
