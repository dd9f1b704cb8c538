"""Short texts with odd names: what presets miss of them, and what they say of that.

    python benchmarks/short.py [--models embedded small stories] [--texts 60] [--json FILE]

Texts are templates with two words each that models hardly know, twice or more; no number of the
presets was chosen on them. A text is compared with its score of tolerance 0.002, a prompt, which is
a beginning of it of at most 24 tokens, with the next byte's distribution in which nothing is lent
and nothing over 1e-5 left out. *no rule* is `default` without the rule that a score needs contexts.

off       of a text, mean |ΔS| in bits a byte; of a prompt, mean total variation
stated    the same as the result says
silent    texts off by over 1 nat and three times what they say; prompts by over 0.02 and likewise
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import charwise.known_text.falling_theta as falling_theta
import held_out
from charwise import CharLM, Effort
from settings import NATS

# fmt: off
_WORDS = [
    "plumbus", "gnorp", "zlib7", "wibble", "frotz", "quux_", "lodash", "kernl", "bazel",
    "optoin", "lable", "retrun", "parmas", "fnord", "ytdl", "mkfs", "sudoku", "vlan", "eth0",
    "psu", "Grzegorz", "Ngozi", "Søren", "háček", "ärger", "tqdm", "xargs", "ffprobe",
]
# fmt: on

_TEMPLATES = (
    "{a}: {b} -> {a}\n{b}: {a} -> {b}\n",
    "SELECT {a}, {b} FROM {a}_{b} WHERE {b} = {a};\n",
    "The {a} met the {b}, and the {b} left the {a}.\n",
    "{a} = [{b} for {b} in {a}]\n",
    "[{a}]\n{b} = {a}\n[{b}]\n{a} = {b}\n",
    "$ {a} --{b} | {b} --{a}\n",
    "{a}({b}, {b}({a}))\n",
    '{{"{a}": "{b}", "{b}": "{a}"}}\n',
)

#: Nothing is lent, and nothing heavier than this is left out.
_FINE = Effort(1e-5, 1.0, lookahead=0)


class Row(NamedTuple):
    """Means over texts or prompts, and how many are wrong in silence."""

    off: float
    stated: float
    contexts: float
    silent: int


def texts(n: int) -> list[bytes]:
    """So many, the same each time."""
    rng = random.Random(20)
    found = []
    for _ in range(n):
        one, other = rng.sample(_WORDS, 2)
        found.append(rng.choice(_TEMPLATES).format(a=one, b=other).encode())
    return found


def prompts(lm: CharLM, whole: Sequence[bytes]) -> list[bytes]:
    """A beginning of each text, cut in its second half, if it is short."""
    rng = random.Random(21)
    cut = [text[: rng.randint(len(text) // 2, len(text) - 1)] for text in whole]
    return [prompt for prompt in cut if len(lm.vocabulary.encode(prompt)) <= 24]


def scored(lm: CharLM, whole: Sequence[bytes], truth: Sequence[Any], preset: str) -> Row:
    """The scores of texts against finer ones."""
    off, stated, contexts, silent = [], [], 0, 0
    for text, fine in zip(whole, truth, strict=True):
        score = lm.score(text, preset=preset)
        assert score.error is not None
        error, lost = float(score.error.sum()), float(fine.sum() - score.logprobs.sum())
        off.append(float(np.abs(score.logprobs - fine).mean()) / NATS)
        stated.append(error / len(text) / NATS)
        silent += lost > max(1.0, 3 * error)
        contexts += score.contexts
    return Row(float(np.mean(off)), float(np.mean(stated)), contexts / len(whole), silent)


def followed(lm: CharLM, short: Sequence[bytes], truth: Sequence[Any], preset: str) -> Row:
    """What may follow prompts, against all that may."""
    off, stated, contexts, silent = [], [], 0, 0
    for prompt, fine in zip(short, truth, strict=True):
        state = lm.state(prompt, preset=preset)
        found = state.next()
        off.append(float(np.abs(found.probs - fine).sum()) / 2)
        stated.append(found.error)
        silent += off[-1] > max(0.02, 3 * found.error)
        contexts += state.shared.evaluated.tree.contexts
    return Row(float(np.mean(off)), float(np.mean(stated)), contexts / len(short), silent)


def measure(lm: CharLM, n: int) -> dict[str, Row]:
    """All rows of one model."""
    whole = texts(n)
    fine = [lm.score(text, tolerance=0.002).logprobs for text in whole]
    rows = {}
    kept, falling_theta._FEWEST = falling_theta._FEWEST, 0
    rows["score, default, no rule"] = scored(lm, whole, fine, "default")
    falling_theta._FEWEST = kept
    for preset in ("fast", "default", "accurate"):
        rows[f"score, {preset}"] = scored(lm, whole, fine, preset)
    short = prompts(lm, whole)
    nexts = [lm.next(prompt, preset=_FINE).probs for prompt in short]
    for preset in ("fast", "default", "accurate"):
        rows[f"next, {preset}, {len(short)} prompts"] = followed(lm, short, nexts, preset)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=list(held_out.MODELS))
    parser.add_argument("--texts", type=int, default=60)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    table = Table("model", "what", "off", "stated", "silent", "contexts")
    out: dict[str, Any] = {}
    for name, lm in held_out.models(args.models).items():
        out[name] = {what: row._asdict() for what, row in measure(lm, args.texts).items()}
        for what, row in out[name].items():
            numbers = (f"{row['off']:.4f}", f"{row['stated']:.4f}", str(row["silent"]))
            table.add_row(name, what, *numbers, f"{row['contexts']:.0f}")
        table.add_section()
    Console().print(f"{args.texts} texts of {sum(map(len, texts(args.texts))):,} bytes")
    Console().print(table)
    if args.json:
        args.json.write_text(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
