r"""The ends of words, whichever whitespace ends them.

A word that is followed by a space could as well have been followed by a line break, or by the end
of the text. The convention "ending" sums over these (Pimentel & Meister, EMNLP 2024):

    surprisal of a word = −log₂ p(its characters | all before) − log₂ p(it ends | all before, it)

The whitespace after it then costs −log₂ p(this whitespace | the word ends).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from charwise.errors import ZeroProbabilityError
from charwise.surprisal.entropies import ENDS
from charwise.surprisal.spans import Spans

Floats = NDArray[np.float64]


def word_ends(rows: Floats) -> Floats:
    """`[n]` log-probability of ASCII whitespace or the end of text in `[n, 257]` rows, nats.

    >>> rows = np.zeros((1, 257))
    >>> rows[0, [10, 32, 97, 256]] = 0.125, 0.25, 0.5, 0.125
    >>> np.exp(word_ends(rows)).tolist()
    [0.5]
    """
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(rows[:, ENDS].sum(axis=1)))


def costs_of_ends(
    words: Sequence[tuple[int, int]],
    string: str,
    edges: NDArray[np.int64],
    logprobs: Floats,
    ends: Floats,
) -> Floats:
    """`[n_bytes + 1]` bits that the end of a word costs at each position; 0 where none ends.

    Other whitespace than ASCII counts as an end where the text has it.

    Args:
        words: words and runs of whitespace, as `offsets.words` gives them for "none".
        string, edges: the text's characters, and the byte offsets between them.
        logprobs: `[n_bytes]` of the bytes, nats.
        ends: `[n_bytes + 1]` as `Score.word_ends`.

    Raises:
        ZeroProbabilityError: the last word cannot end.

    >>> half, quarter = math.log(0.5), math.log(0.25)
    >>> logs, ends = np.array([half, quarter, half]), np.array([half, half, half, quarter])
    >>> costs_of_ends([(0, 1), (1, 2), (2, 3)], "a b", np.arange(4), logs, ends).tolist()
    [0.0, 1.0, 0.0, 2.0]
    """
    costs = np.zeros(len(ends))
    for start, end in words:
        if string[start:end].isspace():
            continue
        at, log = int(edges[end]), float(ends[edges[end]])
        if end < len(string):
            came = float(logprobs[at : edges[end + 1]].sum())
            # The whitespace that came is among the ends; the model's sums differ by its rounding.
            log = max(log, came) if string[end].isascii() else float(np.logaddexp(log, came))
        if not log > -math.inf:
            raise ZeroProbabilityError("the model gives the end of this text no probability.")
        costs[at] = max(0.0, -log / math.log(2))
    return costs


def with_errors_of_ends(found: Spans, edges: NDArray[np.int64], error: Floats) -> Spans:
    """The words with the error of the byte after each, of which the error of its end is made.

    The error after the text is not known: that of its last byte stands for it.

    >>> from charwise.surprisal.spans import Span
    >>> spans = Spans((Span("a", 0, 1, 3.0, 3.0, error=0.5),))
    >>> with_errors_of_ends(spans, np.arange(2), np.array([0.5 * math.log(2)]))[0].error
    1.0
    """
    bits = error / math.log(2)
    rows = [
        row
        if row.text.isspace()
        else row._replace(error=row.error + float(bits[min(int(edges[row.end]), len(bits) - 1)]))
        for row in found
    ]
    return Spans(tuple(rows), found.unit)
