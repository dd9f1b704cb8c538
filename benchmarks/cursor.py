"""A cursor in an editor: a typed character, the next byte of a prompt, and a completion.

    python benchmarks/cursor.py [--model smollm2] [--before]

*calls* are model calls a typed character. *total variation* is the mean distance of the next byte's
distribution from a state that opens contexts down to a threshold of 1e-4 (kept in build/). The
other rows are ratios of processor time: of a typed character to a decoding step of the model's own
library, of `next()` to a plain pass, and of 30 bytes of completion to `generate`.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import sys
import time
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray

import texts
from charwise import Effort, State
from harness import BUILD, arguments, finish, in_version, lm_of, seconds, table

#: Characters of a prompt, and characters typed after it.
PROMPT, TYPED = 400, 60

#: Characters of the prompts of `next()` and of completions, and bytes of a completion.
LONG, COMPLETED = 1500, 30


def sources() -> dict[str, str]:
    """Code and English; nothing of it chose a constant."""
    code = texts.lines_from(texts.path_of("textwrap").read_bytes(), 9000)
    english = texts.path_of("wikitext103_test_64k.txt")
    found = {"code": code.decode()}
    if english.exists():
        found["English"] = texts.lines_from(english.read_bytes(), 20000).decode()
    return found


def calls_of(shared: Any) -> int:
    """Model calls of a tree, whose place was another before."""
    return int((shared.tree if hasattr(shared, "tree") else shared.evaluated.tree).calls)


def typed(lm: Any, text: str, **spend: Any) -> tuple[NDArray[np.float64], int, float]:
    """`[characters, 257]` what follows each, model calls, and seconds of the processor."""
    state: State = lm.state(text[:PROMPT], **spend)
    shared, rows, calls = state.shared, [], 0
    seen, started = calls_of(shared), time.process_time()
    for character in text[PROMPT : PROMPT + TYPED]:
        state = state + character
        rows.append(state.next().probs)
        if state.shared is not shared:  # a tree of its own: its prompt counts too
            calls, shared, seen = calls + calls_of(shared) - seen, state.shared, 0
    calls += calls_of(shared) - seen
    return np.array(rows), calls, time.process_time() - started


def reference(model: str, text: str) -> NDArray[np.float64]:
    """What follows each character, from build/ if it is there."""
    key = hashlib.sha256(f"{model} {PROMPT} {TYPED} {text}".encode()).hexdigest()[:24]
    path = BUILD / "references" / f"typed-{key}.npy"
    if not path.exists():
        with (
            mock.patch("charwise.cursor.cover.WIDTH", 32),
            mock.patch.object(Effort, "typed_threshold", 1e-4),
        ):
            rows, _, _ = typed(lm_of(model), text, preset=Effort(7))
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, rows)
    return np.asarray(np.load(path))


def measure(model: str, preset: str) -> dict[str, float]:
    """The means over all sources."""
    lm, rows = lm_of(model), list[dict[str, float]]()
    for text in sources().values():
        text = text[: LONG + 200]
        true = reference(model, text[: PROMPT + TYPED])
        probs, calls, spent = typed(lm, text, preset=preset)
        steps = plain(lm, text[:LONG])
        following = median(lambda t=text: lm.next(t[:LONG], preset=preset))
        [completion] = lm.complete(text[:LONG], max_new_bytes=COMPLETED, preset=preset)
        tokens = len(lm.vocabulary.encode(completion.raw))
        completing = median(
            lambda t=text: lm.complete(t[:LONG], max_new_bytes=COMPLETED, preset=preset)
        )
        rows.append(
            {
                "calls": calls / TYPED,
                "total variation": float(np.abs(probs - true).sum(axis=1).mean() / 2),
                "typed / decoding step": spent / TYPED / steps["step"],
                "next() / plain pass": following / steps["pass"],
                "completion / generate": completing / (steps["pass"] + tokens * steps["token"]),
            }
        )
    return {name: statistics.fmean(row[name] for row in rows) for name in rows[0]}


def median(run: Any) -> float:
    """The median time of three runs."""
    return statistics.median(seconds(run) for _ in range(3))


@torch.inference_mode()
def plain(lm: Any, text: str) -> dict[str, float]:
    """Seconds of a forward pass, of a decoding step after it, and of a token of `generate`."""
    model = lm.engine.model
    ids = torch.tensor([[*lm.vocabulary.bos_ids, *lm.vocabulary.encode(text)]])
    one = median(lambda: model(ids, use_cache=True, logits_to_keep=1))
    cache = model(ids, use_cache=True, logits_to_keep=1).past_key_values
    step = statistics.median(
        seconds(lambda: model(ids[:, -1:], past_key_values=cache)) for _ in range(12)
    )
    generate = partial(
        model.generate, ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0
    )
    few, many = (
        median(partial(generate, max_new_tokens=count, min_new_tokens=count)) for count in (1, 9)
    )
    return {"pass": one, "step": step, "token": (many - few) / 8}


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--model", default="smollm2", choices=texts.MODELS)
    parser.add_argument("--before", action="store_true", help="also measure the revision --base")
    parser.add_argument("--raw", action="store_true", help="print the rows as JSON")
    args, started = parser.parse_args(), time.perf_counter()
    torch.set_num_threads(1)
    presets = ("default",) if args.quick else ("fast", "default", "accurate")
    rows = {preset: measure(args.model, preset) for preset in presets}
    if args.raw:
        json.dump(rows, sys.stdout)
        return
    if args.before:
        words = ["--model", args.model, "--raw", *(["--quick"] if args.quick else [])]
        before = in_version(args.base, words)
        rows |= {f"{preset}, before": row for preset, row in before.items()}
    columns = ["", *rows["default"]]
    lines = [[name, *(f"{value:.3g}" for value in row.values())] for name, row in rows.items()]
    finish(args, [table(f"{args.model}, at a cursor", columns, lines)], rows, started)


if __name__ == "__main__":
    main()
