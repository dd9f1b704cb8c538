"""How fast the sorted vocabulary answers, against the ways one would do it without.

    python benchmarks/index.py [--json FILE] [--tokenizers llama3 qwen2]

The tokenizers are read from the folder that CHARWISE_DATA names (default `../shared/data` beside
the repository). Each line below answers the same question: which tokens start with a prefix, or
are a proper prefix of it?

    index   charwise.SortedVocabulary.allowed, without any cache
    scan    a loop over the whole vocabulary
    trie    nested dicts, collecting the ids under a node depth first
    mtc     mtc-token-healing's automaton for the range (if installed: pip install
            mtc-token-healing), plus dictionary look-ups for the shorter tokens

Times: the median over batches of calls; for "worst", every prefix is timed alone, several times,
and its least time counts, so that a scheduler's pause is not taken for a slow prefix.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import tracemalloc
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from sys import getsizeof
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from charwise import SortedVocabulary, Vocabulary

PREFIXES = (b"test", b"ing", b"not", b"a", b"ret", b"self.", b" ")
Allowed = Callable[[bytes], Any]


# --- the alternatives --------------------------------------------------------------------------


def scan(vocabulary: Vocabulary) -> Allowed:
    """(a) One loop over the whole vocabulary."""
    pairs = [(id, token) for id, token in enumerate(vocabulary.tokens) if token is not None]

    def allowed(forced: bytes) -> list[int]:
        return [id for id, t in pairs if t.startswith(forced) or forced.startswith(t)]

    return allowed


def trie(vocabulary: Vocabulary) -> Allowed:
    """(b) Nested dicts, byte → node; the ids of a node's own tokens are under the key −1."""
    root: dict[int, Any] = {}
    for id, token in enumerate(vocabulary.tokens):
        if token is not None:
            node = root
            for byte in token:
                node = node.setdefault(byte, {})
            node.setdefault(-1, []).append(id)

    def allowed(forced: bytes) -> list[int]:
        node = root
        found: list[int] = []
        for byte in forced:
            found += node.get(-1, ())
            if byte not in node:
                return found
            node = node[byte]
        stack = [node]
        while stack:
            for key, child in stack.pop().items():
                if key == -1:
                    found += child
                else:
                    stack.append(child)
        return found

    return allowed


def mtc(vocabulary: Vocabulary) -> Allowed | None:
    """(c) A compiled automaton: the range of every suffix of the prefix that starts a token."""
    try:
        from mtc_token_healing import VocabPrefixAutomaton
    except ImportError:
        return None
    known = [(id, token) for id, token in enumerate(vocabulary.tokens) if token is not None]
    automaton = VocabPrefixAutomaton([token for _, token in known])
    # Its ranges count in its own sorted order, which is read once.
    ids = np.array([id for id, _ in known])[np.array(automaton.get_order())]
    exact: dict[bytes, list[int]] = {}
    for id, token in known:
        exact.setdefault(token, []).append(id)

    def allowed(forced: bytes) -> NDArray[np.int64]:
        shorter = [id for k in range(1, len(forced)) for id in exact.get(forced[:k], ())]
        suffixes = automaton.parse_bytes(forced, 0)
        if not suffixes or suffixes[-1][0] != 0:  # no token starts with all of it
            return np.array(shorter, dtype=np.int64)
        of_all = suffixes[-1][1]
        return np.concatenate((shorter, ids[of_all.lower : of_all.upper])).astype(np.int64)

    return allowed


# --- measuring ---------------------------------------------------------------------------------


def per_call(call: Callable[[], object], budget: float = 0.3) -> float:
    """Median seconds per call, over batches of about a millisecond, within a budget."""
    start = perf_counter()
    call()
    once = perf_counter() - start
    batch = max(1, min(1000, int(1e-3 / max(once, 1e-7))))
    times: list[float] = []
    end = perf_counter() + budget
    while perf_counter() < end or len(times) < 3:
        start = perf_counter()
        for _ in range(batch):
            call()
        times.append((perf_counter() - start) / batch)
    return statistics.median(times)


def worst(allowed: Allowed, prefixes: Iterable[bytes], repeats: int = 5) -> tuple[float, bytes]:
    """The slowest prefix, each at the least of several calls."""
    slowest, at = 0.0, b""
    for prefix in prefixes:
        least = 1.0
        for _ in range(repeats):
            start = perf_counter()
            allowed(prefix)
            least = min(least, perf_counter() - start)
        if least > slowest:
            slowest, at = least, prefix
    return slowest, at


