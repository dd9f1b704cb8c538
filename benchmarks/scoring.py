"""Known text on a real language model: errors, contexts and calls, beside the paper's beam.

    python benchmarks/scoring.py [--model smollm2] [--quick]

docs/benchmarks.md says what the columns are. References are kept in build/. The beam says nothing
of its error, and a plain pass has no log-probabilities of bytes. A text that a beam loses is left
out of its row. Two tables: texts that constants were chosen on, and others.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

import texts
from charwise.errors import ZeroProbabilityError
from charwise.scoring.effort import PRESETS, Effort
from harness import BUILD, arguments, finish, lm_of, table
from paper import methods

EQUAL = 2e-5  # nats a byte: a smaller error is none, when stated and true ones are compared

#: Names of texts in plain English begin with these.
PLAIN = ("encyclopedia", "rights", "mail", "names", "garden")

COLUMNS = ("error, mean / median", "contexts a byte", "calls")
COLUMNS += ("stated / true, least / median", "error, English", "contexts, English")


class Finest(Effort):
    """Nine rounds whose threshold falls in each of them, down to a floor."""

    def threshold(self, number: int) -> float:
        """θ of a round."""
        return float(max(0.02 / 4 ** (number - 1), 2e-5))


def reference(model: str, text: bytes) -> NDArray[np.float64]:
    """`[n]` log-probabilities that others are compared with, from build/ if they are there."""
    path = BUILD / "references" / f"{hashlib.sha256(model.encode() + text).hexdigest()[:24]}.npy"
    if not path.exists():
        with mock.patch("charwise.scoring.rounds.WIDTH", 48):
            logprobs = lm_of(model).score(text, preset=Finest(9)).logprobs
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, logprobs)
    return np.asarray(np.load(path))


def measure(model: str, passages: dict[str, bytes], walk: Any) -> list[str]:
    """The row of a method: means over all texts, and over plain English."""
    rows = dict[str, list[float]]()
    for name, text in passages.items():
        try:
            result = walk(lm_of(model), text)
        except ZeroProbabilityError:  # a beam that is too narrow for the text
            continue
        true = reference(model, text)
        error = float(np.abs(result.logprobs - true).mean())
        stated = getattr(result, "error", None)
        ratio = math.nan if stated is None else max(stated.mean(), EQUAL) / max(error, EQUAL)
        rows[name] = [error, result.contexts / len(text), result.calls, ratio]
    error, contexts, calls, stated = np.array(list(rows.values())).T
    plain = np.array([row for text, row in rows.items() if text.startswith(PLAIN)])
    return [
        f"{error.mean():.4f} / {np.median(error):.4f}",
        f"{contexts.mean():.2f}",
        f"{calls.mean():.1f}",
        f"{stated.min():.2f} / {np.median(stated):.1f}",
        f"{plain[:, 0].mean():.4f}",
        f"{plain[:, 1].mean():.2f}",
    ]


def main() -> None:
    parser = arguments(__doc__ or "", "smollm2")
    args = parser.parse_args()
    presets = [name for name, effort in PRESETS.items() if not effort.exact]
    tables = list[str]()
    for half in ("choosing", "judging"):
        passages = texts.passages(half)
        if args.quick:
            passages = {name: text[:40] for name, text in passages.items()}
        walks = methods([4], presets)
        rows = {name: measure(args.model, passages, walk) for name, walk in walks.items()}
        rows["beam K=4"][3] = rows["canonical"][3] = ""
        rows["canonical"][0] = rows["canonical"][4] = ""
        tables.append(table(f"{args.model}, texts for {half}", ["", *COLUMNS], rows))
    finish(*tables)


if __name__ == "__main__":
    main()
