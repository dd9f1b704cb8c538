"""Completions that are valid as a whole: those that are not are drawn again.

A constraint says at each step what may follow. A JSON schema also has a check of the finished text
(`constraints/validity.py`). Texts that fail it are drawn anew, from the beginning, so that those
that are returned have the probabilities that they have among the valid ones. Where the likeliest
text was asked for and fails, the likeliest of the valid texts that were sampled stands in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from charwise.constraints.constraint import Constraint
from charwise.constraints.validity import Fault, fault_of, has_check
from charwise.cursor.generation import Completion, distinct
from charwise.cursor.options import GenerationOptions
from charwise.errors import ConstraintError, shown

#: Texts that may fail: in a row of a sample, in all of a search.
MOST_FAILURES = 1000


def draw_valid(
    draw: Callable[[GenerationOptions], list[Completion]], options: GenerationOptions
) -> list[Completion]:
    """Completions, none of which fails the check of its constraint.

    Args:
        draw: draws completions under the constraint, which may fail it.
        options: how they are drawn. Progress is reported of the first draws only.

    Raises:
        ConstraintError: if too many texts fail.
    """
    completions, constraint = draw(options), options.constraint
    failed = [place for place, one in enumerate(completions) if _fault(constraint, one)]
    if not failed:
        return completions
    # A search for the likeliest text gives the same one each time.
    seed = options.seed if options.temperature else options.seed or 0
    rng, at_once, failures = np.random.default_rng(seed), 1, len(failed)
    last = completions[failed[-1]]
    valid = [one for place, one in enumerate(completions) if place not in failed]
    # It looks at many, and a sample takes the first that are valid.
    missing = len(failed) if options.temperature else max(16, len(failed))
    again = replace(options, temperature=options.temperature or 1.0, progress=None)
    drawn = list[Completion]()
    while len(drawn) < missing and failures < MOST_FAILURES:
        count = min(len(failed) * at_once, max(len(failed), 64))
        for one in draw(replace(again, n=count, seed=int(rng.integers(2**62)))):
            if _fault(constraint, one):
                last, failures = one, failures + 1
            elif one.finish in ("time", "cancelled"):
                return [*valid, *drawn, one]
            else:
                drawn.append(one)
                failures = failures if not options.temperature else 0
        at_once *= 2
    if len(drawn) < missing and not (drawn and not options.temperature):
        fault = _fault(constraint, last)
        raise ConstraintError(
            f"no text that was drawn is valid JSON of the schema. The last was {shown(last.text)}: "
            f"{fault.why if fault else 'it is not complete'}. Loosen the schema, or show the model "
            "an example in the prompt."
        )
    if not options.temperature:
        whole = [one for one in drawn if one.finish != "length"] or drawn
        return distinct([*valid, *whole])[: options.n]
    for place, one in zip(failed, drawn, strict=False):
        completions[place] = one
    return completions


def _fault(constraint: Constraint | None, completion: Completion) -> Fault | None:
    """Why a text that is over fails the check of its constraint; None if it does not.

    A text that its length or the time cut is not over.
    """
    if constraint is None or not has_check(constraint):
        return None
    if completion.finish not in ("stop", "dead end"):
        return None
    return fault_of(constraint.after(completion.raw))
