"""Walks that are kept on disk by what they are of: the model's files, the text, and the width.

    python benchmarks/references.py --cache FOLDER [--widths 128 16]

A beam of width 128 over 400 bytes takes a minute; it is the same beam next time. The command walks
all that `scoring.py` and `calibration.py` compare with, the passages and the provocations.
"""

from __future__ import annotations

import argparse
import hashlib
from functools import cache
from pathlib import Path

import numpy as np
from rich.progress import track

import held_out
from charwise.evaluation.methods import Walk, walk_beam
from charwise.model import CharLM

#: Counts up when the beam itself changes what it says.
_VERSION = "1"

KINDS = ("passages", "provocations")


@cache
def name_of(model: str) -> str:
    """What tells a model of `held_out` from others: a digest of its files, and how it is used."""
    digest = hashlib.sha256()
    for path in sorted(Path(held_out.folder_of(model) or "").iterdir()):
        if path.suffix in {".json", ".safetensors"}:
            digest.update(path.name.encode() + path.read_bytes())
    used = f" × {held_out.PEAK}" if model == held_out.PEAKED else ""
    return digest.hexdigest() + used


def kept_beam(lm: CharLM, model: str, text: bytes, k: int, folder: Path | None) -> Walk:
    """A beam's walk, distributions included, from the folder if it is there; else it is put there.

    Args:
        model: its `name_of`.
        folder: of the kept walks; None keeps nothing.
    """
    if folder is None:
        return walk_beam(lm, text, k, distributions=True)
    name = hashlib.sha256(f"{_VERSION} {model} {k} ".encode() + text).hexdigest()[:32]
    path = folder / f"{name}.npz"
    if path.exists():
        stored = np.load(path)
        counts = (int(stored["contexts"]), int(stored["calls"]), float(stored["seconds"]))
        return Walk(stored["logprobs"], stored["distributions"], *counts)
    walk = walk_beam(lm, text, k, distributions=True)
    folder.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".tmp.npz")
    np.savez_compressed(half, **vars(walk))
    half.replace(path)
    return walk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, required=True, help="folder of the walks")
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 16])
    parser.add_argument("--models", nargs="+", default=held_out.MODELS, choices=held_out.MODELS)
    parser.add_argument("--bytes", type=int, default=held_out.SIZE, help="of each passage")
    parser.add_argument("--of", nargs="+", default=KINDS, choices=KINDS)
    args = parser.parse_args()
    lms = held_out.models(args.models)
    passages = held_out.held_out(lms, args.bytes) if "passages" in args.of else []
    if "embedded" in lms:
        lms[held_out.PEAKED] = held_out.peaked(lms["embedded"])
    passages += held_out.provocations(lms) if "provocations" in args.of else []
    for k in args.widths:
        for passage in track(passages, f"K={k}"):
            kept_beam(lms[passage.model], name_of(passage.model), passage.text, k, args.cache)


if __name__ == "__main__":
    main()
