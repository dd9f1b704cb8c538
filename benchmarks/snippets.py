"""Pieces of other people's files of many kinds: what presets miss of them in silence.

    python benchmarks/snippets.py [FOLDER …] [--models embedded small] [--each 2] [--json FILE]

From each kind of text file below the folders (by default the environment's own), so many pieces of
150, 300 or 450 bytes, whole lines from their beginning on. What is *short* is how much less
log-probability a preset finds than the best of all that were asked, in nats: what is left out is
missing, so more is nearer to the truth. *silent* are pieces that are short by over 1 nat and three
times what they say, and of which no limit is said; *worst* is the most that such a piece is short.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

import held_out
from charwise import CharLM
from charwise.surprisal.score import Score

#: Suffixes of text files.
# fmt: off
_KINDS = {
    ".asm", ".awk", ".bat", ".c", ".cfg", ".cmake", ".conf", ".css", ".csv", ".cu", ".cuh", ".el",
    ".f90", ".go", ".h", ".hpp", ".html", ".ini", ".jinja", ".js", ".json", ".lark", ".lua", ".m4",
    ".md", ".pl", ".pm", ".po", ".proto", ".ps1", ".pyi", ".pyx", ".rst", ".service", ".sh",
    ".sql", ".svg", ".tcl", ".tex", ".toml", ".ts", ".txt", ".vim", ".xml", ".yaml", ".yml",
}
# fmt: on

_SIZES = (150, 300, 450)

#: Fewest bytes of a piece, and fewest and most of a file.
_LEAST, _FILE = 100, (600, 2_000_000)

_PRESETS = ("fast", "default", "accurate")


class Row(NamedTuple):
    """Sums over all pieces."""

    short: float  # nats
    stated: float  # nats
    contexts: float  # a byte
    silent: int
    worst: float  # nats


def pieces(folders: list[Path], each: int) -> list[bytes]:
    """So many of each kind of file, the same ones while the folders are the same."""
    files: defaultdict[str, list[Path]] = defaultdict(list)
    for folder in folders:
        for place, below, names in os.walk(folder):
            below.sort()
            for name in sorted(names):
                file = Path(place, name)
                if file.suffix in _KINDS and not file.is_symlink():
                    files[file.suffix].append(file)
    rng = random.Random(13)
    found = []
    for kind in sorted(files):
        some = [file for file in files[kind] if _FILE[0] < file.stat().st_size < _FILE[1]]
        for file in rng.sample(some, min(each, len(some))):
            data, size = file.read_bytes(), rng.choice(_SIZES)
            start = data.rfind(b"\n", 0, rng.randrange(max(1, len(data) - size))) + 1
            piece = data[start : start + size]
            if len(piece) >= _LEAST and b"\0" not in piece:
                found.append(piece)
    return found


def measured(lm: CharLM, texts: list[bytes]) -> dict[str, Row]:
    """What each preset misses of the texts."""
    scores: dict[str, list[Score]] = {
        preset: [lm.score(text, preset=preset) for text in texts] for preset in _PRESETS
    }
    best = [
        max(float(score.logprobs.sum()) for score in one)
        for one in zip(*scores.values(), strict=True)
    ]
    rows = {}
    for preset, some in scores.items():
        short = [most - float(score.logprobs.sum()) for most, score in zip(best, some, strict=True)]
        stated = [0.0 if score.error is None else float(score.error.sum()) for score in some]
        silent = [
            off
            for off, said, score in zip(short, stated, some, strict=True)
            if off > max(1.0, 3 * said) and not score.limited
        ]
        contexts = sum(score.contexts for score in some) / sum(map(len, texts))
        rows[preset] = Row(sum(short), sum(stated), contexts, len(silent), max(silent, default=0.0))
    return rows


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folders", nargs="*", type=Path, default=[Path(sys.prefix)])
    parser.add_argument("--models", nargs="+", default=["embedded", "small"])
    parser.add_argument("--each", type=int, default=2, help="pieces of each kind of file")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    texts = pieces(args.folders, args.each)
    title = f"{len(texts)} pieces of {sum(map(len, texts)):,} bytes"
    table = Table(
        "model", "preset", "short", "stated", "contexts/byte", "silent", "worst", title=title
    )
    out = {}
    for model, lm in held_out.models(args.models).items():
        for preset, row in measured(lm, texts).items():
            out[f"{model}, {preset}"] = row._asdict()
            cells = (f"{row.short:.1f}", f"{row.stated:.1f}", f"{row.contexts:.2f}")
            table.add_row(model, preset, *cells, str(row.silent), f"{row.worst:.1f}")
        table.add_section()
    Console(width=110).print(table)
    if args.json:
        args.json.write_text(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
