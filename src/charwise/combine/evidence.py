"""What the members give to a text, as evidence for one or the other."""

from __future__ import annotations

import numpy as np

from charwise.combine.along import along
from charwise.combine.members import Spend, Team
from charwise.combine.rules import Floats
from charwise.combine.scoring import curves_of


def evidence(team: Team, text: bytes, context: bytes, spend: Spend) -> Floats:
    """`[2, n, T]` log p_i of each byte of a text, nats, and by how much that may be off.

    >>> import charwise
    >>> from charwise.combine import mixture
    >>> both = mixture([charwise.load(), charwise.load()])
    >>> evidence(both.team, b"np", b"import ", Spend()).shape
    (2, 2, 2)
    """
    each = [along(one, [text], [context], spend, rows=False, end=False)[0] for one in team.members]
    _, errors = curves_of(each)
    return np.stack([np.stack([one.score.logprobs for one in each]), errors])


def onward(start: Floats, steps: Floats) -> Floats:
    """`[n, T + 1]` a start, and what `[n, T]` steps make of it.

    >>> onward(np.zeros(1), np.array([[-1.0, -2.0]])).tolist()
    [[0.0, -1.0, -3.0]]
    """
    return np.concatenate([start[:, None], start[:, None] + np.cumsum(steps, axis=1)], axis=1)
