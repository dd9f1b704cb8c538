"""How the cost of scoring grows: with the length of the text, and with the vocabulary.

    python benchmarks/scale.py [--sizes 1000 3000] [--quick] [--json FILE]

*Length*: milliseconds of processor time for each byte of unseen code at the preset `default`.
*Vocabulary*: a small random Llama with the 128,256 tokens of Llama 3 scores 1,000 bytes; the time
that is not the model's own forward pass, for each context.
"""

from __future__ import annotations

import time
from typing import Any

import texts
from harness import arguments, finish, lm_of, plain_pass, seconds, table, versions


def by_length(size: int) -> dict[str, float]:
    """Milliseconds and contexts for each byte, at one length."""
    lm, text = lm_of("embedded"), texts.hard_text(size)
    plain, _ = plain_pass(lm, text[:3000])
    plain()
    found: list[Any] = []
    taken = seconds(lambda: found.append(lm.score(text, preset="default")))
    return {
        "ms": 1000 * taken / size,
        "contexts": found[0].contexts / size,
        "calls": found[0].calls * 400 / size,
        "plain": 1000 * seconds(plain) / min(size, 3000),
    }


def by_vocabulary(size: int) -> dict[str, float]:
    """Milliseconds for each context inside and outside the model, at a large vocabulary."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    import charwise

    tokenizer = AutoTokenizer.from_pretrained(texts.data_folder() / "tokenizers" / "llama3")
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
    inside, begun = [0.0], [0.0]

    def begin(*_: Any) -> None:
        begun[0] = time.process_time()

    def end(*_: Any) -> None:
        inside[0] += time.process_time() - begun[0]

    model.register_forward_pre_hook(begin)
    model.register_forward_hook(end)
    lm, text = charwise.CharLM.from_transformers(model, tokenizer), texts.hard_text(size)
    lm.score(text[:200])
    inside[0] = 0.0
    found: list[Any] = []
    taken = seconds(lambda: found.append(lm.score(text)))
    contexts = found[0].contexts
    return {
        "contexts": contexts / size,
        "model": 1000 * inside[0] / contexts,
        "rest": 1000 * (taken - inside[0]) / contexts,
    }


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--sizes", type=int, nargs="+", help="bytes")
    args, started = parser.parse_args(), time.perf_counter()
    sizes = args.sizes or [1000, 3000, 10_000, *([] if args.quick else [30_000])]
    large = (texts.data_folder() / "tokenizers" / "llama3").exists()
    with versions(args) as both:
        both.in_turns(by_length, 400)
        lengths = {size: both.in_turns(by_length, size) for size in sizes}
        vocabulary = both.in_turns(by_vocabulary, 1000) if large else {}
    lines = [
        [f"{size:,}", f"{found['after']['plain']:.3f}"]
        + [
            f"{found[v][key]:.{digits}f}"
            for key, digits in (("ms", 2), ("contexts", 2), ("calls", 0))
            for v in ("before", "after")
        ]
        for size, found in lengths.items()
    ]
    pairs = [f"{what}, {v}" for what in ("ms", "contexts", "calls") for v in ("before", "after")]
    title = "Cost a byte by length: `default`; calls for each 400 bytes"
    tables = [table(title, ["bytes", "plain, ms", *pairs], lines)]
    if vocabulary:
        lines = [[v, *(f"{value:.3f}" for value in row.values())] for v, row in vocabulary.items()]
        columns = ["version", "contexts a byte", "model, ms a context", "rest, ms a context"]
        tables.append(table("A vocabulary of 128,256 tokens", columns, lines))
    finish(args, tables, {"lengths": lengths, "vocabulary": vocabulary}, started)


if __name__ == "__main__":
    main()
