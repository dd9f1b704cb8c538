"""The entropy of the next word: its bounds and its cost, by the share of the words to find.

    python benchmarks/next_words.py [--quick]

The sentences are the controls of the garden paths, the model that of stories. Numbers are means
over words. *Time* is that of a score with `entropy="word"`, in milliseconds a word, and divided by
the time of a plain score.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from harness import arguments, finish, lm_of, seconds, table
from words import GARDEN_PATHS

COVERAGES = (0.5, 0.8, 0.9)


def measure(coverage: float, sentences: list[str]) -> list[float]:
    """The row of one coverage."""
    lm, plain, scores = lm_of("stories"), list[Any](), list[Any]()
    alone = seconds(lambda: plain.extend(lm.scores(sentences)))
    words = seconds(lambda: scores.extend(lm.scores(sentences, entropy="word", coverage=coverage)))
    bounds = np.concatenate([score.word_entropies for score in scores])
    bounds = bounds[np.isfinite(bounds[:, 0])]
    least, most = bounds.mean(axis=0)
    return [least, most, 1000 * words / len(bounds), words / alone]


def main() -> None:
    parser = arguments(__doc__ or "")
    args = parser.parse_args()
    count = 1 if args.quick else len(GARDEN_PATHS)
    sentences = [re.sub(r"[|*]", "", text) for text in GARDEN_PATHS[:count]]
    lm_of("stories").scores(sentences[:2])
    coverages = COVERAGES[:1] if args.quick else COVERAGES
    rows = {f"{coverage}": measure(coverage, sentences) for coverage in coverages}
    columns = ["coverage", "least, bits", "most, bits", "ms a word", "plain scores"]
    finish(table(f"{len(sentences)} sentences", columns, rows))


if __name__ == "__main__":
    main()
