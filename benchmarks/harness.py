"""What the benchmarks share: options, models, times and tables."""

from __future__ import annotations

import argparse
import math
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import charwise
import texts
from charwise.evaluation.resampling import Mean
from charwise.models import EMBEDDED

BUILD = Path(__file__).parents[1] / "build" / "benchmarks"

#: For a GPU: shapes with random weights in bfloat16, whose times are those of a trained model. The
#: class of the configuration, the tokenizer in `CHARWISE_DATA`, and sizes that config.json names.
SHAPES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Llama-3.2-1B": ("llama", "llama3", {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131_072,
        "vocab_size": 128_256, "tie_word_embeddings": True,
    }),
    "Qwen2.5-Coder-7B": ("qwen2", "qwen2", {
        "hidden_size": 3584, "intermediate_size": 18_944, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "max_position_embeddings": 32_768,
        "vocab_size": 152_064,
    }),
}  # fmt: skip


def arguments(doc: str, model: str | None = None) -> argparse.ArgumentParser:
    """The options that every script has, and that for the model; torch gets one thread."""
    torch.set_num_threads(1)  # others would be counted while they wait
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer texts and runs")
    if model is not None:
        parser.add_argument("--model", default=model, choices=[*texts.MODELS, *SHAPES])
    return parser


@cache
def lm_of(model: str) -> charwise.CharLM:
    """A model by its name in `texts`, loaded once in each process."""
    if model in SHAPES:
        return random_lm(*SHAPES[model])
    folder = texts.folder_of(model)
    if folder is None:
        sys.exit(f"The model {model!r} is missing: run `make {model}`, or set CHARWISE_DATA.")
    return charwise.load(folder, device="cpu")


def tokenizer_folder(name: str, quick: bool) -> str:
    """A tokenizer of `CHARWISE_DATA`, or with `--quick` that of the embedded model."""
    if quick:
        return EMBEDDED
    folder = texts.data_folder() / "tokenizers" / name
    if not folder.is_dir():
        sys.exit(f"{folder} is missing: set CHARWISE_DATA to the folder with tokenizers/{name}.")
    return str(folder)


def random_lm(kind: str, tokenizer: str, sizes: dict[str, Any]) -> charwise.CharLM:
    """A model of this shape with random weights, on a GPU if there is one."""
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        config = AutoConfig.for_model(kind, **sizes)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    folder = tokenizer_folder(tokenizer, quick=False)
    return charwise.CharLM.from_transformers(model, AutoTokenizer.from_pretrained(folder))


def clock() -> float:
    """Seconds of the processor, since machines are shared; on a GPU, those of its last call too."""
    if not torch.cuda.is_available():
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def seconds(run: Callable[[], Any]) -> float:
    """Seconds of one call."""
    started = clock()
    run()
    return clock() - started


def median(run: Callable[[], Any], count: int = 3) -> float:
    """The median time of some runs, seconds."""
    return statistics.median(seconds(run) for _ in range(count))


Rows = Mapping[str, Sequence[Any]]


def table(title: str, columns: Sequence[str], rows: Rows, form: str = ".3g") -> str:
    """A table in Markdown under its title; a row may lack cells at its end."""
    lines = [[*columns], ["---"] * len(columns)]
    for name, values in rows.items():
        cells = [format(x, form) if isinstance(x, float) else str(x) for x in values]
        lines.append([name, *cells, *[""] * (len(columns) - 1 - len(cells))])
    return f"**{title}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def with_interval(value: Mean | float, form: str) -> str:
    """A number, with its interval in brackets if it is a mean with one."""
    if not isinstance(value, Mean) or math.isnan(value.low):
        return format(value.value if isinstance(value, Mean) else value, form)
    return "{} ({}, {})".format(*(format(each, form) for each in value))


def finish(*tables: str) -> None:
    """Print the tables, and on stderr the time, the machine and the folder of the data."""
    print("\n".join(tables))
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = re.findall(r"model name\s*: (.*)", info) or ["unknown processor"]
    machine = f"{os.cpu_count()} cores, {names[0]}, torch {torch.__version__}, one thread"
    data = texts.data_folder()
    source = data.resolve() if data.is_dir() else "no folder CHARWISE_DATA, so fewer texts"
    print(f"{time.process_time():.0f} seconds of the processor; {machine}", file=sys.stderr)
    print(f"data: {source}", file=sys.stderr)
