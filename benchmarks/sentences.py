"""A table of short texts: charwise, and minicons in batches.

    python benchmarks/sentences.py [--model smollm2] [--pieces 500]

The texts are pieces of ten words of WikiText. minicons scores canonical tokens only; without it,
charwise is alone. *Bits* are the mean difference of a word's surprisal, with the whitespace after
it, from minicons corrected. Last words are left out, since minicons adds the cost of their end.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from transformers import AutoTokenizer

import texts
from harness import arguments, finish, lm_of, seconds, table

BATCH = 32  # rows of a chunk of `charwise score`, and of a batch
WORDS = 10  # of a piece

Words = list[list[float]]  # surprisals of the words of each sentence, bits


def charwise_words(model: str, preset: str, sentences: Sequence[str]) -> Words:
    """By `CharLM.scores`, chunk by chunk."""
    lm, words = lm_of(model), Words()
    for at in range(0, len(sentences), BATCH):
        scores = lm.scores(sentences[at : at + BATCH], preset=preset)
        words += [[span.surprisal for span in score.words("trailing")] for score in scores]
    return words


def minicons_words(scorer: Any, corrected: bool, sentences: Sequence[str]) -> Words:
    """By minicons, in batches sorted by length."""
    order = sorted(range(len(sentences)), key=lambda n: len(sentences[n]))
    words = dict[int, list[float]]()
    for at in range(0, len(order), BATCH):
        batch = order[at : at + BATCH]
        units = {"bos_token": True, "surprisal": True, "base_two": True}
        units["bow_correction"] = corrected
        rows = scorer.word_score_tokenized([sentences[n] for n in batch], str.split, **units)
        words |= {n: [bits for _, bits in row] for n, row in zip(batch, rows, strict=True)}
    return [words[n] for n in range(len(sentences))]


def methods(model: str) -> dict[str, Callable[[Sequence[str]], Words]]:
    """What is compared, by name."""
    presets, ours = ("fast", "default"), dict[str, Callable[[Sequence[str]], Words]]()
    ours |= {f"charwise, {name}": partial(charwise_words, model, name) for name in presets}
    if find_spec("minicons") is None:
        return ours
    from minicons.scorer import IncrementalLMScorer

    loaded: Any = lm_of(model).engine.model
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it gives the tokenizer padding
        tokenizer = AutoTokenizer.from_pretrained(texts.folder_of(model))
        scorer = IncrementalLMScorer(loaded, tokenizer=tokenizer)
    rival = {"minicons": partial(minicons_words, scorer, False)}
    return rival | {"minicons, corrected": partial(minicons_words, scorer, True)} | ours


def measure(model: str, sentences: Sequence[str]) -> dict[str, list[float]]:
    """Seconds of each method, their ratio to the first one's, and bits from minicons, corrected."""
    words, rows = dict[str, Words](), dict[str, list[float]]()
    for name, method in methods(model).items():
        method(sentences[:8])
        result = words[name] = Words()
        spent = seconds(lambda m=method, w=result: w.extend(m(sentences)))
        rows[name] = [spent, spent / (next(iter(rows.values()))[0] if rows else spent)]
    for name in rows.keys() if "minicons" in rows else ():
        pairs = zip(words[name], words["minicons, corrected"], strict=True)
        apart = [np.abs(np.subtract(mine, other))[:-1] for mine, other in pairs]
        rows[name].append(float(np.mean(np.concatenate(apart))))
    return rows


def main() -> None:
    parser = arguments(__doc__ or "", "smollm2")
    parser.add_argument("--pieces", type=int, default=500, help="how many")
    args = parser.parse_args()
    words = texts.english(10**6).decode().split()
    pieces = [" ".join(words[at : at + WORDS]) for at in range(0, len(words) - WORDS, WORDS)]
    pieces = pieces[: 4 if args.quick else args.pieces]
    rows = measure(args.model, pieces)
    title = f"{len(pieces)} pieces of {WORDS} words, {args.model}"
    finish(table(title, ["method", "seconds", "ratio", "bits"], rows))


if __name__ == "__main__":
    main()
