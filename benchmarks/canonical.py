"""Canonical token strings only: what may come next against encoding again, and what it changes.

    python benchmarks/canonical.py --strings 10000      # tokenizers: refusals, and rows a second
    python benchmarks/canonical.py --texts              # bits a byte under the three estimands

A string is encoded, and each of its tokens must be allowed where it stands, and the end after the
last. Then one token of it is split in two, or two neighbours are divided elsewhere: what may come
must agree with encoding again.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import charwise
from charwise import SortedVocabulary, Vocabulary
from charwise.engines.canonical import ESTIMANDS, with_estimand
from charwise.models import EMBEDDED
from charwise.token_lm import Estimand
from charwise.tokens.canonical_next import CanonicalNext
from charwise.tokens.utf8 import pending
from texts import data_folder, hard_text, models, passages

TOKENIZERS = ("embedded", "gpt2", "llama2", "llama3", "qwen2")
WIDTHS = {"llama3": 128_256, "qwen2": 151_936}

#: What splitters look at: spaces, line ends, contractions, digits, marks, and other scripts.
_ODD = (
    " ", "  ", "\n", "\r\n", "\t", "'", "’", "'s", "'re", "'RE", "'l", "1", "12", "1234", "½", "é",
    "e\u0301", "你", "🙂", "\u00a0", "\u2028", "_", "(", "a", "A", "x", "S", "the", "ll", "\x00",
    "ſ", "\x85", "٣",
)  # fmt: skip

_RANGES = ((32, 127), (0xA0, 0x250), (0x300, 0x3000), (0x4E00, 0x9FFF), (0x1F300, 0x1F700))


def vocabulary_of(name: str) -> Vocabulary:
    """The vocabulary of one of the tokenizers."""
    from transformers import AutoTokenizer

    folder = EMBEDDED if name == "embedded" else data_folder() / "tokenizers" / name
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return Vocabulary.from_transformers(tokenizer, width=WIDTHS.get(name))


def strings(count: int) -> list[str]:
    """Passages of code and of seven languages, and characters at random."""
    rng = random.Random(1)
    files = sorted((data_folder() / "text").glob("*.txt"))
    texts = [file.read_text(encoding="utf-8") for file in files] + [hard_text(100_000).decode()]
    found = []
    for n in range(count):
        if n % 4 < 2:
            text = rng.choice(texts)
            at = rng.randrange(len(text))
            found.append(text[at : at + rng.randrange(1, 40)])
        elif n % 4 == 2:
            found.append("".join(rng.choices(_ODD, k=rng.randrange(1, 10))))
        else:
            size = rng.randrange(1, 12)
            found.append("".join(chr(rng.randrange(*rng.choice(_RANGES))) for _ in range(size)))
    return found


def edited(ids: list[int], index: SortedVocabulary, rng: random.Random) -> list[int] | None:
    """The same text with one token, or two neighbours, divided elsewhere; None if it cannot be."""
    at = rng.randrange(len(ids))
    size = rng.choice((1, 2))
    raw = index.vocabulary.decode(ids[at : at + size])
    halves = [(index.twins(raw[:k]), index.twins(raw[k:])) for k in range(1, len(raw))]
    some = [(a, b) for a, b in halves if a[0] < a[1] and b[0] < b[1]]
    if not some:
        return None
    one, other = rng.choice(some)
    return [
        *ids[:at],
        int(index.ids[one[1] - 1]),
        int(index.ids[other[1] - 1]),
        *ids[at + size :],
    ]


def allowed(canonical: CanonicalNext, ids: list[int], seconds: list[float]) -> bool:
    """Whether a token string may be a whole text."""
    standing = canonical.start()
    for id in ids:
        began = time.process_time()
        row = canonical.row(standing)
        seconds.append(time.process_time() - began)
        after = canonical.after(standing, id) if row[id] else None
        if after is None:
            return False
        standing = after
    return bool(canonical.row(standing)[canonical.vocabulary.end_ids[0]])


def check(name: str, count: int) -> dict[str, Any]:
    """What may come next against encoding again, for one tokenizer."""
    vocabulary = vocabulary_of(name)
    index = SortedVocabulary.of(vocabulary)
    began = time.process_time()
    canonical = CanonicalNext(vocabulary)
    made = time.process_time() - began
    rng, seconds = random.Random(2), list[float]()
    refused = edits = false_allowed = false_refused = others = tokens = 0
    for text in strings(count):
        ids = vocabulary.encode(text)
        tokens += len(ids)
        refused += not allowed(canonical, ids, seconds)
        other = edited(ids, index, rng)
        if other is not None:
            is_canonical = vocabulary.encode(text) == other
            may = allowed(canonical, other, seconds)
            edits, others = edits + 1, others + (not is_canonical)
            false_allowed += may and not is_canonical
            false_refused += is_canonical and not may
    milliseconds = np.array(seconds) * 1e3
    pairs = []
    for id in rng.sample(range(256, vocabulary.width - 400), 200):
        began = time.process_time()
        canonical.merges.after(id)
        pairs.append(time.process_time() - began)
    return {
        "tokenizer": name,
        "strings": count,
        "tokens": tokens,
        "refused": refused,
        "edits": edits,
        "not canonical": others,
        "falsely allowed": false_allowed,
        "falsely refused": false_refused,
        "made in s": round(made, 2),
        "pairs, ms": round(float(np.mean(pairs)) * 1e3, 3),
        "row, median ms": round(float(np.median(milliseconds)), 3),
        "row, mean ms": round(float(milliseconds.mean()), 3),
        "row, 99 % ms": round(float(np.quantile(milliseconds, 0.99)), 2),
    }


def bits(estimand: Estimand, lm: charwise.CharLM, text: bytes) -> float:
    """Bits a byte of a text, end not counted."""
    one = charwise.CharLM(with_estimand(lm.engine, estimand), tolerance=0.01)
    return float(-one.score(text).logprobs.sum() / np.log(2) / len(text))


def compare(size: int) -> list[dict[str, Any]]:
    """Bits a byte under the three estimands, on held-out text."""
    found = []
    lms = models(("embedded", "stories"))
    kinds, halves = ("code", "easy", "far", "other"), ("choosing", "judging")
    for passage in [one for half in halves for one in passages(half, kinds, size)]:
        if passage.model not in lms:
            continue
        text = passage.text[: len(passage.text) - len(pending(passage.text))]
        row = {name: bits(name, lms[passage.model], text) for name in ESTIMANDS}
        found.append({"passage": passage.name, **{k: round(v, 4) for k, v in row.items()}})
    return found


#: Prompts that end where tokens usually do not.
BOUNDARIES = (
    "import nump",
    "def get_node(self) -> Nod",
    "for i in ra",
    "raise ValueErr",
    "x = 12 ",
)


def boundaries() -> list[dict[str, Any]]:
    """How far the distributions after a prompt's end are from those over all token strings."""
    found = []
    plain = charwise.load()
    for prompt in BOUNDARIES:
        row: dict[str, Any] = {"prompt": prompt}
        full = plain.next(prompt, tolerance=1e-4).probs
        base = plain.prefix_logprob(prompt, tolerance=0.001)
        for name in ESTIMANDS[1:]:
            lm = charwise.CharLM(with_estimand(plain.engine, name))
            off = np.abs(lm.next(prompt, tolerance=1e-4).probs - full).sum() / 2
            nats = lm.prefix_logprob(prompt, tolerance=0.001) - base
            row[f"{name}: total variation"] = f"{off:.1e}"
            row[f"{name}: nats"] = round(float(nats), 4)
        found.append(row)
    return found


def show(console: Console, title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows as a table."""
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strings", type=int, default=0)
    parser.add_argument("--tokenizers", nargs="+", default=list(TOKENIZERS))
    parser.add_argument("--texts", action="store_true")
    parser.add_argument("--size", type=int, default=400, help="bytes of a passage")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    console, out = Console(width=200), dict[str, Any]()
    if args.strings:
        out["strings"] = [check(name, args.strings) for name in args.tokenizers]
        show(console, "encoded again", out["strings"])
    if args.texts:
        out["texts"], out["boundaries"] = compare(args.size), boundaries()
        show(console, "bits a byte", out["texts"])
        show(console, "after a prompt", out["boundaries"])
    if args.json:
        args.json.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
