"""How wide bounds are when a server tells only its k best next tokens, and what they cost.

    python benchmarks/top_k.py [--json FILE] [--url http://127.0.0.1:8000/v1] [--k 5 20 100 1000]

Cuts are random bytes of code that the embedded model never saw (`texts.py`), each with up to 400
bytes before it. With `--url` a server is asked that has the embedded model, started with
`--max-logprobs 1000`; else the model is run here and cut down to its k best tokens, which costs
something else, so that only counts and widths mean anything. Every bound is compared with those
that all tokens of the model, run here, give with nothing but a hundred-thousandth left open.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import charwise
import texts
from charwise.bounded.lm import BoundedLM
from top_k_lm import TopK

KS = (5, 20, 100, 1000)

#: What vLLM's numbers may differ from transformers' by, nats: tests_vllm checks half of it.
ROUNDING = 2e-4


def passages() -> list[bytes]:
    """Held-out code, for the embedded model."""
    return [passage.text for passage in texts.passages("choosing", ["code"], 2000)]


def cuts(count: int) -> list[bytes]:
    """Beginnings of lines and words, and the insides of them: at random bytes."""
    rng = random.Random(5)
    sources, found = passages(), []
    for n in range(count):
        text = sources[n % len(sources)]
        end = rng.randrange(100, len(text))
        found.append(text[max(0, end - 400) : end])
    return found


def measured(lm: BoundedLM, prompts: list[bytes], truths: list[Any]) -> dict[str, float]:
    """Widths and costs of `next` at the cuts."""
    widths, errors, bits, asked = [], [], [], []
    outside, sure, began = 0, 0, perf_counter()
    found = [lm.next(prompt) for prompt in prompts]
    seconds = (perf_counter() - began) / len(prompts)
    for nxt, truth in zip(found, truths, strict=True):
        outside += bool((nxt.lower > truth.upper).any() or (truth.lower > nxt.upper).any())
        widths.append(float((nxt.upper - nxt.lower).max()))
        errors.append(nxt.error)
        asked.append(nxt.contexts)
        best = int(nxt.probs.argmax())
        sure += bool(nxt.lower[best] >= np.delete(nxt.upper, best).max())
        bits.append(0.5 * float(np.abs(nxt.probs - truth.probs).sum()))
    quartiles = statistics.quantiles(widths, n=4)
    return {
        "median": quartiles[1],
        "upper": quartiles[2],
        "error": statistics.median(errors),
        "off": statistics.median(bits),
        "sure": sure / len(prompts),
        "asked": statistics.mean(asked),
        "seconds": seconds,
        "outside": outside,
    }


def scored(lm: BoundedLM, text: bytes, context: bytes) -> dict[str, float]:
    """Bits a byte of a text, between bounds."""
    began = perf_counter()
    score = lm.score(text, context=context)
    least, most = score.bits_per_byte
    return {
        "least": least,
        "most": most,
        "contexts": score.contexts,
        "calls": score.calls,
        "seconds": perf_counter() - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--url", help="of a server of the embedded model; else it is run here")
    parser.add_argument("--k", type=int, nargs="+", default=KS)
    parser.add_argument("--cuts", type=int, default=40)
    parser.add_argument("--bytes", type=int, default=200, help="of a text that is scored")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    whole = charwise.load()
    everything = BoundedLM(TopK(whole.engine, whole.vocabulary.width))
    prompts = cuts(options.cuts)
    truths = [everything.next(prompt, tolerance=1e-5, max_contexts=100) for prompt in prompts]
    passage = passages()[0]
    context, text = passage[:400], passage[400 : 400 + options.bytes]
    rows = []
    for k in options.k:
        if options.url:
            lm = charwise.connect(options.url, "embedded", top_logprobs=k, rounding=ROUNDING)
        else:
            lm = BoundedLM(TopK(whole.engine, k))
        rows.append({"k": k, **measured(lm, prompts, truths), "score": scored(lm, text, context)})
    full = scored(everything, text, context)
    show(options.url, len(prompts), len(text), rows, full)
    if options.json:
        found = {"url": options.url, "rows": rows, "all": full}
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


def show(
    url: str | None, count: int, size: int, rows: list[dict[str, Any]], full: dict[str, float]
) -> None:
    """Two tables: of the next byte, and of a text."""
    where = f"the server at {url}" if url else "the model run here, cut down to k"
    table = Table(title=f"next byte at {count} cuts, {where}")
    heads = ("k", "width", "75 %", "error", "off", "sure", "contexts", "ms", "outside")
    for head in heads:
        table.add_column(head, justify="right")
    for row in rows:
        table.add_row(
            str(row["k"]),
            f"{row['median']:.4f}",
            f"{row['upper']:.4f}",
            f"{row['error']:.4f}",
            f"{row['off']:.4f}",
            f"{row['sure']:.0%}",
            f"{row['asked']:.0f}",
            f"{1000 * row['seconds']:.0f}",
            str(row["outside"]),
        )
    other = Table(title=f"bits a byte of {size} bytes, the same")
    for head in ("k", "least", "most", "contexts", "calls", "s"):
        other.add_column(head, justify="right")
    for name, row in [(str(row["k"]), row["score"]) for row in rows] + [("all, here", full)]:
        other.add_row(
            name,
            f"{row['least']:.4f}",
            f"{row['most']:.4f}" if math.isfinite(row["most"]) else "∞",
            str(row["contexts"]),
            str(row["calls"]),
            f"{row['seconds']:.1f}",
        )
    console = Console(width=100)
    console.print(table)
    console.print(other)


if __name__ == "__main__":
    main()