def build(make: Callable[[], object]) -> float:
    """Least seconds of three builds."""
    times = []
    for _ in range(3):
        gc.collect()
        start = perf_counter()
        make()
        times.append(perf_counter() - start)
    return min(times)


def memory(make: Callable[[], object]) -> float:
    """Megabytes that a structure keeps; its input is not counted."""
    gc.collect()
    tracemalloc.start()
    kept = make()
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del kept
    return size / 1e6


def measure(tokenizer: Any, out: Console) -> dict[str, Any]:
    """Every number of one tokenizer, in the units that its name gives; prints the two tables."""
    vocabulary = Vocabulary.from_transformers(tokenizer)
    index = SortedVocabulary(vocabulary)
    tensor = torch.empty(vocabulary.width)
    mtc_allowed = mtc(vocabulary)
    ways = {"index": index.allowed, "scan": scan(vocabulary), "trie": trie(vocabulary)}
    if mtc_allowed is not None:
        ways["mtc"] = mtc_allowed

    table = Table(title=f"allowed(prefix), median µs: {vocabulary.width:,} ids")
    for column in ("prefix", "allowed", *ways):
        table.add_column(column, justify="left" if column == "prefix" else "right")
    medians: dict[str, dict[str, float]] = {way: {} for way in ways}
    for prefix in PREFIXES:
        expected = sorted(index.allowed(prefix).tolist())
        for way, allowed in ways.items():
            assert sorted(int(id) for id in allowed(prefix)) == expected, (way, prefix)
            medians[way][prefix.decode()] = per_call(partial(allowed, prefix)) * 1e6
        row = (f"{medians[way][prefix.decode()]:,.2f}" for way in ways)
        table.add_row(repr(prefix.decode()), f"{len(expected):,}", *row)
    out.print(table)
    if mtc_allowed is None:
        out.print("mtc-token-healing is not installed: its column is left out.")

    prefixes = {token[:k] for token in index.sorted for k in range(1, len(token) + 1)}
    slowest, where = worst(index.allowed, prefixes)
    space = b" "  # the prefix that most tokens share
    found = {
        "allowed, median (µs)": max(medians["index"].values()),
        "allowed, worst of all prefixes (µs)": slowest * 1e6,
        "build (s)": build(lambda: SortedVocabulary(vocabulary)),
        "memory (MB)": memory(lambda: SortedVocabulary(vocabulary)),
        "mask, new (µs)": per_call(lambda: index.mask(space)) * 1e6,
        "mask, preallocated (µs)": per_call(lambda: index.mask(space, out=tensor)) * 1e6,
    }
    narrow = partial(index.mask, b"ret", out=tensor)
    others = {
        "mask of a narrow prefix (µs)": per_call(narrow) * 1e6,
        "bit mask (µs)": per_call(lambda: index.bitmask(space)) * 1e6,
        "build of the Vocabulary (s)": build(lambda: Vocabulary.from_transformers(tokenizer)),
        "token bytes themselves (MB)": sum(map(getsizeof, index.sorted)) / 1e6,
        "build of the trie (s)": build(lambda: trie(vocabulary)),
        "memory of the trie (MB)": memory(lambda: trie(vocabulary)),
    }
    if mtc_allowed is not None:
        others["build of mtc (s)"] = build(lambda: mtc(vocabulary))

    table = Table("", title="masks: for one space, the widest prefix")
    table.add_column("measured", justify="right")
    for name, value in (found | others).items():
        table.add_row(name, f"{value:.2f}")
    out.print(table)
    shown = f"{where[:16]!r}… ({len(where)} bytes)" if len(where) > 16 else repr(where)
    out.print(f"Slowest of {len(prefixes):,} distinct prefixes: {shown}\n", markup=False)
    return {
        "medians_us": medians,
        **found,
        **others,
        "prefixes": len(prefixes),
        "worst_prefix": repr(where),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokenizers", nargs="+", default=["llama3", "qwen2"])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here, too")
    arguments = parser.parse_args()
    root = Path(__file__).resolve().parents[1]
    folder = Path(os.environ.get("CHARWISE_DATA") or root.parent / "shared" / "data")
    out = Console()
    results = {}
    for name in arguments.tokenizers:
        path = folder / "tokenizers" / name
        if not path.is_dir():
            out.print(f"No tokenizer in {path}: set CHARWISE_DATA to the folder that has them.")
            raise SystemExit(1)
        from transformers import AutoTokenizer

        out.rule(name)
        results[name] = measure(AutoTokenizer.from_pretrained(path), out)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
