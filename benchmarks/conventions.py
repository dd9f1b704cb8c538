"""Which words of charwise are comparable to words of tokens, by whose the whitespace is.

    python benchmarks/conventions.py [--sentences 50] [--json FILE]

Sentences are sampled from the model of stories, which knows its own English. A word of tokens is
the sum of −log₂ p(token) over its canonical tokens, whose first has the space before it.
*Corrected*, the cost of the space moves to the word before (Pimentel & Meister 2024; Oh & Schuler
2024). The numbers are the mean |difference| of a word, in bits; first and last words are left out.
The last rows compare charwise with itself in another dtype.
"""

from __future__ import annotations

import math
import time
from statistics import fmean
from typing import Any

import torch

import charwise
import texts
from harness import arguments, finish, lm_of, table
from sentences import sampled

Words = list[list[float]]

CONVENTIONS = ("leading", "trailing", "none", "ending")


def token_words(lm: charwise.CharLM, text: str) -> tuple[list[float], list[float]]:
    """The surprisals of words of tokens, and the corrected ones."""
    vocabulary = lm.vocabulary
    ids = vocabulary.encode(text.encode())
    model: Any = lm.engine.model  # type: ignore[attr-defined]
    with torch.no_grad():
        logits = model(torch.tensor([[*vocabulary.bos_ids, *ids]])).logits[0]
    logs = logits.double().log_softmax(-1)
    logs = logs[len(vocabulary.bos_ids) - 1 :]
    begins = torch.tensor(
        [token is not None and token[:1].isspace() for token in vocabulary.tokens]
    )
    ends = begins.clone()
    ends[list(vocabulary.end_ids)] = True
    wide = logs.shape[1] - len(begins)
    begins, ends = (torch.nn.functional.pad(each, (0, wide)) for each in (begins, ends))
    plain, corrected = list[float](), list[float]()
    for n, token in enumerate(ids):
        bits = -float(logs[n, token]) / math.log(2)
        if n == 0 or (vocabulary.tokens[token] or b"")[:1].isspace():
            before = float(logs[n][begins].logsumexp(0)) / math.log(2) if n else 0.0
            plain.append(0.0)
            corrected.append(before)
        after = float(logs[n + 1][ends].logsumexp(0)) / math.log(2)
        plain[-1] += bits
        corrected[-1] += bits
        following = ids[n + 1 : n + 2]
        if not following or (vocabulary.tokens[following[0]] or b"")[:1].isspace():
            corrected[-1] -= after
    return plain, corrected


def char_words(lm: charwise.CharLM, found: list[str], convention: Any) -> Words:
    """The surprisals of charwise's words, without rows of whitespace."""
    scores = lm.scores(found, tolerance=0.003, entropy="byte", end=True)
    return [[r.surprisal for r in s.words(convention) if not r.text.isspace()] for s in scores]


def difference(one: Words, other: Words) -> float:
    """The mean |difference| of a word, bits; first and last words are left out."""
    pairs = (
        pair for a, b in zip(one, other, strict=True) for pair in list(zip(a, b, strict=True))[1:-1]
    )
    return fmean(abs(a - b) for a, b in pairs)


def measure(count: int) -> list[dict[str, Any]]:
    """A row for each convention, and one for each dtype."""
    lm, found = lm_of("stories"), sampled(count)
    pairs = [token_words(lm, text) for text in found]
    plain, corrected = ([pair[n] for pair in pairs] for n in (0, 1))
    rows, mine = list[dict[str, Any]](), dict[str, Words]()
    for convention in CONVENTIONS:
        mine[convention] = char_words(lm, found, convention)
        rows.append(
            {
                "words": f"charwise, {convention}",
                "tokens": difference(mine[convention], plain),
                "tokens, corrected": difference(mine[convention], corrected),
            }
        )
    for dtype in ("bfloat16", "float16"):
        other = charwise.load(texts.folder_of("stories"), dtype=dtype)  # type: ignore[arg-type]
        off = difference(char_words(other, found, "trailing"), mine["trailing"])
        rows.append({"words": f"charwise, trailing, {dtype}", "charwise, trailing": off})
    return rows


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--sentences", type=int, help="how many")
    args, started = parser.parse_args(), time.perf_counter()
    count = args.sentences or (20 if args.quick else 50)
    rows = measure(count)
    columns = ["words", "tokens", "tokens, corrected", "charwise, trailing"]
    cells = [[r["words"], *(f"{r[n]:.2g}" if n in r else "" for n in columns[1:])] for r in rows]
    finish(args, [table(f"{count} sentences, bits a word", columns, cells)], rows, started)


if __name__ == "__main__":
    main()
