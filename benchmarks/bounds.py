"""A lower bound of every prefix probability: the contexts that rounds evaluated, nothing lent.

A beam sums over contexts that it kept, so its sum is a lower bound of →p(σ); so is this one. Either
may miss what the other finds: a beam drops early what pays late, rounds what no respelling tries.
The higher one is nearer to the truth.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from charwise.known_text.effort import Effort
from charwise.known_text.windows import stretches
from charwise.model import CharLM
from charwise.tokens.prompts import split

Floats = NDArray[np.float64]


def lower_bound(lm: CharLM, text: bytes, effort: Effort) -> Floats:
    """`[n]` log-probabilities of bytes, nats, by all evaluated contexts of one window."""
    opening, whole = split(lm.vocabulary, text)
    [(_, rounds)] = stretches(lm.engine, lm.index, opening, whole, effort, retain=True)
    lattice, lead = rounds.lattice, len(opening.lead)
    weights = {lattice.root: 0.0}  # log →p_Δ of a context, without what was lent to it
    sums = np.full(len(whole) + 1, -np.inf)
    sums[0] = 0.0
    for there in lattice.at:
        for vertex in there:
            weight = weights.get(vertex, -math.inf)
            if weight == -math.inf:
                continue
            for end, mass in enumerate(vertex.starting, start=vertex.position + 1):
                if mass > 0:
                    sums[end] = np.logaddexp(sums[end], weight + math.log(mass))
            for child, mass in vertex.followed:
                if mass > 0:
                    longer = weight + math.log(mass)
                    weights[child] = float(np.logaddexp(weights.get(child, -math.inf), longer))
    return np.diff(sums[lead:])
