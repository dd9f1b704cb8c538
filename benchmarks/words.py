"""Invented words, each repeated: what presets find of them, beside a beam of width 64.

    python benchmarks/words.py

A model that sees an unknown word again expects it in the tokens in which it came first, and which
tokens these should be, shows only where it has come by several times. The words are syllables drawn
at random, with a seed; no number was chosen on them. *short* is how much less log-probability a
preset finds than the better of itself and a beam of width 64, in bits a byte. *over* are the texts
that are short by more than the tolerance, *unsaid* those of them that do not say that a limit ended
the work.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import charwise
import held_out
from charwise.evaluation.methods import walk_beam
from charwise.known_text.effort import PRESETS
from settings import NATS

#: Width of the beam, and how often a word is repeated at least and at most.
BEAM, FEWEST, MOST = 64, 5, 12


def words(count: int, seed: int) -> list[bytes]:
    """Texts of one invented word each, over and over."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        syllables = draw.randint(3, 4)
        word = "".join(
            draw.choice("bcdfghjklmnprstvwxz")
            + draw.choice("aeiou")
            + draw.choice(["", *"lmnrstx"])
            for _ in range(syllables)
        )
        found.append(f"{word} ".encode() * draw.randint(FEWEST, MOST))
    return found


def measure(
    lm: charwise.CharLM, texts: list[bytes], beams: list[float], preset: str
) -> dict[str, Any]:
    """One row: a preset on all texts, whose log-probabilities by the beam are known."""
    tolerance = PRESETS[preset].tolerance or 0.0
    short, stated, unsaid, contexts = list[float](), list[float](), 0, list[float]()
    for text, beam in zip(texts, beams, strict=True):
        score = lm.score(text, preset=preset)
        less = beam - float(score.logprobs.sum())
        short.append(max(0.0, less) / len(text) / NATS)
        stated.append(float(score.error.mean()) / NATS)
        contexts.append(score.contexts / len(text))
        unsaid += short[-1] > tolerance and not score.limited
    return {
        "preset": preset,
        "short": sum(short) / len(short),
        "worst": max(short),
        "stated": sum(stated) / len(stated),
        "over": sum(one > tolerance for one in short),
        "unsaid": unsaid,
        "contexts": sum(contexts) / len(contexts),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=held_out.MODELS, default=held_out.MODELS)
    parser.add_argument("--words", type=int, default=20)
    parser.add_argument("--seed", type=int, default=13)
    parser.add_argument("--presets", nargs="+", default=["default", "accurate"])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    texts = words(args.words, args.seed)
    rows: list[dict[str, Any]] = []
    for name, lm in held_out.models(args.models).items():
        beams = [float(walk_beam(lm, text, BEAM).logprobs.sum()) for text in texts]
        rows += [{"model": name, **measure(lm, texts, beams, one)} for one in args.presets]
    size = sum(map(len, texts))
    table = Table(
        "model", "preset", "short", "worst", "stated", "over", "unsaid", "contexts/byte",
        title=f"{len(texts)} texts of {size:,} bytes; bits a byte",
    )  # fmt: skip
    for row in rows:
        figures = [f"{row[key]:.4f}" for key in ("short", "worst", "stated")]
        counts = [str(row["over"]), str(row["unsaid"]), f"{row['contexts']:.2f}"]
        table.add_row(row["model"], row["preset"], *figures, *counts)
    Console(width=100).print(table)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
