"""Several models as one: bits a byte of mixtures and products, and what a typed character costs.

    python benchmarks/combine.py [--size 1500] [--preset default] [--keys 60] [--json FILE]

*Text*: code and English that no member was trained on (`texts.py` names the models; the second
and third have tokenizers of their own, and are left out where they are missing). Bits a byte of
each model, of the mixture over weights, of the product over weights, of the least and the greatest.
*Bound*: the mixture over strings is at most log(1/λ) / n above its best member. *Keys*: the step of
a combined state, `state + byte` and `next()`, against those of its members' states by themselves,
in the same run, one after the other at each byte.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import texts
from charwise import CharLM, Score, combine
from charwise.combine import Combination

WEIGHTS = (0.1, 0.25, 0.5, 0.75, 0.9)

Row = dict[str, Any]


class Once:
    """A model whose pass over a text is made once, for all combinations that ask for it."""

    def __init__(self, lm: CharLM, text: bytes, preset: str) -> None:
        self.state, self.score = lm.state, lm.score(text, preset=preset, entropy="char")

    def scores(self, texts: Any, **_: Any) -> list[Score]:
        """The one score."""
        assert list(texts) == [self.score.raw]
        return [self.score]

    scores_with_rows = scores


def passages(size: int) -> dict[str, bytes]:
    """Code, English, and one after the other, as a notebook has them."""
    found = {"code": texts.hard_text(size)}
    english = texts.data_folder() / "text" / "wikitext103_test_64k.txt"
    if english.is_file():
        found["English"] = english.read_bytes()[30000 : 30000 + size]
        found["both, in turns"] = b"".join(
            found[what][at : at + size // 6]
            for at in range(0, size // 2, size // 6)
            for what in ("English", "code")
        )
    return found


def combinations(one: Any, other: Any) -> dict[str, Combination]:
    """Two models, combined in all ways that are measured."""
    pair = [one, other]
    found: dict[str, Combination] = {}
    for weight in WEIGHTS:
        found[f"mixture {weight:g} : {1 - weight:g}"] = combine.mixture(pair, [weight, 1 - weight])
    for weight in WEIGHTS:
        found[f"product {weight:g} : {1 - weight:g}"] = combine.product(pair, [weight, 1 - weight])
    found["product 1 : 1"] = combine.product(pair, [1, 1])
    found["minimum"], found["maximum"] = combine.minimum(pair), combine.maximum(pair)
    return found


def bits(lms: dict[str, CharLM], text: bytes, preset: str) -> list[Row]:
    """Bits a byte of the models, and of their combinations two by two."""
    once = {name: Once(lm, text, preset) for name, lm in lms.items()}
    alone = {name: one.score for name, one in once.items()}
    rows: list[Row] = [
        {"model": name, "bits a byte": s.bits_per_byte, "± estimated": mean_error(s.error)}
        for name, s in alone.items()
    ]
    names = list(lms)
    for number, one in enumerate(names):
        for other in names[number + 1 :]:
            best = min(alone[one].bits, alone[other].bits)
            average = plain_average([alone[one], alone[other]])
            rows.append({"model": f"{one} + {other}: average at each byte", "bits a byte": average})
            for what, lm in combinations(once[one], once[other]).items():
                score = lm.score(text)
                row = {
                    "model": f"{one} + {other}: {what}",
                    "bits a byte": score.bits_per_byte,
                    "± estimated": mean_error(score.error),
                    "above the best": (score.bits - best) / len(text),
                }
                if what.startswith("mixture"):
                    weight = lm.team.rule.weights[int(alone[one].bits > alone[other].bits)]
                    row["at most"] = -math.log2(weight) / len(text)
                    assert row["above the best"] <= row["at most"] + 1e-9
                rows.append(row)
    return rows


def plain_average(scores: list[Score]) -> float:
    """Bits a byte of the members' next-byte distributions averaged with constant weights."""
    logs = np.stack([score.logprobs for score in scores])
    return float(-np.log2(np.exp(logs).mean(axis=0)).mean())


def mean_error(error: Any) -> float:
    """In bits a byte."""
    return float(np.mean(error)) / math.log(2)


def keys(lms: dict[str, CharLM], text: bytes, count: int) -> list[Row]:
    """Processor milliseconds of a typed byte and the next distribution: members, and combined."""
    names = list(lms)[:2]
    pair = [lms[name] for name in names]
    prompt, typed = text[:300], text[300 : 300 + count]
    made: dict[str, Callable[[], Combination]] = {
        "mixture": lambda: combine.mixture(pair),
        "product": lambda: combine.product(pair),
        "minimum": lambda: combine.minimum(pair),
        "contrast": lambda: combine.contrast(*pair, plausibility=0.0),
    }
    rows = []
    for name, make in made.items():
        both, apart = make().state(prompt), [lm.state(prompt) for lm in pair]
        both.next()
        for state in apart:
            state.next()
        spent = np.zeros((len(typed), 3))
        for at, code in enumerate(typed):
            byte = bytes([code])
            order = [0, 1, 2] if at % 2 else [2, 0, 1]
            for which in order:
                started = time.process_time()
                if which == 2:
                    both = both + byte
                    both.next()
                else:
                    apart[which] = apart[which] + byte
                    apart[which].next()
                spent[at, which] = time.process_time() - started
        alone = spent[:, :2].sum(axis=1)
        rows.append(
            {
                "rule": name,
                f"{names[0]}, ms": 1e3 * float(spent[:, 0].mean()),
                f"{names[1]}, ms": 1e3 * float(spent[:, 1].mean()),
                "combined, ms": 1e3 * float(spent[:, 2].mean()),
                "of their sum": float(spent[:, 2].sum() / alone.sum()),
                "median of bytes": float(np.median(spent[:, 2] / alone)),
            }
        )
    return rows


def show(title: str, rows: list[Row]) -> None:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    table = Table(*columns, title=title)
    for row in rows:
        cells = [row.get(column, "") for column in columns]
        table.add_row(*(cell if isinstance(cell, str) else f"{cell:.4f}" for cell in cells))
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=1500, help="bytes of each text")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--keys", type=int, default=60, help="typed bytes that are timed")
    parser.add_argument("--models", nargs="+", default=["embedded", "stories", "small"])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    lms = texts.models(args.models)
    if len(lms) < 2:
        raise SystemExit("A combination needs a second model: see CHARWISE_DATA.")
    tables = {
        f"{what}, {len(text)} bytes": bits(lms, text, args.preset)
        for what, text in passages(args.size).items()
    }
    for title, rows in tables.items():
        show(title, rows)
    title = f"a typed byte, {args.keys} of code after 300"
    tables[title] = keys(lms, texts.hard_text(300 + args.keys), args.keys)
    show(title, tables[title])
    if args.json:
        args.json.write_text(json.dumps(tables, indent=1))


if __name__ == "__main__":
    main()
