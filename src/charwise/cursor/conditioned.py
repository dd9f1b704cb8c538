"""Completions under a constraint, whichever way: step by step, added up, or by particles.

Where the model is conditioned on the constraint as a whole, all members of a small set are added
up, and others are sampled (`particles.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

import numpy as np

from charwise.constraints.constraint import Constraint, closed, finite
from charwise.coverings.log_sums import log_sum
from charwise.cursor.choose import ChoicePosterior
from charwise.cursor.drafts import Bytewise, Completion, Cursor
from charwise.cursor.following import check_begins
from charwise.cursor.generation import Report, complete
from charwise.cursor.limit import Limit
from charwise.cursor.particles import particles
from charwise.cursor.sampling import MOST_DRAWN, Sampling
from charwise.cursor.weighted import Weighted, weighed_text
from charwise.errors import ConstraintError, SettingError, check_count, shown
from charwise.tokens.stops import StopStrings

#: Whether a constraint is applied at each step, or the model is conditioned on it.
Conditioning = Literal["local", "global"]

#: Sets with at most so many members are added up.
_FEW = 256


class Choosing(Bytewise, Protocol):
    """A `State`, or another one, as far as small sets go."""

    def choose(self, choices: Iterable[str | bytes], *, ended: bool = False) -> ChoicePosterior: ...


class Completing(Cursor, Choosing, Protocol):
    """A `State`, as far as this module goes."""


def completions(
    state: Completing,
    constraint: Constraint | None,
    conditioning: str,
    count: int,
    *,
    n: int,
    max_new_bytes: int,
    stop: StopStrings,
    sampling: Sampling,
    limit: Limit,
    progress: Report | None = None,
) -> list[Completion]:
    """Completions of a state's text under a constraint, or none; see `CharLM.complete`.

    Where they are conditioned on it as a whole, small sets are added up, and others sampled.

    Raises:
        SettingError: another word, or settings that conditioning has no meaning for.
        ConstraintError: conditioned on what nothing satisfies.
    """
    check_conditioning(conditioning)
    check_count("particles", count, 1, MOST_DRAWN)
    if conditioning == "local":
        return complete(
            state,
            n=n,
            max_new_bytes=max_new_bytes,
            stop=stop,
            sampling=sampling,
            limit=limit,
            constraint=constraint,
            progress=progress,
        )
    if constraint is None:
        raise SettingError("conditioning='global' needs a constraint: give regex=… or another.")
    check_conditioned(sampling, stop)
    members = few(constraint, max_new_bytes)
    if members is not None:
        return computed(state, constraint, members, n=n)
    return particles(
        state,
        constraint,
        count,
        n=n,
        max_new_bytes=max_new_bytes,
        seed=sampling.seed,
        limit=limit,
        progress=progress,
    )


def check_conditioning(conditioning: object) -> None:
    """Refuse another word for how a constraint is applied.

    Raises:
        SettingError: what was given.

    >>> check_conditioning("global")
    """
    if not isinstance(conditioning, str) or conditioning not in ("local", "global"):
        raise SettingError(f"conditioning is {shown(conditioning)}: choose 'local' or 'global'.")


def check_conditioned(sampling: Sampling, stop: StopStrings) -> None:
    """Refuse settings that conditioning has no meaning for.

    Raises:
        SettingError: if there are such.

    >>> check_conditioned(Sampling(), ())
    """
    if sampling.temperature not in (0.0, 1.0) or sampling.top_p < 1 or sampling.top_k or stop:
        raise SettingError(
            "conditioning='global' conditions the model as it is: leave temperature, top_p, top_k "
            "and stop alone, and write what should end a completion into the constraint."
        )


def few(constraint: Constraint, longest: int) -> list[bytes] | None:
    """All members of a set that is small enough to be added up, of at most so many bytes.

    Raises:
        ConstraintError: if there are none.

    >>> from charwise import constraints
    >>> few(constraints.choices(["yes", "no"]), 9)
    [b'no', b'yes']
    """
    members = finite(constraint, _FEW, longest=longest)
    if members == []:
        raise ConstraintError("nothing satisfies the constraint: every way into it is a dead end.")
    return members


def computed(
    state: Choosing, constraint: Constraint, members: Sequence[bytes], *, n: int = 1
) -> Weighted:
    """The n heaviest members of a small set, with their exact shares of it.

    Raises:
        ZeroProbabilityError: if the model gives all of them probability zero.

    >>> import charwise
    >>> from charwise import constraints
    >>> one = constraints.choices(["nge(", "ndom."])
    >>> found = computed(charwise.load().state("for i in ra"), one, [b"ndom.", b"nge("])
    >>> found[0].text, bool(found.weights[0] > 0.5)
    ('nge(', True)
    """
    check_count("n", n, 1)
    check_begins(state.raw, constraint)
    ends = {member: not closed(constraint.after(member)) for member in members}
    logs = dict[bytes, float]()
    for ended in (False, True):
        which = [member for member in members if ends[member] == ended]
        if which:
            found = state.choose(which, ended=ended)
            logs |= dict(zip(found.raw, found.logprobs.tolist(), strict=True))
    total = log_sum(list(logs.values()))
    order = sorted(members, key=lambda member: -logs[member])[:n]
    return Weighted(
        [
            weighed_text(state, member, "end" if ends[member] else "constraint", logs[member])
            for member in order
        ],
        np.exp([logs[member] - total for member in order]),
        logprob=total,
        effective=math.inf,
    )
