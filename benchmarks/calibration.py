"""What a score says of its own error, against what that is.

    python benchmarks/calibration.py --cache FOLDER [--others] [--figure FILE] [--json FILE]

For each tolerance, the held-out passages and the provocations of `held_out.py`, among them those of
a model whose logits are multiplied. *stated* is the mean of `Score.error`, *true* the mean |ΔS|
against beams that prune at random (`references.py`), or the contexts of the rounds or of a beam
where these add up to more on a provocation (`bounds.py`), both in bits a byte; *silent* is the
worst error of a byte of which less than 0.1 nats were stated, in nats.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import charwise
import held_out
import references
from bounds import lower_bound
from charwise.known_text.effort import PRESETS
from held_out import Passage
from settings import NATS, TOLERANCES, Setting, asked, errors_of, name_of

#: Nats: what counts as silent, and what it may not hide.
STATED, HIDDEN = 0.1, 1.0

#: Nats by which a lower bound must be above an estimate, which has an error of its own.
MARGIN = 0.1

#: Within this factor of the true error, a stated one is calibrated.
FACTOR = 3.0

#: Bits a byte: a true error below this is of rounding, and any stated one below it agrees with it.
EQUAL = 1e-5


def measure(
    lm: charwise.CharLM, passage: Passage, setting: Setting, args: argparse.Namespace
) -> dict[str, Any]:
    """One row: a passage with one setting."""
    model, text = references.name_of(passage.model), passage.text
    drawn = references.kept_estimate(lm, model, text, args.reference, args.cache).logprobs
    found = {"drawn": drawn}
    if held_out.provokes(passage):
        # What decides may be hardly ever drawn; then a lower bound is above the estimate.
        found["rounds"] = lower_bound(lm, text, PRESETS["accurate"])
        found["beam"] = references.kept_beam(lm, model, text, args.beam, args.cache).logprobs
    kind = max(found, key=lambda name: np.sum(found[name]) - MARGIN * (name != "drawn"))
    reference = found[kind]
    score = lm.score(text, **asked(setting))
    stated, true = errors_of(score), np.abs(score.logprobs - reference)
    return {
        "passage": passage.name,
        "provoked": held_out.provokes(passage),
        "other": passage.what in held_out.OTHERS,
        "setting": name_of(setting),
        "tolerance": setting if isinstance(setting, float) else None,
        "stated": float(stated.mean()) / NATS,
        "true": float(true.mean()) / NATS,
        "worst": float(true.max()),
        "silent": float(true[stated < STATED].max(initial=0.0)),
        "contexts": score.contexts / len(text),
        "bytes": len(text),
        "limited": score.limited,
        "reference": kind,
    }


def calibrated(row: dict[str, Any]) -> bool:
    """Whether what is stated is within a factor of what is."""
    stated, true = max(row["stated"], EQUAL), max(row["true"], EQUAL)
    return bool(true / FACTOR <= stated <= true * FACTOR)


def show(setting: str, rows: list[dict[str, Any]]) -> None:
    """All texts with one setting."""
    columns = (
        "passage",
        "bytes",
        "against",
        "stated",
        "true",
        "worst byte",
        "silent",
        "contexts/byte",
    )
    table = Table(*columns, title=f"{setting}: bits a byte; bytes in nats")
    for provoked in (False, True):
        for row in rows:
            if row["provoked"] is provoked:
                cells = [f"{row[key]:.2g}" for key in ("stated", "true", "worst", "silent")]
                size = str(row["bytes"])
                table.add_row(
                    row["passage"], size, row["reference"], *cells, f"{row['contexts']:.2f}"
                )
        table.add_section()
    Console(width=110).print(table)


def judged(rows: list[dict[str, Any]]) -> Table:
    """How many texts keep to what is promised, for each setting."""
    table = Table(
        "setting", "texts", "within", "not, and said", f"stated within × {FACTOR:g}",
        "silent bytes over 1 nat",
    )  # fmt: skip
    for setting in dict.fromkeys(row["setting"] for row in rows):
        for provoked in (False, True):
            here = [row for row in rows if (row["setting"], row["provoked"]) == (setting, provoked)]
            if not here:
                continue
            off = [row for row in here if row["true"] > (row["tolerance"] or np.inf)]
            said = sum(row["limited"] for row in off)
            silent = sum(row["silent"] > HIDDEN for row in here)
            kind = "others" if here[0]["other"] else "provocations" if provoked else "held out"
            name = f"{setting}, {kind}"
            counts = [str(len(here) - len(off)), str(said)]
            within = ["", ""] if here[0]["tolerance"] is None else counts
            table.add_row(
                name, str(len(here)), *within, str(sum(map(calibrated, here))), str(silent)
            )
    return table


def plot(rows: list[dict[str, Any]], file: Path) -> None:
    """Stated against true error, each text with each setting."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 5.2), layout="constrained")
    axis = figure.subplots()
    least, most = EQUAL, 30.0
    axis.fill_between(
        [least, most], [least / FACTOR, most / FACTOR], [least * FACTOR, most * FACTOR],
        color="0.92", label=f"within a factor of {FACTOR:g}",
    )  # fmt: skip
    for n, setting in enumerate(dict.fromkeys(row["setting"] for row in rows)):
        for provoked, marker in ((False, "o"), (True, "x")):
            here = [row for row in rows if (row["setting"], row["provoked"]) == (setting, provoked)]
            true, stated = ([max(least, row[key]) for row in here] for key in ("true", "stated"))
            label = setting if not provoked else None
            axis.plot(true, stated, marker, color=f"C{n}", ms=4, alpha=0.8, label=label)
    axis.set(xscale="log", yscale="log", xlim=(least, most), ylim=(least, most))
    axis.set(xlabel="true mean |ΔS|, bits a byte", ylabel="stated, bits a byte")
    axis.set_title("o held out, x provocations", fontsize="medium")
    axis.legend(fontsize="small")
    figure.savefig(file)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=held_out.MODELS, choices=held_out.MODELS)
    parser.add_argument("--bytes", type=int, default=held_out.SIZE, help="of each passage")
    parser.add_argument("--skip", type=int, default=0, help="bytes of each passage, before those")
    parser.add_argument("--only", nargs="+", help="passages, by the names in the tables")
    parser.add_argument("--others", action="store_true", help="other provocations, and no passages")
    parser.add_argument("--reference", type=int, default=1024, help="bundles of the reference")
    parser.add_argument("--beam", type=int, default=64, help="width of the beam beside it")
    parser.add_argument("--presets", nargs="*", default=[])
    parser.add_argument("--tolerances", type=float, nargs="*", default=list(TOLERANCES))
    parser.add_argument("--cache", type=Path, help="keep the beams in this folder")
    parser.add_argument("--figure", type=Path, help="draw stated against true here, as svg or png")
    parser.add_argument("--json", type=Path, help="write the rows here too")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    lms = held_out.models(args.models)
    passages = held_out.after(lms, args.bytes, args.skip)
    if "embedded" in lms:
        lms[held_out.PEAKED] = held_out.peaked(lms["embedded"])
    if args.others:
        passages = held_out.provocations(lms, held_out.OTHERS)
    else:
        passages += held_out.provocations(lms)
    if args.only:
        passages = [passage for passage in passages if passage.name in args.only]
    rows = []
    for setting in [*args.presets, *args.tolerances]:
        here = [measure(lms[passage.model], passage, setting, args) for passage in passages]
        show(name_of(setting), here)
        rows += here
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1))
    Console(width=110).print(judged(rows))
    if args.figure:
        plot(rows, args.figure)


if __name__ == "__main__":
    main()
