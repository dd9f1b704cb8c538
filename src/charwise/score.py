"""The surprisal of a text: what every byte costs, given all bytes before it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


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

    >>> import charwise
    >>> score = charwise.load().score("import os")
    >>> score.text, score.logprobs.shape, bool((score.missing < 0.01).all())
    (b'import os', (9,), True)
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
        """Mean surprisal of a byte; NaN-free: 0 for the empty text.

        >>> zeros = np.zeros(2)
        >>> Score(b"ab", np.log([0.5, 0.125]), zeros, zeros, nodes=1, rounds=1).bits_per_byte
        2.0
        """
        if not len(self.logprobs):
            return 0.0
        return -float(self.logprobs.mean()) / math.log(2)
