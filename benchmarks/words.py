"""Surprisals of words beside sums of tokens: garden paths, conventions and dtypes.

    python benchmarks/words.py [--model smollm2] [--figure FILE]

The *effect* is the surprisal of the disambiguating word minus that in the control, in bits. A word
of *tokens* is the sum of its canonical tokens, whose first has the space before it. *Corrected*,
the cost of the space moves to the word before (Pimentel & Meister 2024; Oh & Schuler 2024). The
second table has the mean |difference| of a word, without first and last words.
"""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

import charwise
import texts
from charwise import CharLM
from charwise.evaluation.resampling import Mean, intervals
from harness import arguments, finish, lm_of, table, with_interval

#: Between bars: what the control adds. The disambiguating word begins with a star.
GARDEN_PATHS = (
    "While Anna dressed|,| the baby *spit up on the bed.",
    "After the man drank|,| the water *proved to be poisoned.",
    "When the dog scratched|,| the vet *took off the muzzle.",
    "As the woman edited|,| the magazine *amused all the reporters.",
    "While the man hunted|,| the deer *ran into the woods.",
    "The horse| that was| raced past the barn *fell.",
    "The woman| who was| brought the sandwich from the kitchen *tripped.",
    "The soldiers| who were| warned about the dangers *conducted the midnight raid.",
    "The defendant| who was| examined *by the lawyer turned out to be unreliable.",
    "The employees understood| that| the contract *would be changed.",
    "The reporter believed| that| the president *was lying.",
)

CONVENTIONS = ("leading", "trailing", "none", "ending")
Words = list[list[float]]  # surprisals of the words of each sentence, bits


def token_words(lm: CharLM, text: str) -> tuple[list[float], list[float]]:
    """The surprisals of words of tokens, and the corrected ones."""
    vocabulary = lm.vocabulary
    ids = vocabulary.encode(text.encode())
    model: Any = lm.engine.model
    with torch.no_grad():
        logits = model(torch.tensor([[*vocabulary.bos_ids, *ids]])).logits[0]
    logs = logits.double().log_softmax(-1)[len(vocabulary.bos_ids) - 1 :, : len(vocabulary.tokens)]
    starts = torch.tensor([(token or b"")[:1].isspace() for token in vocabulary.tokens])
    ends = starts.clone()
    ends[list(vocabulary.end_ids)] = True
    plain, corrected = list[float](), list[float]()
    for n, token in enumerate(ids):
        if n == 0 or starts[token]:
            before = float(logs[n][starts].logsumexp(0)) / math.log(2) if n else 0.0
            plain.append(0.0)
            corrected.append(before)
        bits = -float(logs[n, token]) / math.log(2)
        plain[-1] += bits
        corrected[-1] += bits
        if n + 1 == len(ids) or starts[ids[n + 1]]:
            corrected[-1] -= float(logs[n + 1][ends].logsumexp(0)) / math.log(2)
    return plain, corrected


def char_words(lm: CharLM, sentences: list[str], convention: Any) -> Words:
    """The surprisals of charwise's words, without rows of whitespace."""
    entropy: Any = "byte" if convention == "ending" else None
    scores = lm.scores(sentences, tolerance=0.003, entropy=entropy, end=True)
    return [[r.surprisal for r in s.words(convention) if not r.text.isspace()] for s in scores]


def difference(one: Words, other: Words) -> float:
    """The mean |difference| of a word, bits; first and last words are left out."""
    pairs = [p for a, b in zip(one, other, strict=True) for p in list(zip(a, b, strict=True))[1:-1]]
    return fmean(abs(a - b) for a, b in pairs)


def effects(words: Words, places: list[int]) -> list[float]:
    """The effect of each garden path, whose sentence is followed by its control."""
    bits = [row[place] for row, place in zip(words, places, strict=True)]
    return [path - control for path, control in zip(bits[::2], bits[1::2], strict=True)]


def mean(effects: list[float]) -> Mean:
    """The mean over items, with an interval."""
    return intervals([np.array([[effect]]) for effect in effects])[0]


def figure(rows: dict[str, list[float]], names: list[str]) -> Any:
    """The effects of each garden path by each method, and their means with 95 % intervals."""
    from matplotlib.figure import Figure

    page = Figure(figsize=(7, 4.5), layout="constrained")
    axes = page.add_subplot(xlabel="effect at the disambiguating word (bits)")
    axes.axvline(0, color="#555555", linewidth=0.8)
    styles = zip(("#D55E00", "#0072B2", "#009E73"), "so^", (0.2, 0, -0.2), strict=True)
    for (method, values), (colour, marker, shift) in zip(rows.items(), styles, strict=True):
        heights = np.arange(len(values), 0, -1) + shift
        axes.plot(values, heights, marker, color=colour, label=method)
        value, low, high = mean(values)
        bars = [[value - low], [high - value]]
        axes.errorbar(value, shift, xerr=bars, fmt=marker, color=colour, capsize=3)
    axes.set_yticks(range(len(names), -1, -1), [*names, "mean"])
    axes.legend(fontsize="small")
    return page


def main() -> None:
    parser = arguments(__doc__ or "", "smollm2")
    parser.add_argument("--figure", type=Path, help="write the effects here too, as SVG or PNG")
    args = parser.parse_args()
    lm, marked = lm_of(args.model), list[str]()
    for path in GARDEN_PATHS[: 2 if args.quick else None]:
        begin, more, end = path.split("|")
        marked += [begin + end, begin + more + end]
    sentences = [text.replace("*", "") for text in marked]
    places = [len(text[: text.index("*")].split()) for text in marked]
    names = [text[text.index("*") + 1 :].split()[0] for text in marked[::2]]
    tokens, corrected = zip(*(token_words(lm, text) for text in sentences), strict=True)
    mine = {name: char_words(lm, sentences, name) for name in CONVENTIONS}
    methods = {"charwise": mine["trailing"], "tokens": tokens, "tokens, corrected": corrected}
    rows = {name: effects(list(words), places) for name, words in methods.items()}
    lines: dict[str, list[Any]] = dict(zip(names, zip(*rows.values(), strict=True), strict=True))
    lines["mean"] = [with_interval(mean(values), ".2f") for values in rows.values()]
    both = list(tokens), list(corrected)
    apart = {f"charwise, {name}": [difference(w, o) for o in both] for name, w in mine.items()}
    for dtype in ("bfloat16", "float16"):
        other: Any = charwise.load(texts.folder_of(args.model), dtype=dtype)
        change = difference(char_words(other, sentences, "trailing"), mine["trailing"])
        apart[f"charwise, trailing, {dtype}, from float32"] = [change]
    tables = [
        table(f"{len(names)} garden paths, effects in bits", ["word", *rows], lines, ".2f"),
        table("Difference of a word, bits", ["words", "tokens", "tokens, corrected"], apart, ".2g"),
    ]
    finish(*tables)
    if args.figure:
        figure(rows, names).savefig(args.figure)


if __name__ == "__main__":
    main()
