"""Audits a score: estimates the probability of the text that was scored, by other means.

Nothing here depends on how a score is made: neither the rounds, nor an effort.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass

import numpy as np

from charwise.coverings.rows import EvaluatedRows
from charwise.coverings.stochastic_beam import log_estimates
from charwise.errors import ContextLengthError, EmptyBeamError, SettingError, check_count
from charwise.known_text.windows import Text
from charwise.surprisal.audit import Audit, mean_of_logs
from charwise.token_lm import TokenLM
from charwise.tokens.index import SortedVocabulary

#: Independent beams: their spread is the error.
BEAMS = 8


@dataclass(frozen=True)
class Auditor:
    """What `Score.audit` asks. It does not keep the model alive.

    >>> from charwise.engines.ngram import NgramLM
    >>> from charwise.tokens.prompts import Opening
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"a", b"ab", None], end_ids=[2], bos_ids=[2])
    >>> lm = NgramLM(vocabulary, 1, {(): [0.5, 0.25, 0.25]})
    >>> text = Text(Opening((2,), b""), b"aa")
    >>> auditor = Auditor(weakref.ref(lm), SortedVocabulary(vocabulary), text)
    >>> audit = auditor(64, 1, -1.0)  # 1/2 · 3/4
    >>> round(float(np.exp(audit.logprob)), 6), round(audit.difference, 6)
    (0.375, -0.019171)
    """

    engine: weakref.ref[TokenLM]
    index: SortedVocabulary
    text: Text

    def __call__(self, n: int, seed: int, scored: float, /) -> Audit:
        """See `Score.audit`."""
        check_count("n", n, BEAMS)
        check_count("seed", seed, 0)
        engine = self.engine()
        if engine is None:
            raise SettingError("the model of this score is gone: keep its CharLM for an audit.")
        opening, whole = self.text.opening, self.text.whole
        deepest = None if engine.window is None else engine.window - len(opening.ids)
        tokens = len(self.index.vocabulary.encode_beginning(whole))
        if deepest is not None and tokens > deepest:
            raise ContextLengthError(
                f"the text has {tokens} tokens, and {deepest} fit the model's window: longer texts "
                "are scored window by window, and cannot be audited as a whole. Audit a part."
            )
        rng = np.random.default_rng(seed)
        given = len(opening.lead) + self.text.given
        logprob = error = 0.0
        contexts = 0
        for sign, part in ((1, whole), (-1, whole[:given])):
            if not part:
                continue
            evaluated = EvaluatedRows(engine.tree(opening.ids), self.index)
            logs = log_estimates(evaluated, 0, part, BEAMS, n // BEAMS, rng, deepest=deepest)
            log_mean, relative = mean_of_logs(logs)
            if log_mean == -math.inf:
                raise EmptyBeamError(
                    f"n is {n}: none of {BEAMS} beams of {n // BEAMS} reached the end of the text. "
                    f"Ask for more contexts, such as {max(256, 4 * n)}."
                )
            logprob, error = logprob + sign * log_mean, math.hypot(error, relative)
            contexts += evaluated.tree.contexts
        return Audit(logprob, error, scored, contexts)
