"""A table of short sentences: charwise before and after, and minicons in batches.

    python benchmarks/sentences.py [--model stories] [--sentences 1000] [--texts FILE] [--json FILE]

minicons scores canonical tokens only. It must be installed. Sentences have 5 to 15 words. Without a
file, one half is sampled from the model "stories", which knows its own English. The other half is
cut out of WikiText, which no model here knows. Seconds are of the processor, with one thread.
charwise scores chunks of 32 rows, as `charwise score` does. minicons has batches of 32, sorted by
length, with and without its correction for the ends of words. *Bits* are the mean difference of a
word's surprisal, with the whitespace after it, from minicons with the correction. Last words are
left out, since minicons adds the cost of their end.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import texts
from harness import arguments, finish, lm_of, seconds, table

#: Rows of a chunk of `charwise score`, and of a batch.
BATCH = 32

#: Surprisals of the words of each sentence, bits.
Words = list[list[float]]


def cut(text: str) -> list[str]:
    """The sentences and clauses of 5 to 15 words; longer ones are cut after ten words."""
    found = []
    for line in re.split(r"(?<=[.!?,;:])\s+|\n", re.sub(r" @(.)@ ", r"\1", text)):
        words = line.split()
        while len(words) >= 5:
            size = len(words) if len(words) <= 15 else 10
            found.append(" ".join(words[:size]))
            words = words[size:]
    return found


def sampled(count: int) -> list[str]:
    """Sentences that the model of stories writes, at a fixed seed, none of them twice."""
    import torch

    lm = lm_of("stories")
    model: Any = lm.engine.model  # type: ignore[attr-defined]
    torch.manual_seed(0)
    found = dict[str, None]()
    ids = torch.tensor([[*lm.vocabulary.bos_ids, *lm.vocabulary.encode(b"Once upon a time")]])
    while len(found) < count:
        rows = model.generate(
            ids.expand(32, -1), do_sample=True, max_new_tokens=200, pad_token_id=0, top_k=0
        )
        for row in rows.tolist():
            story = b"".join(lm.vocabulary.tokens[id] or b"" for id in row).decode(errors="ignore")
            lines = re.split(r"(?<=[.!?])\s+", story)
            found |= dict.fromkeys(x for x in lines if 5 <= len(x.split()) <= 15)
    return list(found)[:count]


def charwise_words(model: str, preset: str, sentences: Sequence[str]) -> Words:
    """By `CharLM.scores`, chunk by chunk."""
    lm, found = lm_of(model), Words()
    for at in range(0, len(sentences), BATCH):
        scores = lm.scores(sentences[at : at + BATCH], preset=preset)
        found += [[span.surprisal for span in score.words("trailing")] for score in scores]
    return found


def minicons_words(scorer: Any, corrected: bool, sentences: Sequence[str]) -> Words:
    """By minicons, in batches sorted by length."""
    order = sorted(range(len(sentences)), key=lambda n: len(sentences[n]))
    found = dict[int, list[float]]()
    for at in range(0, len(order), BATCH):
        batch = order[at : at + BATCH]
        rows = scorer.word_score_tokenized(
            [sentences[n] for n in batch],
            str.split,
            bos_token=True,
            surprisal=True,
            base_two=True,
            bow_correction=corrected,
        )
        found |= {n: [bits for _, bits in row] for n, row in zip(batch, rows, strict=True)}
    return [found[n] for n in range(len(sentences))]


def methods(model: str) -> dict[str, Callable[[Sequence[str]], Words]]:
    """What is compared, by name."""
    from minicons.scorer import IncrementalLMScorer
    from transformers import AutoTokenizer

    lm = lm_of(model)
    tokenizer = AutoTokenizer.from_pretrained(texts.folder_of(model))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it gives the tokenizer padding
        scorer = IncrementalLMScorer(
            lm.engine.model,  # type: ignore[attr-defined]
            tokenizer=tokenizer,
        )
    return {
        "minicons": partial(minicons_words, scorer, False),
        "minicons, corrected": partial(minicons_words, scorer, True),
        "charwise, fast": partial(charwise_words, model, "fast"),
        "charwise, default": partial(charwise_words, model, "default"),
    }


def measure(model: str, sentences: Sequence[str]) -> dict[str, dict[str, float]]:
    """Seconds of each method, and the mean difference of a word from minicons, corrected."""
    compared = methods(model)
    words, found = dict[str, Words](), dict[str, dict[str, float]]()
    for name, method in compared.items():
        method(sentences[:8])
        rows = words[name] = Words()
        found[name] = {"seconds": seconds(lambda m=method, r=rows: r.extend(m(sentences)))}
    for name, row in found.items():
        pairs = zip(words[name], words["minicons, corrected"], strict=True)
        apart = [np.abs(np.subtract(mine, other))[:-1] for mine, other in pairs]
        row["bits"] = float(np.mean(np.concatenate(apart)))
    return found


def line(row: dict[str, float], seconds_of_minicons: float) -> list[str]:
    """Seconds of a method, their ratio to minicons, and the bits."""
    time_ = row["seconds"]
    return [f"{time_:.1f}", f"{time_ / seconds_of_minicons:.2f}", f"{row['bits']:.3f}"]


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--model", default="stories", choices=texts.MODELS)
    parser.add_argument("--sentences", type=int, help="how many")
    parser.add_argument("--texts", type=Path, help="a file of English text to cut instead")
    args, started = parser.parse_args(), time.perf_counter()
    count = args.sentences or (100 if args.quick else 1000)
    if args.texts:
        sources = {args.texts.name: cut(args.texts.read_text("utf-8"))[:count]}
    else:
        wiki = cut(texts.english(10**6).decode())[: count // 2]
        sources = {"sampled": sampled(count // 2), "WikiText": wiki}
    lines, figures = list[list[str]](), {}
    for source, sentences in sources.items():
        found = figures[source] = measure(args.model, sentences)
        least = found["minicons"]["seconds"]
        lines += [[source, name, *line(row, least)] for name, row in found.items()]
    columns = ["source", "method", "seconds", "ratio", "bits"]
    title = f"{count} short sentences, {args.model}"
    finish(args, [table(title, columns, lines)], figures, started)


if __name__ == "__main__":
    main()
