"""Completions that are valid as a whole: those that are not are drawn again.

A constraint says at each step what may follow. A JSON schema has a check of the whole text as
well (`constraints/validity.py`), which some finished texts fail: they lead into a dead end. Texts
that are sampled are then drawn anew, from the beginning, so that those kept have the probabilities
that they had among the valid ones. Where the likeliest text is searched for, the next candidate is
taken (`best_first.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from charwise.constraints.constraint import Constraint
from charwise.constraints.validity import Fault, fault_of, has_check
from charwise.cursor.best_first import candidates
from charwise.cursor.byte_drafts import Bytewise
from charwise.cursor.completion import Completion, most_probable
from charwise.cursor.limit import Limit
from charwise.cursor.options import GenerationOptions
from charwise.errors import ConstraintError, shown

#: Draws completions as the options say.
Draw = Callable[[GenerationOptions], list[Completion]]

#: Draws after the last valid text, before the search ends; most draws at once for one that failed.
_DRAWS, _AT_ONCE = 1000, 64


def valid(
    draw: Draw, state: Bytewise, options: GenerationOptions, limit: Limit
) -> list[Completion]:
    """Completions, none of which fails the check of its constraint.

    Args:
        draw: draws completions under the constraint, which may fail it.
        state: the text that they go on with.
        options: how they are drawn. Progress is told of the first draws only.
        limit: when to end the search.

    Raises:
        ConstraintError: if no valid text is found.

    >>> import charwise
    >>> from charwise.constraints import json_schema
    >>> lm, even = charwise.load(), json_schema({"enum": [1, 2], "multipleOf": 2})
    >>> [one] = lm.complete("x = ", constraint=even)
    >>> one.text, one.finish
    ('2', 'constraint')
    """
    constraint = options.constraint
    found = draw(options)
    failed = [place for place, one in enumerate(found) if failure(constraint, one)]
    if not failed or constraint is None:
        return found
    if not options.temperature:
        kept = [one for place, one in enumerate(found) if place not in failed]
        others = candidates(state, constraint, options, limit)
        searched = _searched(kept, options.n - len(kept), others)
        if not searched:
            raise _none(found[failed[-1]], failure(constraint, found[failed[-1]]))
        return most_probable(searched)
    last, since, at_once = found[failed[-1]], len(failed), 1
    rng = np.random.default_rng(options.seed)
    while failed:
        if since > _DRAWS:
            raise _none(last, failure(constraint, last))
        count = min(len(failed) * at_once, max(len(failed), _AT_ONCE))
        seed = int(rng.integers(2**62))
        for one in draw(replace(options, n=count, seed=seed, progress=None)):
            since += 1
            if failure(constraint, one):
                last = one
            elif failed:
                found[failed.pop(0)], since = one, 0
        at_once *= 2
    return found


def failure(constraint: Constraint | None, completion: Completion) -> Fault | None:
    """Why a completion that is over fails the check of its constraint; None if it does not.

    One that was cut, by its length or by the time, is not over.

    >>> from charwise.constraints import json_schema
    >>> one = Completion("1", b"1", -1.0, [], 0, "stop", 1)
    >>> failure(json_schema({"multipleOf": 2}), one).why
    '1 is not a multiple of 2'
    """
    if constraint is None or not has_check(constraint):
        return None
    if completion.finish not in ("stop", "dead end"):
        return None
    return fault_of(constraint.after(completion.raw))


def _searched(
    kept: list[Completion], missing: int, candidates: Iterator[Completion]
) -> list[Completion]:
    """Completions with so many candidates more; those that were cut only if there are no others."""
    known = {one.raw for one in kept}
    cut: list[Completion] = []
    for one in candidates:
        if one.raw in known:
            continue
        known.add(one.raw)
        (cut if one.finish == "length" else kept).append(one)
        missing -= one.finish != "length"
        if not missing:
            break
    return kept + cut[:missing]


def _none(last: Completion, fault: Fault | None) -> ConstraintError:
    why = fault.why if fault else "it is not complete"
    return ConstraintError(
        f"no text that was drawn is valid JSON of the schema. The last was {shown(last.text)}: "
        f"{why}. Loosen the schema, or show the model an example in the prompt."
    )
