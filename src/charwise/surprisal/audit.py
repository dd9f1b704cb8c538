"""An audit of a score: beams that prune at random estimate the probability of the same text."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.coverings.rows import EvaluatedRows
from charwise.coverings.stochastic_beam import Draws, log_estimates
from charwise.errors import ContextLengthError, EmptyBeamError, SettingError, check_count
from charwise.token_lm import TokenLM
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompts import Opening


class Audit(NamedTuple):
    """An estimate of a text's probability that shares no rule with the score.

    Attributes:
        logprob: log of the estimate of p(text | context), nats. The estimate is unbiased (with a
            context it is the ratio of two that are); its logarithm is low by about `error`² / 2.
        error: the standard error of the estimate, relative to it: of `logprob`, to first order.
            It is itself an estimate, from eight beams: near 1 it says that one of them has found
            what the others have not, and that more contexts are needed.
        scored: what the score says, nats.
        contexts: contexts evaluated for it.

    >>> audit = Audit(logprob=-5.0, error=0.1, scored=-5.25, contexts=90)
    >>> audit.difference
    -0.25
    """

    logprob: float
    error: float
    scored: float
    contexts: int

    @property
    def difference(self) -> float:
        """The amount by which the score is above the estimate, nats."""
        return self.scored - self.logprob


def mean_of_logs(logs: NDArray[np.float64]) -> tuple[float, float]:
    """The log of a mean, and the standard error of that mean, relative to it.

    >>> [round(value, 9) for value in mean_of_logs(np.log([0.5, 1.5]))]
    [0.0, 0.5]
    """
    top = float(np.max(logs))
    if top == -math.inf:
        return -math.inf, math.nan
    scaled = np.exp(logs - top)
    mean = float(scaled.mean())
    return top + math.log(mean), float(scaled.std(ddof=1)) / math.sqrt(len(logs)) / mean


#: Independent beams: their spread is the error.
BEAMS = 8


@dataclass(frozen=True)
class Auditor:
    """The request of `Score.audit`. It does not keep the model alive.

    >>> from charwise.engines.ngram import example_lm
    >>> from charwise.tokens.prompts import Opening
    >>> lm = example_lm()
    >>> index, opening = SortedVocabulary(lm.vocabulary), Opening((2,), b"")
    >>> auditor = Auditor(weakref.ref(lm), index, opening, b"aa")
    >>> audit = auditor(64, 1, -1.0)  # 1/2 · 3/4
    >>> round(float(np.exp(audit.logprob)), 6), round(audit.difference, 6)
    (0.375, -0.019171)
    """

    engine: weakref.ref[TokenLM]
    index: SortedVocabulary
    opening: Opening
    whole: bytes  # begins with the opening's lead
    given: int = 0  # bytes of the text that are conditioned on

    def __call__(self, n: int, seed: int, scored: float, /) -> Audit:
        """See `Score.audit`."""
        check_count("n", n, BEAMS)
        check_count("seed", seed, 0)
        engine = self.engine()
        if engine is None:
            raise SettingError("the model of this score is gone: keep its CharLM for an audit.")
        opening, whole = self.opening, self.whole
        deepest = None if engine.window is None else engine.window - len(opening.ids)
        tokens = len(self.index.vocabulary.encode_beginning(whole))
        if deepest is not None and tokens > deepest:
            raise ContextLengthError(
                f"the text has {tokens} tokens, and {deepest} fit the model's window: longer texts "
                "are scored window by window, and cannot be audited as a whole. Audit a part."
            )
        rng = np.random.default_rng(seed)
        given = len(opening.lead) + self.given
        logprob = error = 0.0
        contexts = 0
        for sign, part in ((1, whole), (-1, whole[:given])):
            if not part:
                continue
            evaluated = EvaluatedRows(engine.tree(opening.ids), self.index)
            logs = log_estimates(evaluated, part, Draws(BEAMS, n // BEAMS, rng, deepest))
            log_mean, relative = mean_of_logs(logs)
            if log_mean == -math.inf:
                raise EmptyBeamError(
                    f"n is {n}: none of {BEAMS} beams of {n // BEAMS} reached the end of the text. "
                    f"Ask for more contexts, such as {max(256, 4 * n)}."
                )
            logprob, error = logprob + sign * log_mean, math.hypot(error, relative)
            contexts += evaluated.tree.contexts
        return Audit(logprob, error, scored, contexts)
