"""Memory of scoring and of `next`, beyond that of one plain pass with its cache.

    python benchmarks/memory.py [--tokens 800] [--preset default]

Each way runs in a process of its own, after a warm-up on a short text; what counts is how far the
peak of resident memory rises above the level before. `× cache` divides what it rises beyond the
plain pass by the bytes of that pass's key-value cache.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import charwise
import texts

WAYS = ("plain", "score", "next")


def text_of(lm: charwise.CharLM, tokens: int) -> bytes:
    """The hard text, cut after so many canonical tokens."""
    ids = lm.vocabulary.encode(texts.hard_text(8 * tokens))[:tokens]
    return lm.vocabulary.decode(ids)


def run(lm: charwise.CharLM, way: str, text: bytes, preset: str) -> None:
    """One way over one text."""
    if way == "plain":
        ids = [*lm.vocabulary.bos_ids, *lm.vocabulary.encode(text)]
        with torch.inference_mode():
            lm.engine.model(torch.tensor([ids]), use_cache=True, logits_to_keep=1)  # type: ignore[attr-defined]
    elif way == "score":
        lm.score(text, preset=preset)
    else:
        lm.next(text, preset=preset)


def cache_bytes(lm: charwise.CharLM, tokens: int) -> int:
    """Of the keys and values of so many tokens."""
    config = lm.engine.model.config  # type: ignore[attr-defined]
    width = config.head_dim * config.num_key_value_heads
    return 2 * 4 * config.num_hidden_layers * width * tokens


def peak() -> int:
    """The peak of resident memory so far, bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def resident() -> int:
    """Resident memory now, bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def child(way: str, tokens: int, preset: str) -> None:
    """Print how far the peak rises; a text of 100 tokens comes first, for what is loaded once."""
    lm = charwise.load()
    run(lm, way, text_of(lm, 100), preset)
    text, level = text_of(lm, tokens), resident()
    run(lm, way, text, preset)
    print(max(0, peak() - level))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=800)
    parser.add_argument("--preset", default="default")
    parser.add_argument("--repeat", type=int, default=3, help="processes whose median is taken")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        child(args.way, args.tokens, args.preset)
        return
    rises: dict[str, int] = {}
    for way in WAYS:
        command = [sys.executable, __file__, "--way", way, "--tokens", str(args.tokens)]
        command += ["--preset", args.preset]
        found = sorted(int(subprocess.check_output(command)) for _ in range(args.repeat))
        rises[way] = found[len(found) // 2]
    cache = cache_bytes(charwise.load(), args.tokens)
    table = Table("way", "peak MB", "beyond plain MB", "× cache")
    for way, rise in rises.items():
        beyond = rise - rises["plain"]
        cells = [f"{value / 2**20:.1f}" for value in (rise, beyond)]
        table.add_row(way, *cells, f"{beyond / cache:.2f}")
    title = f"{args.tokens} tokens, preset {args.preset}: a cache of {cache / 2**20:.1f} MB"
    Console().print(title)
    Console().print(table)


if __name__ == "__main__":
    main()
