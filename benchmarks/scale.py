"""How the cost of scoring grows: with the length of the text, and with the vocabulary.

    python benchmarks/scale.py [--json FILE]

*Length*: processor time for each byte of held-out code, at each preset. *Vocabulary*: a small
random Llama with Llama 3's 128,256 tokens; what is not the model's own forward pass, for each
context.
"""

from __future__ import annotations

import argparse
import json
import time
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

import charwise
import texts
from charwise.engines.transformers import TransformersLM
from charwise.evaluation.methods import walk_canonical, walk_rounds
from charwise.known_text.effort import PRESETS
from settings import timed


def by_length(lm: charwise.CharLM, sizes: list[int]) -> list[dict[str, Any]]:
    """Milliseconds for each byte, and contexts for each byte, at several lengths."""
    rows = []
    for size in sizes:
        text = texts.hard_text(size)
        plain = timed(partial(walk_canonical, lm, text), 3).cpu
        row: dict[str, Any] = {"bytes": len(text), "plain": 1000 * plain / len(text)}
        for name in ("fast", "default"):
            started = time.process_time()
            walk = walk_rounds(lm, text, PRESETS[name])
            row[name] = 1000 * (time.process_time() - started) / len(text)
            row[f"{name}_contexts"] = walk.contexts / len(text)
        rows.append(row)
    return rows


def by_vocabulary(folder: Path, size: int) -> dict[str, float]:
    """What scoring costs beside the model, at a large vocabulary."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=1024,
    )
    model = LlamaForCausalLM(config).eval()
    spent = {"model": 0.0}
    begun: list[float] = []
    model.register_forward_pre_hook(lambda *_: begun.append(time.process_time()))
    model.register_forward_hook(
        lambda *_: spent.update(model=spent["model"] + time.process_time() - begun[-1])
    )

    def set_up() -> charwise.CharLM:
        vocabulary = charwise.Vocabulary.from_transformers(tokenizer, len(tokenizer))
        return charwise.CharLM(TransformersLM(model, vocabulary))

    started = time.process_time()
    lm = set_up()
    set_up_seconds = time.process_time() - started
    tracemalloc.start()  # slows everything down, so not while timing
    kept = set_up()
    megabytes = tracemalloc.get_traced_memory()[0] / 1e6
    tracemalloc.stop()
    del kept
    text = texts.hard_text(size)
    lm.score(text[:200])
    spent["model"] = 0.0
    started = time.process_time()
    score = lm.score(text)
    seconds = time.process_time() - started
    return {
        "width": lm.vocabulary.width,
        "set_up_seconds": set_up_seconds,
        "set_up_megabytes": megabytes,
        "contexts": score.contexts,
        "model_ms_a_context": 1000 * spent["model"] / score.contexts,
        "rest_ms_a_context": 1000 * (seconds - spent["model"]) / score.contexts,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 4000, 16000, 64000])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    lengths = by_length(charwise.load(), args.sizes)
    table = Table("bytes", *list(lengths[0])[1:], title="milliseconds (contexts) for each byte")
    for row in lengths:
        table.add_row(
            *(
                f"{value:,.3f}" if isinstance(value, float) else f"{value:,}"
                for value in row.values()
            )
        )
    console = Console(width=100)
    console.print(table)
    results: dict[str, Any] = {"lengths": lengths}
    folder = texts.data_folder() / "tokenizers" / "llama3"
    if folder.exists():
        results["vocabulary"] = by_vocabulary(folder, 1000)
        for name, value in results["vocabulary"].items():
            console.print(f"{name:22s} {value:,.3f}")
    else:
        console.print("The large vocabulary is left out: no llama3 tokenizer in CHARWISE_DATA.")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
