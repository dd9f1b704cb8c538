"""The likelihoods of a text under the members of a combination, byte by byte."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from charwise.combine.member_scores import member_scores
from charwise.combine.members import Member, Spend, Team
from charwise.combine.rules import Floats, Mixture
from charwise.combine.scoring import curves_of
from charwise.cursor.state import State


def likelihoods(team: Team, text: bytes, context: bytes, spend: Spend) -> Floats:
    """`[2, n, T]` log p_i of each byte of a text, nats, and by how much that may be off.

    >>> import charwise
    >>> from charwise.combine import mixture
    >>> both = mixture([charwise.load(), charwise.load()])
    >>> likelihoods(both.team, b"np", b"import ", Spend()).shape
    (2, 2, 2)
    """
    each = [
        member_scores(one, [text], [context], spend, rows=False, end=False)[0]
        for one in team.members
    ]
    _, errors = curves_of(each)
    return np.stack([np.stack([one.score.logprobs for one in each]), errors])


def likelihood_of_byte(
    member: Member, state: Any, after: Any, byte: int, raw: bytes, spend: Spend
) -> tuple[float, float]:
    """log p_i of a byte that was typed, nats, and by how much that may be off.

    It is what the state gave to the byte. That may be too little, or nothing, where the contexts
    that spell the byte were left out before it came; the state after it has looked for them, and
    the two tell how →p_i changed. So they do with "canonical-mass", where next bytes are divided by
    a sum that →p_i is not divided by.

    Args:
        member: whose states they are.
        state, after: before the byte and after it; None after what it cannot write.
        byte: what was typed.
        raw: the text before it.
        spend: how much.

    >>> import charwise
    >>> one = Member(charwise.load())
    >>> state = one.lm.state("import nump")
    >>> logprob, error = likelihood_of_byte(one, state, state + "y", 121, b"import nump", Spend())
    >>> bool(np.isclose(logprob, state.next().logprobs[121])), error < 0.01
    (True, True)
    """
    if state is None or after is None:
        return -math.inf, 0.0
    nxt, loses = state.next(), _loses_mass(member.lm)
    p = float(nxt.probs[byte])
    if p > nxt.error and not loses:
        return math.log(p), math.log1p(nxt.error / p)
    if isinstance(state, State) and isinstance(after, State) and state.shared is after.shared:
        error = sum(-math.log1p(-min(one.error, 0.999)) for one in (state, after))
        return after.logprob - state.logprob, error
    if p > 0 and not loses:
        return math.log(p), math.log1p(nxt.error / p)
    one = Team((member,), Mixture((1.0,)))
    logprob, error = likelihoods(one, bytes([byte]), raw, spend)[:, 0, 0].tolist()
    return logprob, error


def _loses_mass(lm: Any) -> bool:
    """Whether what may come next adds up to less than what it comes after."""
    team = getattr(lm, "team", None)
    if isinstance(team, Team):
        return any(_loses_mass(one.lm) for one in team.members)
    return getattr(getattr(lm, "engine", None), "estimand", None) == "canonical-mass"


def onward(start: Floats, steps: Floats) -> Floats:
    """`[n, T + 1]` a start, and what `[n, T]` steps make of it.

    >>> onward(np.zeros(1), np.array([[-1.0, -2.0]])).tolist()
    [[0.0, -1.0, -3.0]]
    """
    return np.concatenate([start[:, None], start[:, None] + np.cumsum(steps, axis=1)], axis=1)
