"""A cursor in an editor: the next byte, one more character, one less, and a completion.

    python benchmarks/cursor.py [--model M] [--json FILE] [--markdown]
    python benchmarks/cursor.py --prompts 8

All times are medians over several runs in one process, and each is given as a ratio to what the
model's own library needs for the comparable step: one plain forward pass over the prompt's
tokens, one incremental decoding step, `generate`'s time a token.

One prompt says little of `next`, which takes as many calls as a prompt is hard. `--prompts` times
it alone, on so many random stretches of each text of the embedded model in `held_out.py`, which
begin and end at any byte.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import charwise
import held_out
import texts
from charwise.engines.pretrained import read_pretrained
from charwise.models import EMBEDDED
from charwise.processors.transformers.arguments import cache_name_of


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
    name = cache_name_of(model)
    cache = getattr(model(ids, use_cache=True, logits_to_keep=1), name)
    for _ in range(4 * repeat):
        started = time.perf_counter()
        model(ids[:, -1:], use_cache=True, **{name: cache})
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


def over_prompts(size: int, count: int, repeat: int, preset: str) -> Table:
    """How long `next` takes of a plain pass, on random stretches of several texts."""
    lm, rng, ratios = charwise.load(preset=preset), random.Random(7), dict[str, list[float]]()
    model: Any = lm.engine
    calls = dict[str, list[int]]()
    for name, what, source, _ in held_out.HELD_OUT:
        if name != "embedded" or not (path := held_out.path_of(source)).exists():
            continue
        data = path.read_bytes()
        for _ in range(count):
            begin = rng.randrange(max(1, len(data) - size))
            prompt = data[begin : begin + size]
            tokens = [*lm.vocabulary.bos_ids, *lm.vocabulary.encode_beginning(prompt)]
            ids = torch.tensor([tokens], device=model.device)
            prefill, _ = plain(model.model, ids, repeat)
            ms = median_ms(lambda prompt=prompt: lm.next(prompt), repeat)
            ratios.setdefault(what, []).append(ms / prefill)
            made = lm.state(prompt).shared.evaluated.tree.calls
            calls.setdefault(what, []).append(made)
    ratios["all"] = [ratio for some in ratios.values() for ratio in some]
    calls["all"] = [made for some in calls.values() for made in some]
    title = f"next() of {size} bytes, by a plain pass, preset {preset}"
    table = Table("text", "prompts", "calls, mean", "median", "worst", "1.6 or less", title=title)
    for what, some in ratios.items():
        within = sum(ratio <= 1.6 for ratio in some)
        cells = (statistics.mean(calls[what]), statistics.median(some), max(some))
        table.add_row(what, str(len(some)), *(f"{cell:.2f}" for cell in cells), str(within))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=EMBEDDED)
    parser.add_argument("--bytes", type=int, default=1500, help="length of the prompt")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--preset", default="default")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", action="store_true", help="the table of a page: ratios only")
    parser.add_argument("--prompts", type=int, help="only next(), on so many prompts of each text")
    args = parser.parse_args()
    if args.prompts:
        if args.model != EMBEDDED or args.json or args.markdown:
            parser.error("--prompts takes the embedded model, and prints a table only")
        table = over_prompts(args.bytes, args.prompts, args.repeat, args.preset)
        Console(width=110).print(table)
        return
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
