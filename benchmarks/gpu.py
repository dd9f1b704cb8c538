"""What a GPU makes of it: scoring, the cursor and healing, at the sizes and vocabularies in use.

    PYTHONPATH=src python benchmarks/gpu.py --json build/gpu.json
    python benchmarks/gpu.py --tiny       # the same in small, on a CPU: no figure, but it runs

Random weights in bfloat16 with the shapes of Llama-3.2-1B and Qwen2.5-Coder-7B, and the tokenizers
of `CHARWISE_DATA` that belong to them. What random weights say is noise: contexts a byte are not
those of a trained model, so look at the time of a context. Bytes a second are by the clock. What
does not fit into `--seconds` is left out, and said to be.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, Qwen2Config

import charwise
import processors
import texts
from charwise.models import EMBEDDED
from harness import table
from paper import walk_beam, walk_canonical

#: The sizes that a shape has, as config.json names them.
SIZES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "max_position_embeddings", "vocab_size"),
)
LLAMA = (2048, 8192, 16, 32, 8, 131_072, 128_256)
QWEN = (3584, 18_944, 28, 28, 4, 32_768, 152_064)
TINY = (32, 64, 2, 2, 1, 1024)

#: The class of configuration, its sizes, whether embeddings are tied, and the tokenizer.
SHAPES: dict[str, tuple[Any, tuple[int, ...], bool, str]] = {
    "Llama-3.2-1B": (LlamaConfig, LLAMA, True, "llama3"),
    "Qwen2.5-Coder-7B": (Qwen2Config, QWEN, False, "qwen2"),
}

FORMS = {
    "ms": "{:,.2f}",
    "bytes_per_second": "{:,.0f}",
    "contexts": "{:,}",
    "calls": "{:,}",
    "us_a_context": "{:,.0f}",
    "times_plain": "{:.2f}",
}

Row = dict[str, Any]


class Clock:
    """What is left of the seconds, and how long a call takes on a device that is not waited for."""

    def __init__(self, seconds: float, device: str, repeat: int) -> None:
        self.end, self.device, self.repeat = time.monotonic() + seconds, device, repeat

    @property
    def over(self) -> bool:
        return time.monotonic() > self.end

    def ms(self, run: Callable[[], Any]) -> float:
        """Median of a call, after one to warm up, until the seconds are over."""
        times = []
        for n in range(self.repeat + 1):
            self._wait()
            started = time.perf_counter()
            run()
            self._wait()
            if n or self.over:
                times.append(1000 * (time.perf_counter() - started))
            if self.over:
                break
        return statistics.median(times)

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def model_of(name: str, device: str, tiny: bool) -> tuple[Any, Any]:
    """A model with random weights, and its tokenizer; that of the embedded model in small."""
    kind, sizes, tied, folder = SHAPES[name]
    path = Path(EMBEDDED) if tiny else texts.data_folder() / "tokenizers" / folder
    tokenizer = AutoTokenizer.from_pretrained(path)
    shape = dict(zip(SIZES, (*TINY, len(tokenizer)) if tiny else sizes, strict=True))
    torch.manual_seed(0)
    dtype = torch.float32 if tiny else torch.bfloat16
    with torch.device(device):
        config = kind(**shape, tie_word_embeddings=tied)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model.eval(), tokenizer


def scoring(lm: charwise.CharLM, text: bytes, clock: Clock) -> Iterator[Row]:
    """A plain pass, the K=4 beam on a part, the presets."""
    part = text[: max(100, len(text) // 10)]
    ways: dict[str, tuple[bytes, Callable[[], Any]]] = {
        "plain pass": (text, partial(walk_canonical, lm, text)),
        "beam K=4": (part, partial(walk_beam, lm, part, 4)),
    }
    for preset in ("fast", "default", "accurate"):
        ways[preset] = (text, partial(lm.score, text, preset=preset))
    for name, (over, run) in ways.items():
        if clock.over:
            yield {"what": name, "left out": True}
            continue
        found, ms = run(), clock.ms(run)
        row = {"what": name, "ms": ms, "bytes_per_second": 1000 * len(over) / ms}
        row |= {"contexts": found.contexts, "calls": found.calls}
        yield row | {"us_a_context": 1000 * ms / found.contexts}


@torch.inference_mode()
def cursor(lm: charwise.CharLM, prompt: bytes, clock: Clock) -> list[Row]:
    """`next()` on a prompt and a letter after it, beside a plain pass."""
    if clock.over:
        return [{"what": "cursor", "left out": True}]
    model: Any = lm.engine.model  # type: ignore[attr-defined]
    ids = [*lm.vocabulary.bos_ids, *lm.vocabulary.encode(prompt)]
    tensor = torch.tensor([ids or [0]], device=model.device)
    state = lm.state(prompt)
    state.next()
    ways = {
        "one plain pass": partial(model, tensor, use_cache=True, logits_to_keep=1),
        "next() on the prompt": partial(lm.next, prompt),
        "one more letter": lambda: (state + "e").next(),
    }
    rows: list[Row] = [{"what": name, "ms": clock.ms(run)} for name, run in ways.items()]
    rows[1]["times_plain"] = rows[1]["ms"] / rows[0]["ms"]
    return rows


def healing(lm: charwise.CharLM, clock: Clock) -> Iterator[Row]:
    """The processor for transformers: a call for a whole batch, its scores on the device."""
    dtype = torch.bfloat16 if clock.device == "cuda" else torch.float32
    for batch in (1, 32, 256):
        if clock.over:
            yield {"what": f"healing, batch {batch}", "left out": True}
            return
        scores = torch.randn(batch, lm.vocabulary.width, device=clock.device, dtype=dtype)
        forced = processors.mixed(lm.index, batch)
        for state, generated in (("forced", 0), ("afterwards", 300)):
            call = processors.in_transformers(lm.index, scores, forced, generated)
            yield {"what": f"healing, batch {batch}, {state}", "ms": clock.ms(call)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="small models, on the CPU")
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--bytes", type=int, default=800, help="length of the text")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=500.0, help="for everything together")
    parser.add_argument("--json", type=Path, help="write the table here too")
    args = parser.parse_args()
    if not args.tiny and not torch.cuda.is_available():
        raise SystemExit("there is no GPU here; --tiny runs the same in small on a CPU.")
    device = "cpu" if args.tiny else "cuda"
    where = torch.cuda.get_device_name() if device == "cuda" else "CPU, models in small"
    began, text = time.monotonic(), texts.hard_text(args.bytes)
    results: dict[str, Any] = {"device": where, "torch": torch.__version__, "bytes": len(text)}
    for n, name in enumerate(args.models):
        # What one model leaves, the next may use.
        left = args.seconds - (time.monotonic() - began)
        clock = Clock(left / (len(args.models) - n), device, args.repeat)
        lm = charwise.CharLM.from_transformers(*model_of(name, device, args.tiny))
        rows = [*scoring(lm, text, clock), *cursor(lm, text[:1500], clock), *healing(lm, clock)]
        lines = [
            [
                row["what"],
                *(form.format(row[key]) if key in row else "" for key, form in FORMS.items()),
            ]
            for row in rows
            if "left out" not in row
        ]
        columns = ["what", *(column.replace("_", " ") for column in FORMS)]
        print(table(f"{name}: {len(text)} bytes on {where}", columns, lines))
        print("left out:", ", ".join(row["what"] for row in rows if "left out" in row) or "nothing")
        results[name] = rows
        if args.json:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(results, indent=1))
        del lm
        if device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
