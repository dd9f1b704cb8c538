"""Plain generation, transformers' own token healing and charwise, on code cut at random bytes.

    python benchmarks/healing.py [--prompts 200] [--json FILE]

Each prompt is 300 to 600 bytes of a module that the embedded model never saw, and ends at a random
byte. Greedy, with the same number of new tokens. *exact* is the share of outputs that start with
the prompt's bytes, *next k* the share that go on with the next k characters of the module (an
output that lost whitespace before its prompt counts as well). The last row is `CharLM.complete`.
"""

from __future__ import annotations

import random
import statistics
import time
import timeit
from collections.abc import Callable
from typing import Any

import torch

import texts
from charwise import heal_generate
from charwise.healing.transformers import HealingLogitsProcessor, index_of
from harness import arguments, finish, lm_of, table

AHEAD, NEW_TOKENS = (1, 3), 8

Method = Callable[[str], str]


def cases(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Prompts, and the text that follows each: random cuts of the held-out modules."""
    rng, sources = random.Random(seed), list(texts.modules())
    found: list[tuple[str, str]] = []
    while len(found) < count:
        source = rng.choice(sources)
        length = rng.randint(300, 600)
        end = rng.randrange(length, len(source) - 16)
        try:
            found.append((source[end - length : end].decode(), source[end : end + 16].decode()))
        except UnicodeDecodeError:  # inside a character: transformers takes text only
            continue
    return found


def methods(model: Any, tokenizer: Any) -> dict[str, Method]:
    """What is compared, by name."""
    tokenizer.padding_side = "left"
    settings: dict[str, Any] = {"max_new_tokens": NEW_TOKENS, "do_sample": False}

    def plain(prompt: str, **more: Any) -> str:
        inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
        more |= {"pad_token_id": tokenizer.pad_token_id, **settings}
        ids = model.generate(**inputs, **more)
        return str(tokenizer.decode(ids[0], skip_special_tokens=True))

    def healed(prompt: str, rule: Any) -> str:
        return prompt + heal_generate(model, tokenizer, prompt, rule=rule, **settings)[0]

    def exact(prompt: str) -> str:
        completions = lm_of("embedded").complete(prompt, max_new_bytes=3 * NEW_TOKENS)
        return prompt + completions[0].text

    return {
        "transformers, plain": plain,
        "transformers, token_healing=True": lambda prompt: plain(
            prompt, token_healing=True, tokenizer=tokenizer
        ),
        "charwise, rule=1": lambda prompt: healed(prompt, 1),
        "charwise": lambda prompt: healed(prompt, "auto"),
        "charwise, exact": exact,
    }


def measure(method: Method, prompt: str, truth: str) -> dict[str, float]:
    """One call: what came out, and how long it took."""
    started, output = time.perf_counter(), ""
    try:
        output = method(prompt)
    except Exception as error:  # transformers' own healing raises now and then: it is counted
        print(f"{type(error).__name__}: {error}")
    row: dict[str, float] = {"s/call": time.perf_counter() - started, "failed": not output}
    row["exact"] = output.startswith(prompt)
    for k in AHEAD:
        whole = prompt + truth[:k]
        row[f"next {k}"] = output.startswith((whole, whole.lstrip()))
    return row


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--prompts", type=int, help="how many")
    args, started = parser.parse_args(), time.perf_counter()
    from transformers import AutoTokenizer

    model: Any = lm_of("embedded").engine.model  # type: ignore[attr-defined]
    tokenizer = AutoTokenizer.from_pretrained(texts.folder_of("embedded"))
    compared, given = methods(model, tokenizer), cases(args.prompts or (20 if args.quick else 200))
    for method in compared.values():
        measure(method, *given[0])
    runs = [{name: measure(m, *case) for name, m in compared.items()} for case in given]
    lines, found = [], {}
    for name in compared:
        row = {key: statistics.mean(run[name][key] for run in runs) for key in runs[0][name]}
        row["s/call"] = statistics.median(run[name]["s/call"] for run in runs)
        found[name] = row
        ratio = row["s/call"] / found["transformers, plain"]["s/call"]
        shares = [f"{row[key]:.1%}" for key in ("exact", *(f"next {k}" for k in AHEAD))]
        lines.append(
            [name, *shares, f"{row['s/call']:.4f}", f"{ratio:.2f}", f"{row['failed']:.1%}"]
        )
    columns = ["method", "exact", *(f"next {k}" for k in AHEAD), "s/call", "ratio", "failed"]
    tables = [table(f"{len(given)} prompts, {NEW_TOKENS} new tokens, greedy", columns, lines)]
    process = HealingLogitsProcessor(index_of(tokenizer, model), [b" x"], prompt_length=1)
    ids, scores = torch.zeros(1, 9, dtype=torch.long), torch.zeros(1, model.config.vocab_size)
    times = timeit.repeat(lambda: process(ids, scores), number=1000, repeat=15)
    tables.append(f"When nothing is left to force: {1e3 * statistics.median(times):.2f} µs a call.")
    finish(args, tables, found, started)


if __name__ == "__main__":
    main()
