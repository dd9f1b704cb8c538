"""How fast teacher tables are written, how large they are, and what rounding loses of them.

    python benchmarks/export.py --bytes 4000

Bytes of text by seconds of the processor, beside those of a score of the same text at the same
effort; bytes on the disk by byte of text; and KL(computed ‖ stored and renormalised), in bits.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import charwise
from charwise.tables.jobs import Job
from charwise.tables.output import Output
from charwise.tables.sources import Source
from charwise.tables.teacher import Teacher, rounded
from charwise.tables.writers import shards
from texts import easy_text, hard_text, tinystories

PRESETS = ("fast", "default")

#: Symbols kept, and the type of their numbers.
KEPT: tuple[tuple[int | None, Any], ...] = (
    (None, "float16"),
    (None, "float32"),
    (16, "float16"),
    (64, "float16"),
)


def written(lm: charwise.CharLM, text: bytes, teacher: Teacher) -> tuple[float, int]:
    """Seconds of the processor for a teacher table of a text, and its bytes on the disk."""
    job = Job((Source("-", text),), measure=teacher)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "teacher"
        format = shards(teacher.metadata(lm, "", None))
        rows = job.survey().rows
        started = time.process_time()
        with Output(out, teacher.fields(), {}, rows, format=format) as output:
            for chunk in job.scored(lm):
                output.append(chunk.outcomes, chunk.size)
            output.finish()
        seconds = time.process_time() - started
        return seconds, sum(path.stat().st_size for path in out.iterdir())


def lost(rows: np.ndarray, top: int | None, floats: Any) -> np.ndarray:
    """KL(computed ‖ stored) of each distribution, bits; with `top`, of the top and the rest."""
    found = rounded(rows, top, floats)
    logs, true = found["logprobs"].astype(np.float64), rows
    if top is not None:
        symbols = found["symbols"].astype(np.int64)
        logs = np.column_stack([logs, found["rest"].astype(np.float64)])
        others = rows.copy()
        np.put_along_axis(others, symbols, 0.0, axis=1)
        true = np.column_stack([np.take_along_axis(rows, symbols, axis=1), others.sum(axis=1)])
    some = true > 0
    log_true = np.log(true, out=np.zeros_like(true), where=some)
    off = np.where(some, logs, log_true) - log_true
    # log Σ p e^off − Σ p off, without cancellation: off is small.
    mean = (true * off).sum(axis=1, keepdims=True)
    return np.asarray(np.log1p((true * np.expm1(off - mean)).sum(axis=1)) / math.log(2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=4000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    embedded = charwise.load(device="cpu")
    works = {"embedded, code": (embedded, hard_text(options.bytes))}
    stories = tinystories()
    if stories is not None:
        works["tinystories-3m, stories"] = (stories, easy_text(stories, options.bytes))
    rates = Table("model, text", "effort", "score, bytes/s", "export, bytes/s", "ratio")
    sizes = Table("model, text", "kept", "bytes a byte", "KL, mean, bits", "KL, largest")
    out: list[dict[str, Any]] = []
    for name, (lm, text) in works.items():
        for preset in PRESETS:
            lm.score(text[:200], preset=preset)
            started = time.process_time()
            lm.score(text, preset=preset)
            score = time.process_time() - started
            export, _ = written(lm, text, Teacher(preset=preset))
            speeds = (len(text) / score, len(text) / export)
            rates.add_row(name, preset, *(f"{s:,.0f}" for s in speeds), f"{export / score:.2f}")
            out.append({"work": name, "preset": preset, "score": speeds[0], "export": speeds[1]})
        rows = Teacher(preset="fast")
        from charwise.tables.rows import Place, Stimulus

        [one] = rows._scores(lm, [Stimulus(Place("-", 1), text)])
        assert one.distributions is not None
        for top, floats in KEPT:
            _, size = written(lm, text, Teacher(top=top, floats=floats, preset="fast"))
            kl = lost(one.distributions, top, floats)
            kept = f"{'all 257' if top is None else f'top {top}'}, {floats}"
            cells = (f"{size / len(text):.0f}", f"{kl.mean():.1e}", f"{kl.max():.1e}")
            sizes.add_row(name, kept, *cells)
            out.append({"work": name, "kept": kept, "size": size / len(text), "kl": kl.mean()})
    for table in (rates, sizes):
        Console(width=120).print(table)
    if options.json is not None:
        options.json.write_text(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
