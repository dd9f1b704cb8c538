"""Known text: the log-probability of every byte, given all bytes before it.

The text is scored in windows. Each is one token tree: a stretch of canonical tokens to condition
on, a short stretch to warm up (so that alternatives are alive where scoring starts), and the
stretch that counts, over which the rounds run. docs/scoring.md derives the rounds and their cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.errors import ContextLengthError
from charwise.evaluated import Evaluated
from charwise.index import SortedVocabulary
from charwise.lattice import Lattice
from charwise.lm import TokenLM
from charwise.logs import log_sum
from charwise.rounds import Effort, Rounds
from charwise.state import Opening, zero_probability

#: Canonical tokens of a window for models whose own window is longer or unbounded.
WINDOW = 1024

#: Canonical tokens evaluated before a stretch that counts, for its alternatives to be alive.
WARM_UP = 16


@dataclass(frozen=True)
class Score:
    """The log-probabilities of a text's bytes.

    Attributes:
        text: the text.
        logprobs: `[n_bytes]` float64, log p(byte | all before), nats.
        missing: `[n_bytes]` share of the probability that was left out after each byte.
        lent: `[n_bytes]` share that was approximated by a context with the same last tokens.
        nodes: contexts evaluated.
        rounds: model calls, one after the other.
        end_logprob: log p(end of text | text), nats, if that was asked for.
    """

    text: bytes
    logprobs: NDArray[np.float64]
    missing: NDArray[np.float64]
    lent: NDArray[np.float64]
    nodes: int
    rounds: int
    end_logprob: float | None = None

    @property
    def bits_per_byte(self) -> float:
        """Mean surprisal of a byte; NaN-free: 0 for the empty text."""
        if not len(self.logprobs):
            return 0.0
        return -float(self.logprobs.mean()) / math.log(2)


class _Window(NamedTuple):
    """Canonical tokens [given, first) are conditioned on, [first, stop) are in the lattice.

    Those from `scored` on count.
    """

    given: int
    first: int
    scored: int
    stop: int


def score_text(
    engine: TokenLM,
    index: SortedVocabulary,
    opening: Opening,
    whole: bytes,
    effort: Effort,
    *,
    end: bool = False,
) -> Score:
    """Score a text after an opening; see `CharLM.score`."""
    canonical = index.vocabulary.encode_beginning(whole)
    offsets = np.cumsum([0, *map(index.length, canonical)])
    logprobs, missing, lent = (np.zeros(len(whole)) for _ in range(3))
    nodes = rounds = 0
    end_logprob = None
    for window in _windows(len(canonical), len(opening.ids), engine.window):
        last = window.stop == len(canonical)
        tree = engine.tree([*opening.ids, *canonical[window.given : window.first]])
        begin = int(offsets[window.first])
        stop = len(whole) if last else int(offsets[window.stop])
        room = None
        if engine.window is not None:
            room = engine.window - len(opening.ids) - (window.first - window.given)
        run = Rounds(
            Evaluated(tree, index),
            0,
            whole[begin:stop],
            effort,
            through=end and last,
            deepest=room,
        )
        lattice = run.run(canonical[window.first : window.stop])
        if not np.isfinite(lattice.log_prefix[-1]):
            raise zero_probability(whole[: begin + int(np.isfinite(lattice.log_prefix).sum())])
        at = int(offsets[window.scored])
        logprobs[at:stop] = np.diff(lattice.log_prefix[at - begin :])
        missing[at:stop] = lattice.missing[at - begin + 1 :]
        lent[at:stop] = lattice.lent[at - begin + 1 :]
        nodes += tree.evaluated
        rounds += tree.calls
        if end and last:
            end_logprob = _end_logprob(lattice)
    skip = len(opening.lead)
    return Score(
        whole[skip:], logprobs[skip:], missing[skip:], lent[skip:], nodes, rounds, end_logprob
    )


def _end_logprob(lattice: Lattice) -> float:
    """log p(end of text | text): the contexts that spell the text, each with its end."""
    logs = [
        lattice.log_weight(lattice.vertices[v]) + math.log(lattice.vertices[v].end)
        for v in lattice.at[-1]
        if lattice.vertices[v].end > 0
    ]
    return log_sum(logs) - float(lattice.log_prefix[-1])


def _windows(size: int, opening: int, window: int | None) -> Iterator[_Window]:
    """Cut `size` canonical tokens into windows; the first covers as much as it can.

    Alternatives may need more tokens than the canonical tokenization: a fifth is left free.
    """
    room = WINDOW if window is None else min(WINDOW, (window - opening) * 4 // 5)
    if room < 4 * WARM_UP and size > room:
        raise ContextLengthError(
            f"what is before the text ({opening} tokens) leaves room for {max(0, room)} tokens "
            f"in the model's window of {window}: too few to slide over a text of {size} tokens."
        )
    if size <= room:
        yield _Window(0, 0, 0, size)
        return
    yield _Window(0, 0, 0, room)
    stride = room // 2
    for scored in range(room, size, stride):
        first = scored - WARM_UP
        stop = min(size, scored + stride)
        yield _Window(max(0, stop - room), first, scored, stop)
