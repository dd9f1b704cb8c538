"""The model conditioned on a small set as a whole: all of its members are added up.

Larger sets are sampled (`particles.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

import numpy as np

from charwise.constraints.constraint import closed, finite
from charwise.coverings.log_sums import log_sum
from charwise.cursor.choose import ChoicePosterior
from charwise.cursor.completion import Placed, Weighted, weighed_text
from charwise.cursor.following import check_begins
from charwise.cursor.options import GenerationOptions
from charwise.errors import ConstraintError

#: Sets with at most so many members are added up.
_FEW = 256


class Choosing(Placed, Protocol):
    """A state, as far as small sets go."""

    def choose(self, choices: Iterable[str | bytes], *, ended: bool = False) -> ChoicePosterior: ...


def added_up(state: Choosing, options: GenerationOptions) -> Weighted | None:
    """The n heaviest members of the set that follow a state; None if there are too many.

    Args:
        state: the prompt.
        options: the set, of whose members those of `max_new_bytes` at most count, and n.

    Raises:
        ConstraintError: if it has no members.
        ZeroProbabilityError: if all have probability zero.

    >>> import charwise
    >>> options = GenerationOptions(choices=["nge(", "ndom."])
    >>> found = added_up(charwise.load().state("for i in ra"), options)
    >>> found[0].text, bool(found.weights[0] > 0.5)
    ('nge(', True)
    """
    constraint = options.constraint
    if constraint is None:
        return None
    members = finite(constraint, _FEW, longest=options.max_new_bytes)
    if members is None:
        return None
    if not members:
        raise ConstraintError("nothing satisfies the constraint: every way into it is a dead end.")
    check_begins(state.raw, constraint)
    ends = {member: not closed(constraint.after(member)) for member in members}
    logs = dict[bytes, float]()
    for ended in (False, True):
        which = [member for member in members if ends[member] == ended]
        if which:
            found = state.choose(which, ended=ended)
            logs |= dict(zip(found.raw, found.logprobs.tolist(), strict=True))
    total = log_sum(list(logs.values()))
    order = sorted(members, key=lambda member: -logs[member])[: options.n]
    return Weighted(
        [
            weighed_text(state, member, "end" if ends[member] else "constraint", logs[member])
            for member in order
        ],
        np.exp([logs[member] - total for member in order]),
        logprob=total,
        effective=math.inf,
    )
