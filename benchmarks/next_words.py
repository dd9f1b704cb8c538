"""The entropy of the next word: its bounds and its cost, by the share of the words to find.

    python benchmarks/next_words.py [--quick] [--json FILE]

Sentences are sampled from the model of stories. Numbers are means over their words. *Time* is that
of a score with `entropy="word"`, in milliseconds a word, and divided by the time of a plain score.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from harness import arguments, finish, lm_of, seconds, table
from sentences import sampled

COVERAGES = (0.5, 0.8, 0.9)


def measure(coverage: float, sentences: list[str]) -> dict[str, float]:
    """The row of one coverage."""
    lm, plain, found = lm_of("stories"), list[Any](), list[Any]()
    alone = seconds(lambda: plain.extend(lm.scores(sentences)))
    words = seconds(lambda: found.extend(lm.scores(sentences, entropy="word", coverage=coverage)))
    bounds = np.concatenate([score.word_entropies for score in found])
    bounds = bounds[np.isfinite(bounds[:, 0])]
    least, most = bounds.mean(axis=0)
    count = len(bounds)
    return {"least": least, "most": most, "ms": 1000 * words / count, "ratio": words / alone}


def main() -> None:
    parser = arguments(__doc__ or "")
    args, started = parser.parse_args(), time.perf_counter()
    sentences = sampled(3 if args.quick else 20)
    lm_of("stories").scores(sentences[:2])
    rows = {coverage: measure(coverage, sentences) for coverage in COVERAGES}
    columns = ["coverage", "least, bits", "most, bits", "ms a word", "plain scores"]
    cells = [
        [coverage, f"{r['least']:.2f}", f"{r['most']:.2f}", f"{r['ms']:.0f}", f"{r['ratio']:.0f}"]
        for coverage, r in rows.items()
    ]
    finish(args, [table(f"{len(sentences)} sentences", columns, cells)], rows, started)


if __name__ == "__main__":
    main()
