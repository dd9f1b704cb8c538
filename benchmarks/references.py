"""Walks that are kept on disk by what they are of: the model's files, the text, and the width.

    python benchmarks/references.py --cache FOLDER [--bundles 1024] [--widths 4 16]

Beams of 1,024 bundles in all take two minutes over 400 bytes; they are the same next time. The
command walks all that `scoring.py` and `calibration.py` compare with, the passages and the
provocations.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import time
from functools import cache
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import held_out
from charwise.coverings.bundles import next_byte_masses
from charwise.coverings.rows import EvaluatedRows
from charwise.coverings.stochastic_beam import walks
from charwise.evaluation.methods import Walk, walk_beam, walked
from charwise.known_text.windows import plan
from charwise.model import CharLM
from charwise.tokens.prompts import split
from settings import difference

#: Counts up when the beam itself changes what it says.
_VERSION = "1"

#: Independent beams of an estimate.
BEAMS = 4

KINDS = ("passages", "provocations", "others")


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
    _keep(walk, path)
    return walk


def _keep(walk: Walk, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".tmp.npz")
    np.savez_compressed(half, **vars(walk))
    half.replace(path)


def kept_estimate(lm: CharLM, model: str, text: bytes, n: int, folder: Path | None) -> Walk:
    """What beams that prune at random say of a text: nothing is left out of it by rule.

    The sum over a beam of any width is too low by all that it dropped, which adds up over a text.
    The sums of such beams (`charwise.coverings.stochastic_beam`) are unbiased, and what is said of
    a byte is the ratio of two: uncertain, and without what is hardly ever drawn.

    Args:
        n: bundles kept after each byte, in `BEAMS` beams.
        folder: of the kept walks, as in `kept_beam`.
    """
    path = None
    if folder is not None:
        name = hashlib.sha256(f"{_VERSION} {model} at random {n} ".encode() + text).hexdigest()[:32]
        path = folder / f"{name}.npz"
        if path.exists():
            stored = np.load(path)
            return Walk(stored["logprobs"], stored["distributions"], 0, 0, float(stored["seconds"]))
    opening, whole = split(lm.vocabulary, text)
    started = time.perf_counter()
    rng, rows = np.random.default_rng(n), np.zeros((len(whole), 257))
    contexts = calls = 0
    for stretch in plan(lm.engine, lm.index, opening, whole):
        tree, window = lm.engine.tree(stretch.prompt_ids), lm.engine.window
        deepest = None if window is None else window - len(stretch.prompt_ids)
        part = whole[stretch.begin : stretch.stop]
        evaluated = EvaluatedRows(tree, lm.index)
        drawn = walks(evaluated, 0, part, BEAMS, n // BEAMS, rng, deepest=deepest)
        for at, beams in zip(range(stretch.begin, stretch.stop), drawn, strict=False):
            if at >= stretch.scored:
                found = [next_byte_masses(evaluated, bundles) for bundles in beams]
                top = max(scale for _, scale in found)
                rows[at] = sum(masses * math.exp(scale - top) for masses, scale in found)
        contexts, calls = contexts + tree.contexts, calls + tree.calls
    rows /= rows.sum(axis=1, keepdims=True)
    logprobs = np.log(rows[np.arange(len(whole)), list(whole)])
    walk = walked(opening, logprobs, rows, contexts, calls, started)
    if path is not None:
        _keep(walk, path)
    return walk


def show(
    passages: list[held_out.Passage], lms: dict[str, CharLM], args: argparse.Namespace
) -> None:
    """How far estimates of two sizes are from each other."""
    table = Table("passage", "JS distance, × 1e-4", "|ΔS|, 1e-3 bits a byte")
    for passage in passages:
        one, other = (
            kept_estimate(
                lms[passage.model], name_of(passage.model), passage.text, bundles, args.cache
            )
            for bundles in (args.bundles, args.against)
        )
        away = difference(one, other)
        table.add_row(passage.name, f"{1e4 * away.js_distance:.3g}", f"{1e3 * away.bits:.3g}")
    Console(width=100).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, required=True, help="folder of the walks")
    parser.add_argument("--bundles", type=int, default=1024, help="of the estimates; 0 for none")
    parser.add_argument("--widths", type=int, nargs="*", default=[4, 16])
    parser.add_argument("--models", nargs="+", default=held_out.MODELS, choices=held_out.MODELS)
    parser.add_argument("--bytes", type=int, default=held_out.SIZE, help="of each passage")
    parser.add_argument("--of", nargs="+", default=KINDS[:2], choices=KINDS)
    parser.add_argument("--only", nargs="+", help="passages, by the names in the tables")
    parser.add_argument("--against", type=int, help="compare with estimates of so many bundles")
    args = parser.parse_args()
    lms = held_out.models(args.models)
    passages = held_out.held_out(lms, args.bytes) if "passages" in args.of else []
    if "embedded" in lms:
        lms[held_out.PEAKED] = held_out.peaked(lms["embedded"])
    passages += held_out.provocations(lms) if "provocations" in args.of else []
    passages += held_out.provocations(lms, held_out.OTHERS) if "others" in args.of else []
    if args.only:
        passages = [passage for passage in passages if passage.name in args.only]
    for passage in track(passages if args.bundles else [], f"{args.bundles} bundles"):
        name = name_of(passage.model)
        kept_estimate(lms[passage.model], name, passage.text, args.bundles, args.cache)
    for k in args.widths:
        for passage in track(passages, f"K={k}"):
            kept_beam(lms[passage.model], name_of(passage.model), passage.text, k, args.cache)
    if args.against:
        show(passages, lms, args)


if __name__ == "__main__":
    main()
