"""A cursor in an editor: the next byte, one more character, one less, and a completion.

    python benchmarks/cursor.py [--model M] [--json FILE] [--markdown]

All times are medians over several runs in one process, and each is given as a ratio to what the
model's own library needs for the comparable step: one plain forward pass over the prompt's
tokens, one incremental decoding step, `generate`'s time a token.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import charwise
import texts
from charwise.engines.pretrained import read_pretrained
from charwise.models import EMBEDDED


def median_ms(run: Callable[[], Any], repeat: int) -> float:
    """Median milliseconds of a call, after one to warm up."""
    run()
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times)


@torch.inference_mode()
def plain(model: Any, ids: torch.Tensor, repeat: int) -> tuple[float, float]:
    """Milliseconds of a forward pass over the prompt, and of one decoding step after it."""
    prefill = median_ms(lambda: model(ids, use_cache=True, logits_to_keep=1), repeat)
    steps = []
    cache = model(ids, use_cache=True, logits_to_keep=1).past_key_values
    for _ in range(4 * repeat):
        started = time.perf_counter()
        model(ids[:, -1:], past_key_values=cache, use_cache=True)
        steps.append(1000 * (time.perf_counter() - started))
    return prefill, statistics.median(steps)


def typing(lm: charwise.CharLM, prompt: bytes, rest: bytes) -> tuple[list[float], list[float]]:
    """Milliseconds for each typed character, and for each deletion of one, `next` included."""
    state = lm.state(prompt)
    state.next()
    typed, deleted = [], []
    for byte in rest:
        started = time.perf_counter()
        longer = state + bytes([byte])
        longer.next()
        typed.append(1000 * (time.perf_counter() - started))
        started = time.perf_counter()
        (longer - 1).next()
        deleted.append(1000 * (time.perf_counter() - started))
        state = longer
    return typed, deleted


def token_ms(
    lm: charwise.CharLM, model: Any, ids: torch.Tensor, prompt: bytes, size: int, repeat: int
) -> tuple[float, float]:
    """Milliseconds a token after the first: of `complete`, and of `generate`."""
    ours, theirs = [], []
    for _ in range(repeat):
        started = time.perf_counter()
        pieces = 0
        for _piece in lm.stream(prompt, max_new_bytes=size):
            if not pieces:
                started = time.perf_counter()
            pieces += 1
        # A piece is a token, but for those that end inside a character.
        ours.append(1000 * (time.perf_counter() - started) / max(1, pieces - 1))
        spans = []
        for count in (1, 65):
            started = time.perf_counter()
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=count,
                min_new_tokens=count,
                pad_token_id=0,
            )
            spans.append(1000 * (time.perf_counter() - started))
        theirs.append((spans[1] - spans[0]) / 64)
    return statistics.median(ours), statistics.median(theirs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=EMBEDDED)
    parser.add_argument("--bytes", type=int, default=1500, help="length of the prompt")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--preset", default="default")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", action="store_true", help="the table of a page: ratios only")
    args = parser.parse_args()
    text = texts.hard_text(args.bytes + 64)
    prompt, rest = text[: args.bytes], text[args.bytes :]
    lm = charwise.load(args.model, preset=args.preset)
    model, _ = read_pretrained(args.model)
    model.generation_config.max_length = None
    canonical = [*lm.vocabulary.bos_ids, *lm.vocabulary.encode(prompt)]
    ids = torch.tensor([canonical], device=model.device)
    prefill, step = plain(model, ids, args.repeat)
    nxt = median_ms(lambda: lm.next(prompt), args.repeat)
    typed, deleted = typing(lm, prompt, rest)
    ours, theirs = token_ms(lm, model, ids, prompt, 300, args.repeat)
    state = lm.state(prompt)
    tree = state.shared.evaluated.tree
    rows = [
        ("next() on the prompt", nxt, "one plain forward pass", prefill),
        ("one more character, mean", statistics.mean(typed), "one decoding step", step),
        ("one more character, worst", max(typed), "one decoding step", step),
        ("one character less", statistics.median(deleted), "one decoding step", step),
        ("complete, a token", ours, "generate, a token", theirs),
    ]
    title = (
        f"{len(prompt)} bytes, {len(canonical)} tokens, preset {args.preset}: "
        f"{tree.contexts - 1} contexts in {tree.calls - 1} calls after the prefill"
    )
    if args.markdown:
        print("| | compared with | ratio |\n|---|---|---|")
        for name, ms, other, other_ms in rows:
            print(f"| {name} | {other} | {ms / other_ms:.2f} |")
    else:
        table = Table("what", "ms", "compared with", "ms", "ratio", title=title)
        for name, ms, other, other_ms in rows:
            table.add_row(name, f"{ms:.2f}", other, f"{other_ms:.2f}", f"{ms / other_ms:.2f}")
        Console(width=110).print(table)
    if args.json:
        args.json.write_text(json.dumps({"title": title, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
