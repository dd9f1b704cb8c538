"""What a tokenization far back changes of the next byte: a state conditions on the canonical one.

    python benchmarks/history.py --cache FOLDER [--models embedded small] [--prompts 30]

`next` sums over the tokenizations of a prompt's last tokens, and conditions on what is before them
in its canonical tokens. Here its distribution is compared with the one that sums over all
tokenizations of the whole prompt, as total variations: that of beams that prune at random
(`references.py`; kept in FOLDER). Prompts are the passages of `held_out.py`, cut at random bytes.

next      `CharLM.next`, preset `default`
accurate  the same with `accurate`
summed    `CharLM.next(…, exact_from=0)`, preset `default`
stated    `NextBytes.error` of `next`, and of the summed
time      of the summed, in that of `next`, of the processor
worst     the largest of `next`
over      of the prompts, those where `next` is off by more than 0.02, its tolerance
S         surprisal of the byte that follows in the passage, nats, mean: by `next`, and in truth
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import held_out
import references
import scoring
from charwise import CharLM

#: The shortest prompt, bytes.
_SHORTEST = 60

#: The tolerance of `default` at a cursor, a total variation.
_TOLERANCE = 0.02


class Found(NamedTuple):
    """Of one prompt: total variations from the sum over all tokenizations, and surprisals, nats."""

    next: float
    accurate: float
    summed: float
    stated: float
    stated_summed: float
    surprisal: float
    surprisal_true: float
    seconds: float
    seconds_summed: float


def measure(
    lm: CharLM, passage: scoring.Passage, prompts: int, n: int, cache: Path | None
) -> list[Found]:
    """So many prompts of one passage."""
    text, rng = passage.text, np.random.default_rng(3)
    model = references.name_of(passage.model)
    truth = references.kept_estimate(lm, model, text, n, cache).distributions
    assert truth is not None
    found = []
    for cut in sorted(rng.choice(np.arange(_SHORTEST, len(text) - 1), prompts, replace=False)):
        prompt, byte, true = text[:cut], text[cut], truth[cut]
        accurate = lm.next(prompt, preset="accurate")
        times = [time.process_time()]
        usual = lm.next(prompt)
        times.append(time.process_time())
        summed = lm.next(prompt, exact_from=0)
        times.append(time.process_time())
        off = (variation(one.probs, true) for one in (usual, accurate, summed))
        came = -float(usual.logprobs[byte]), -float(np.log(true[byte]))
        found.append(Found(*off, usual.error, summed.error, *came, *np.diff(times).tolist()))
    return found


def variation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """The total variation of two distributions."""
    return float(np.abs(one - other).sum()) / 2


def summary(found: list[Found]) -> dict[str, float]:
    """Means, the largest of `next`, and the share of prompts where it is over its tolerance."""
    columns = {name: np.array(values) for name, *values in zip(Found._fields, *found, strict=True)}
    means = {name: float(values.mean()) for name, values in columns.items()}
    off = columns["next"]
    return {**means, "worst": float(off.max()), "over": float((off > _TOLERANCE).mean())}


def shown(rows: dict[str, list[Found]]) -> Table:
    """The table, with all prompts of each model in its last lines."""
    columns = ("next", "worst", "over", "stated", "accurate", "summed", "stated", "time")
    table = Table("passage", *columns, "S", "S true")
    first = next(name for name in rows if name.startswith("all of "))
    for name, found in rows.items():
        if name == first:
            table.add_section()
        s = summary(found)
        usual = (f"{s['next']:.4f}", f"{s['worst']:.3f}", f"{s['over']:.0%}", f"{s['stated']:.4f}")
        others = (f"{s[key]:.4f}" for key in ("accurate", "summed", "stated_summed"))
        ratio = f"{s['seconds_summed'] / s['seconds']:.0f}"
        came = (f"{s[key]:.3f}" for key in ("surprisal", "surprisal_true"))
        table.add_row(name, *usual, *others, ratio, *came)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    # The model of stories has a window of 256 tokens: its scores and states slide differently.
    parser.add_argument("--models", nargs="*", default=["embedded", "small"])
    parser.add_argument("--bytes", type=int, default=400)
    parser.add_argument("--prompts", type=int, default=30, help="of each passage")
    parser.add_argument("--reference", type=int, default=512, help="bundles of the reference")
    parser.add_argument("--cache", type=Path, help="a folder for references")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    lms = held_out.models(args.models)
    rows: dict[str, list[Found]] = {}
    for passage in scoring.passages(lms, args.bytes, 0):
        lm = lms[passage.model]
        rows[passage.name] = measure(lm, passage, args.prompts, args.reference, args.cache)
    for model in lms:
        rows[f"all of {model}"] = [
            one for name, found in rows.items() if name.startswith(f"{model}:") for one in found
        ]
    Console().print(shown(rows))
    if args.json:
        out: Any = {name: summary(found) for name, found in rows.items()}
        args.json.write_text(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
