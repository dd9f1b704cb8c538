"""A cursor in an editor: a typed character, the next byte of a prompt, and a completion.

    python benchmarks/cursor.py [--model smollm2] [--quick]

Means over code and English; docs/benchmarks.md says what the columns are. The distance is from a
state that opens contexts down to a threshold of 1e-4.
"""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray

import texts
from charwise import Effort
from harness import arguments, clock, finish, lm_of, median, table

PROMPT, TYPED = 400, 60  # characters of a prompt, and typed after it
LONG, COMPLETED = 1500, 30  # characters of other prompts, and bytes of a completion


def sources() -> dict[str, str]:
    """Code and English; nothing of it chose a constant."""
    places = {"code": ("textwrap", 9000), "English": ("wikitext103_test_64k.txt", 20000)}
    return {
        name: texts.lines_from(path.read_bytes(), start).decode()
        for name, (source, start) in places.items()
        if (path := texts.path_of(source)).exists()
    }


def typed(lm: Any, text: str, **spend: Any) -> tuple[NDArray[np.float64], int, float]:
    """`[characters, 257]` what follows each, model calls, and seconds of the processor."""
    state, rows, calls = lm.state(text[:PROMPT], **spend), [], list[None]()
    hook = lm.engine.model.register_forward_pre_hook(lambda *_: calls.append(None))
    started = clock()
    for character in text[PROMPT : PROMPT + TYPED]:
        state = state + character
        rows.append(state.next().probs)
    hook.remove()
    return np.array(rows), len(calls), clock() - started


def finest(lm: Any, text: str) -> NDArray[np.float64]:
    """What follows each character, by a state that opens nearly all contexts."""
    with (
        mock.patch("charwise.cursor.cover.WIDTH", 32),
        mock.patch.object(Effort, "typed_threshold", 1e-4),
    ):
        return typed(lm, text, preset=Effort(7))[0]


@torch.inference_mode()
def plain(lm: Any, text: str) -> dict[str, float]:
    """Seconds of a forward pass, of a decoding step after it, and of a token of `generate`."""
    model = lm.engine.model
    ids = torch.tensor([[*lm.vocabulary.bos_ids, *lm.vocabulary.encode(text)]], device=model.device)
    whole = partial(model, ids, use_cache=True, logits_to_keep=1)
    cache = whole().past_key_values
    mask = torch.ones_like(ids)
    generate = partial(model.generate, ids, attention_mask=mask, do_sample=False, pad_token_id=0)
    few, many = (median(partial(generate, max_new_tokens=n, min_new_tokens=n)) for n in (1, 9))
    step = median(lambda: model(ids[:, -1:], past_key_values=cache), 12)
    return {"pass": median(whole), "step": step, "token": (many - few) / 8}


def measure(preset: str, lm: Any, text: str, steps: dict[str, float], true: Any) -> list[float]:
    """The columns for one text."""
    probs, calls, spent = typed(lm, text, preset=preset)
    following = median(lambda: lm.next(text[:LONG], preset=preset))
    complete = partial(lm.complete, text[:LONG], max_new_bytes=COMPLETED, preset=preset)
    tokens = len(lm.vocabulary.encode(complete()[0].raw))
    return [
        calls / TYPED,
        float(np.abs(probs - true).sum(axis=1).mean() / 2),
        spent / TYPED / steps["step"],
        following / steps["pass"],
        median(complete) / (steps["pass"] + tokens * steps["token"]),
    ]


def main() -> None:
    parser = arguments(__doc__ or "", "smollm2")
    args = parser.parse_args()
    lm, presets = lm_of(args.model), ["default"] if args.quick else ["fast", "default", "accurate"]
    rows: dict[str, list[list[float]]] = {preset: [] for preset in presets}
    for text in sources().values():
        steps, true = plain(lm, text[:LONG]), finest(lm, text)
        for preset in presets:
            rows[preset].append(measure(preset, lm, text, steps, true))
    columns = ["", "calls", "total variation", "typed / decoding step"]
    columns += ["next() / plain pass", "completion / generate"]
    means = {name: np.mean(row, axis=0).tolist() for name, row in rows.items()}
    finish(table(f"{args.model}, at a cursor", columns, means))


if __name__ == "__main__":
    main()
