"""Scoring and the cursor on a GPU, at the sizes and vocabularies in use.

    PYTHONPATH=src python benchmarks/gpu.py --json build/gpu.json
    python benchmarks/gpu.py --tiny       # the same in small, on a CPU: no figure, but it runs

Random weights in bfloat16 with the shapes of Llama-3.2-1B and Qwen2.5-Coder-7B, and the tokenizers
of `CHARWISE_DATA` that belong to them. Random weights say nothing about text, so contexts a byte
are not those of a trained model: look at the time of a context. Times are by the clock.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, Qwen2Config

import charwise
import texts
from charwise.models import EMBEDDED
from harness import arguments, finish, table
from paper import methods

#: The sizes that a shape has, as config.json names them.
SIZES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "max_position_embeddings", "vocab_size"),
)
TINY = (32, 64, 2, 2, 1, 1024)

#: The class of configuration, its sizes, whether embeddings are tied, and the tokenizer.
SHAPES: dict[str, tuple[Any, tuple[int, ...], bool, str]] = {
    "Llama-3.2-1B": (LlamaConfig, (2048, 8192, 16, 32, 8, 131_072, 128_256), True, "llama3"),
    "Qwen2.5-Coder-7B": (Qwen2Config, (3584, 18_944, 28, 28, 4, 32_768, 152_064), False, "qwen2"),
}

COLUMNS = ("ms", "bytes/s", "contexts", "calls", "µs a context")


def milliseconds(run: Callable[[], Any], device: str, repeat: int) -> float:
    """The median of a call on a device that is not waited for, after one to warm up."""
    times = []
    for _ in range(repeat + 1):
        if device == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times[1:])


def model_of(name: str, device: str, tiny: bool) -> charwise.CharLM:
    """A model with random weights, and its tokenizer; that of the embedded model in small."""
    kind, sizes, tied, folder = SHAPES[name]
    path = Path(EMBEDDED) if tiny else texts.data_folder() / "tokenizers" / folder
    tokenizer = AutoTokenizer.from_pretrained(path)
    shape = dict(zip(SIZES, (*TINY, len(tokenizer)) if tiny else sizes, strict=True))
    torch.manual_seed(0)
    with torch.device(device):
        config = kind(**shape, tie_word_embeddings=tied)
        dtype = torch.float32 if tiny else torch.bfloat16
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return charwise.CharLM.from_transformers(model.eval(), tokenizer)


def scoring(lm: charwise.CharLM, text: bytes, repeat: int, device: str) -> Iterator[list[Any]]:
    """A plain pass, the presets, and the paper's beam with K = 4 on a tenth."""
    for name, run in methods([4], ["fast", "default", "accurate"]).items():
        part = text[: max(60, len(text) // 10)] if name == "beam K=4" else text
        found, ms = run(lm, part), milliseconds(partial(run, lm, part), device, repeat)
        cost = 1000 * ms / found.contexts
        yield [name, ms, 1000 * len(part) / ms, found.contexts, found.calls, cost]


@torch.inference_mode()
def cursor(lm: charwise.CharLM, prompt: bytes, repeat: int, device: str) -> Iterator[list[Any]]:
    """`next()` on a prompt and a letter after it, beside a plain pass."""
    model: Any = lm.engine.model  # type: ignore[attr-defined]
    ids = torch.tensor([[*lm.vocabulary.bos_ids, *lm.vocabulary.encode(prompt)]], device=device)
    state = lm.state(prompt)
    state.next()
    ways: dict[str, Callable[[], Any]] = {
        "one plain pass": partial(model, ids, use_cache=True, logits_to_keep=1),
        "next() on the prompt": partial(lm.next, prompt),
        "one more letter": lambda: (state + "e").next(),
    }
    for name, run in ways.items():
        yield [name, milliseconds(run, device, repeat)]


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--tiny", action="store_true", help="small models, on the CPU")
    parser.add_argument("--bytes", type=int, default=800, help="length of the text")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    if not args.tiny and not torch.cuda.is_available():
        raise SystemExit("there is no GPU here; --tiny runs the same in small on a CPU.")
    device = "cpu" if args.tiny else "cuda"
    where = "CPU, models in small" if args.tiny else torch.cuda.get_device_name()
    text, tables, figures = next(texts.modules())[: args.bytes], list[str](), {}
    for name in SHAPES:
        lm = model_of(name, device, args.tiny)
        rows = [*scoring(lm, text, args.repeat, device), *cursor(lm, text, args.repeat, device)]
        title = f"{name}: {len(text)} bytes on {where}"
        tables.append(table(title, ["", *COLUMNS], {what: row for what, *row in rows}, ",.4g"))
        figures[name] = rows
        del lm
    finish(args, tables, figures)


if __name__ == "__main__":
    main()
