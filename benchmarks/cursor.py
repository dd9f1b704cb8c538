"""A cursor in an editor: the next byte, one more character, one less, and a completion.

    python benchmarks/cursor.py [--quick] [--json FILE]

`next()` is given as a ratio to one plain forward pass over the prompt's tokens; the others as
ratios to one cached decoding step of the model's own library, and a completed token to a token of
`generate`. Prompts are 1,500 bytes of code that the embedded model never saw. Times are processor
time with one thread: medians of several runs, both versions in turns.
"""

from __future__ import annotations

import inspect
import statistics
import time
from functools import partial
from typing import Any

import numpy as np
import torch

import texts
from charwise import State
from harness import arguments, finish, lm_of, median_of_turns, seconds, table, versions

#: Bytes of a prompt, and characters that are typed after it.
PROMPT, TYPED = 1500, 64

#: Figure, and what it is compared with.
ROWS = {
    "next() on the prompt": "one plain forward pass",
    "one more character, mean": "one decoding step",
    "one more character, worst": "one decoding step",
    "one character less": "one decoding step",
    "complete, a token": "generate, a token",
}


def measure(prompt: bytes, rest: bytes) -> dict[str, float]:
    """Seconds of each row and of the model's own steps, after one prompt."""
    lm = lm_of("embedded")
    model: Any = lm.engine.model  # type: ignore[attr-defined]
    ids = torch.tensor([[*lm.vocabulary.bos_ids, *lm.vocabulary.encode(prompt)]])
    found = plain(model, ids)
    found["next() on the prompt"] = seconds(lambda: lm.next(prompt))
    state, typed, deleted = lm.state(prompt), list[float](), list[float]()
    state.next()
    for byte in rest:
        started = time.process_time()
        longer = state + bytes([byte])
        longer.next()
        typed.append(time.process_time() - started)
        deleted.append(seconds(partial(shorten, longer)))
        state = longer
    found["one more character, mean"] = statistics.mean(typed)
    found["one more character, worst"] = max(typed)
    found["one character less"] = statistics.median(deleted)
    pieces, started = 0, time.process_time()
    for _ in lm.stream(prompt, max_new_bytes=150):
        pieces += 1
        if pieces == 1:
            started = time.process_time()
    found["complete, a token"] = (time.process_time() - started) / max(1, pieces - 1)
    return found


def shorten(state: State) -> None:
    """Delete a character, and ask for the next byte."""
    (state - 1).next()


@torch.inference_mode()
def plain(model: Any, ids: torch.Tensor) -> dict[str, float]:
    """Seconds of a forward pass, a decoding step after it, and a token of `generate`."""
    found = {
        "one plain forward pass": seconds(lambda: model(ids, use_cache=True, logits_to_keep=1))
    }
    parameters = inspect.signature(model.forward).parameters
    name = "cache" if "cache" in parameters else "past_key_values"
    cache = getattr(model(ids, use_cache=True, logits_to_keep=1), name)
    steps = [
        seconds(lambda: model(ids[:, -1:], use_cache=True, **{name: cache})) for _ in range(24)
    ]
    found["one decoding step"] = statistics.median(steps)
    generate = partial(
        model.generate, ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0
    )
    few, many = (
        seconds(partial(generate, max_new_tokens=count, min_new_tokens=count)) for count in (1, 33)
    )
    return found | {"generate, a token": (many - few) / 32}


def prompts(count: int) -> list[tuple[bytes, bytes]]:
    """Prompts, and what is typed after each."""
    data = texts.hard_text(200_000)
    starts = np.linspace(3000, 180_000, count).astype(int)
    return [
        (data[at : at + PROMPT], data[at + PROMPT : at + PROMPT + TYPED]) for at in starts.tolist()
    ]


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--prompts", type=int, help="how many")
    args, started = parser.parse_args(), time.perf_counter()
    count, repeat = args.prompts or (2 if args.quick else 6), 2 if args.quick else 3
    ratios = []
    with versions(args) as both:
        for prompt, rest in prompts(count):
            both.in_turns(measure, prompt, rest)
            runs = [both.in_turns(measure, prompt, rest) for _ in range(repeat)]
            medians = median_of_turns(runs)
            ratios.append(
                {
                    v: {row: one[row] / one[of] for row, of in ROWS.items()}
                    for v, one in medians.items()
                }
            )
    lines = []
    for row, of in ROWS.items():
        cells = [
            f"{form([one[version][row] for one in ratios]):.2f}"
            for version in ("before", "after")
            for form in (statistics.median, max)
        ]
        lines.append([row, of, *cells])
    columns = ["", "compared with", "before", "worst prompt", "after", "worst prompt"]
    title = f"Ratios, median of {count} prompts of {PROMPT} bytes"
    finish(args, [table(title, columns, lines)], ratios, started)


if __name__ == "__main__":
    main()
