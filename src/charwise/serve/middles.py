"""Several middles between two sides, the most probable first: ranked as `CharLM.infill` ranks.

Candidates are drawn token by token, and each has the probability of the tokens that were drawn.
Between two sides all of them must end where the suffix begins, so that a middle has a probability
as a string: the sum over all tokens that spell it, what it takes over from the suffix, and its end
(`charwise.cursor.middle`). That costs about one more reading of the prompt, for all together.
"""

from __future__ import annotations

from collections.abc import Sequence

from charwise.char_lm import CharLM
from charwise.cursor.middle import opening_of, score_middles
from charwise.errors import CharwiseError
from charwise.infill import Request
from charwise.serve.stoppable import Stopped
from charwise.serve.task import Candidate


def ranked(
    lm: CharLM, whole: bytes, request: Request, candidates: Sequence[Candidate]
) -> tuple[Candidate, ...]:
    """Candidates by the probability of the middles that they make, with their ends.

    As they came if there is one, if a rule or a limit cut one short (there is no telling how it
    would have ended), or if time is over: those drawn are what there is.

    Args:
        lm: the model.
        whole: what the state says that they were drawn from: what the prefix gave back, and what
            was typed since.
        request: the sides.
        candidates: what was drawn.
    """
    _, before = opening_of(request, lm.index)
    whole_middles = all(one.finish == "end" for one in candidates)
    if len(candidates) < 2 or not whole_middles or not whole.startswith(before):
        return tuple(candidates)
    typed = whole[len(before) :]
    found = [typed + one.raw for one in candidates]
    try:
        logprobs = score_middles(lm.engine, lm.index, request, found, lm.effort, lm.limits)
    except Stopped as stopped:
        if stopped.why != "time":
            raise
        return tuple(candidates)
    except CharwiseError:  # an effort too coarse for one of them
        return tuple(candidates)
    order = sorted(range(len(found)), key=lambda n: -logprobs[n])
    return tuple(candidates[n] for n in order)
