"""What a GPU makes of it: scoring, the cursor and healing, at the sizes and vocabularies in use.

    make gpu                              # or: python benchmarks/gpu.py [--json FILE]
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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, Qwen2Config

import charwise
import processors
import texts
from charwise.evaluation.methods import walk_beam, walk_canonical
from charwise.models import EMBEDDED

#: The class of configuration, the shape as the models' own config.json have it, the tokenizer.
SHAPES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "Llama-3.2-1B": (
        LlamaConfig,
        {
            "vocab_size": 128_256,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131_072,
            "tie_word_embeddings": True,
        },
        "llama3",
    ),
    "Qwen2.5-Coder-7B": (
        Qwen2Config,
        {
            "vocab_size": 152_064,
            "hidden_size": 3584,
            "intermediate_size": 18_944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32_768,
            "tie_word_embeddings": False,
        },
        "qwen2",
    ),
}

#: What `--tiny` makes of every shape.
TINY = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 1024,
}

Row = dict[str, Any]


class Clock:
    """What is left of the seconds, and how long a call takes on a device that is not waited for."""

    def __init__(self, seconds: float, device: str) -> None:
        self.end = time.monotonic() + seconds
        self.device = device

    @property
    def over(self) -> bool:
        return time.monotonic() > self.end

    def seconds(self, run: Callable[[], Any], repeat: int) -> float:
        """Median of a call, after one to warm up, until the seconds are over."""
        times = []
        for n in range(repeat + 1):
            self._wait()
            started = time.perf_counter()
            run()
            self._wait()
            if n or self.over:
                times.append(time.perf_counter() - started)
            if self.over:
                break
        return statistics.median(times)

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def model_of(name: str, device: str, tiny: bool) -> tuple[Any, Any]:
    """A model with random weights, and its tokenizer; that of the embedded model in small."""
    kind, shape, folder = SHAPES[name]
    path = Path(EMBEDDED) if tiny else texts.data_folder() / "tokenizers" / folder
    tokenizer = AutoTokenizer.from_pretrained(path)
    if tiny:
        shape = {**shape, **TINY, "vocab_size": len(tokenizer)}
    torch.manual_seed(0)
    dtype = torch.float32 if tiny else torch.bfloat16
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(kind(**shape), dtype=dtype)
    return model.eval(), tokenizer


def scoring(lm: charwise.CharLM, text: bytes, clock: Clock, repeat: int) -> list[Row]:
    """A plain pass, the K=4 beam on a part, the presets."""
    part = text[: max(100, len(text) // 10)]
    ways: dict[str, tuple[bytes, Callable[[], Any]]] = {
        "plain pass": (text, partial(walk_canonical, lm, text)),
        "beam K=4": (part, partial(walk_beam, lm, part, 4)),
    }
    for preset in ("fast", "default", "accurate"):
        ways[preset] = (text, partial(lm.score, text, preset=preset))
    rows: list[Row] = []
    for name, (over, run) in ways.items():
        if clock.over:
            rows.append({"what": name, "left out": True})
            continue
        found = run()
        seconds = clock.seconds(run, repeat)
        row = {"what": name, "ms": 1000 * seconds, "bytes_per_second": len(over) / seconds}
        row |= {"contexts": found.contexts, "calls": found.calls}
        rows.append(row | {"us_a_context": 1e6 * seconds / found.contexts})
    return rows


@torch.inference_mode()
def cursor(lm: charwise.CharLM, model: Any, prompt: bytes, clock: Clock, repeat: int) -> list[Row]:
    """`next()` on a prompt and a letter after it, beside a plain pass and a decoding step."""
    if clock.over:
        return [{"what": "cursor", "left out": True}]
    ids = [*lm.vocabulary.bos_ids, *lm.vocabulary.encode(prompt)]
    tensor = torch.tensor([ids or [0]], device=model.device)
    prefill = partial(model, tensor, use_cache=True, logits_to_keep=1)
    state = lm.state(prompt)
    state.next()
    ways = {
        "one plain pass": prefill,
        "next() on the prompt": partial(lm.next, prompt),
        "one more letter": lambda: (state + "e").next(),
    }
    rows = [{"what": name, "ms": 1000 * clock.seconds(run, repeat)} for name, run in ways.items()]
    rows[1]["times_plain"] = rows[1]["ms"] / rows[0]["ms"]
    return rows


def healing(lm: charwise.CharLM, device: str, clock: Clock, repeat: int) -> list[Row]:
    """The processor for transformers: a call for a whole batch, its scores on the device."""
    rows: list[Row] = []
    for batch in (1, 32, 256):
        if clock.over:
            return [*rows, {"what": f"healing, batch {batch}", "left out": True}]
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        scores = torch.randn(batch, lm.vocabulary.width, device=device, dtype=dtype)
        forced = processors.mixed(lm.index, batch)
        for state, generated in (("forced", 0), ("afterwards", 300)):
            call = processors.in_transformers(lm.index, scores, forced, generated)
            ms = 1000 * clock.seconds(call, 5 * repeat)
            rows.append({"what": f"healing, batch {batch}, {state}", "ms": ms})
    return rows


def show(name: str, rows: list[Row]) -> None:
    """All of a model in one table."""
    columns = {
        "ms": "{:,.2f}",
        "bytes_per_second": "{:,.0f}",
        "contexts": "{:,}",
        "calls": "{:,}",
        "us_a_context": "{:,.0f}",
        "times_plain": "{:.2f}",
    }
    table = Table("what", *(column.replace("_", " ") for column in columns), title=name)
    for row in rows:
        cells = [form.format(row[key]) if key in row else "" for key, form in columns.items()]
        table.add_row(row["what"], *(["left out"] if "left out" in row else cells))
    Console(width=110).print(table)


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
    began = time.monotonic()
    text = texts.hard_text(args.bytes)
    results: dict[str, Any] = {"device": where, "torch": torch.__version__, "bytes": len(text)}
    for n, name in enumerate(args.models):
        # What one model leaves, the next may use.
        left = args.seconds - (time.monotonic() - began)
        clock = Clock(left / (len(args.models) - n), device)
        model, tokenizer = model_of(name, device, args.tiny)
        lm = charwise.CharLM.from_transformers(model, tokenizer)
        rows = scoring(lm, text, clock, args.repeat)
        rows += cursor(lm, model, text[:1500], clock, args.repeat)
        rows += healing(lm, device, clock, args.repeat)
        show(f"{name}, {lm.vocabulary.width:,} ids: {len(text)} bytes on {where}", rows)
        results[name] = rows
        if args.json:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(results, indent=1))
        del lm, model
        if device == "cuda":
            torch.cuda.empty_cache()
    print(f"{time.monotonic() - began:.0f} seconds in all")


if __name__ == "__main__":
    main()
