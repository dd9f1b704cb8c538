"""Known text on a real language model: errors, contexts and calls of each preset.

    python benchmarks/scoring.py [--model smollm2] [--before] [--ablation]

*error* is the mean |Δ log p| in nats a byte, against 9 rounds of width 48 down to a threshold of
2e-5, which are kept in build/. *stated / true* compares it with the mean of `Score.error`: the
least ratio of a text, and the median. Two tables: texts that constants were chosen on, and others.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import time
from contextlib import ExitStack
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

import texts
from charwise.scoring.effort import PRESETS, Effort
from harness import BUILD, arguments, finish, in_version, lm_of, table

#: An error below this is none, when stated and true errors are compared: nats a byte.
EQUAL = 2e-5

PLAIN = ("encyclopedia", "rights", "mail", "names", "garden")

#: Attributes of `charwise.scoring.rounds` and `.lattice`, one at a time.
ABLATION: dict[str, dict[str, float]] = {
    "as it is": {},
    "K = 4": {"rounds.WIDTH": 4},
    "K = 16": {"rounds.WIDTH": 16},
    "followed up to 8 tokens": {"rounds.LOOKAHEAD": 8},
    "followed up to 16 tokens": {"rounds.LOOKAHEAD": 16},
    "unknown backward weight 1": {"lattice.UNKNOWN_BACKWARD": 1.0},
    "unknown backward weight 100": {"lattice.UNKNOWN_BACKWARD": 100.0},
}

#: θ of the first round, its fall from round to round, and the rounds.
SCHEDULES = {
    "θ = .02 / 4ʳ, 3 rounds": (0.02, 4.0, 3),
    "θ = .02 / 3ʳ, 4 rounds": (0.02, 3.0, 4),
    "θ = .04 / 2ʳ, 6 rounds": (0.04, 2.0, 6),
    "θ = .02 / 4ʳ, 5 rounds": (0.02, 4.0, 5),
}


class Schedule(Effort):
    """An effort with another first threshold and fall, down to a floor."""

    def __init__(self, rounds: int, first: float, fall: float, floor: float = 0.0) -> None:
        super().__init__(rounds)
        self.__dict__["of"] = first, fall, floor

    def threshold(self, number: int) -> float:
        """θ of a round."""
        first, fall, floor = self.__dict__["of"]
        return float(max(first / fall ** (number - 1), floor))


def reference(model: str, text: bytes) -> NDArray[np.float64]:
    """`[n]` log-probabilities that others are compared with, from build/ if they are there."""
    path = BUILD / "references" / f"{hashlib.sha256(model.encode() + text).hexdigest()[:24]}.npy"
    if not path.exists():
        finest = Schedule(9, 0.02, 4.0, floor=2e-5)
        with mock.patch("charwise.scoring.rounds.WIDTH", 48):
            logprobs = lm_of(model).score(text, preset=finest).logprobs
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, logprobs)
    return np.asarray(np.load(path))


def measure(model: str, half: str, effort: Any) -> dict[str, list[float]]:
    """Error, contexts a byte, calls, and stated by true error of each text of a half."""
    rows: dict[str, list[float]] = {}
    for name, text in texts.passages(half).items():
        score, true = lm_of(model).score(text, preset=effort), reference(model, text)
        error = float(np.abs(score.logprobs - true).mean())
        assert score.error is not None
        stated = max(float(score.error.mean()), EQUAL) / max(error, EQUAL)
        rows[name] = [error, score.contexts / len(text), score.calls, stated]
    return rows


def line(name: str, rows: dict[str, list[float]]) -> list[str]:
    """The means over all texts, and over plain English."""
    every = np.array(list(rows.values()))
    plain = np.array([row for text, row in rows.items() if text.startswith(PLAIN)])
    error, contexts, calls, stated = every.T
    return [
        name,
        f"{error.mean():.4f} / {np.median(error):.4f}",
        f"{contexts.mean():.2f}",
        f"{calls.mean():.1f}",
        f"{stated.min():.2f} / {np.median(stated):.1f}",
        f"{plain[:, 0].mean():.4f}",
        f"{plain[:, 1].mean():.2f}",
    ]


def ablation(model: str, half: str) -> dict[str, dict[str, list[float]]]:
    """Other constants and schedules in the place of those of `default`."""
    found = {}
    for name, constants in ABLATION.items():
        with ExitStack() as stack:
            for constant, value in constants.items():
                stack.enter_context(mock.patch(f"charwise.scoring.{constant}", value))
            found[name] = measure(model, half, "default")
    for name, (first, fall, rounds) in SCHEDULES.items():
        found[name] = measure(model, half, Schedule(rounds, first, fall))
    return found


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--model", default="smollm2", choices=texts.MODELS)
    parser.add_argument("--before", action="store_true", help="also measure the revision --base")
    parser.add_argument("--ablation", action="store_true", help="other constants, half choosing")
    parser.add_argument("--only", help="print the rows of one half as JSON")
    args, started = parser.parse_args(), time.perf_counter()
    presets = [name for name, effort in PRESETS.items() if effort != Effort(math.inf)]
    if args.only:
        json.dump({name: measure(args.model, args.only, name) for name in presets}, sys.stdout)
        return
    figures, tables = {}, []
    columns = [
        "",
        "error, mean / median",
        "contexts a byte",
        "calls",
        "stated / true, least / median",
    ]
    columns += ["error, English", "contexts, English"]
    for half in ("choosing", "judging"):
        rows = {name: measure(args.model, half, name) for name in presets}
        if args.before:
            before = in_version(args.base, ["--model", args.model, "--only", half])
            rows |= {f"{name}, before": row for name, row in before.items()}
        if args.ablation and half == "choosing":
            rows |= ablation(args.model, half)
        figures[half] = rows
        tables.append(
            table(f"{args.model}, texts for {half}", columns, [line(*one) for one in rows.items()])
        )
    finish(args, tables, figures, started)


if __name__ == "__main__":
    main()
