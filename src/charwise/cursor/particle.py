"""A particle, and how particles are drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from charwise.constraints.constraint import Constraint, TokenConstraint


@dataclass
class Particle:
    """Particles of equal tokens: what was allowed on their way is the same, so is their weight."""

    node: int
    token: int  # drawn after `node`, not evaluated yet; −1 if there is none
    constraint: Constraint
    tokens: TokenConstraint
    raw: bytes = b""
    logprob: float = 0.0  # of the tokens; of all that begin with the text, where it ends inside one
    finish: str = ""
    size: int = 1  # particles
    weight: float = 0.0  # log of the weight of each

    def complete(self, raw: bytes, finish: str, mass: float, size: int) -> Particle:
        """So many of these particles that are complete with a text, which has this probability."""
        logprob = self.logprob + math.log(mass)
        return replace(self, raw=raw, finish=finish, logprob=logprob, size=size)

    def longer(self, data: bytes, mass: float, size: int, **at: int) -> Particle:
        """So many of these particles with a token more, which has this probability."""
        new = replace(self, raw=self.raw + data, size=size, **at)  # type: ignore[arg-type]
        new.logprob += math.log(mass)
        new.constraint, new.tokens = self.constraint.after(data), self.tokens.after(data)
        return new


def systematic(
    shares: NDArray[np.float64], count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """How often each is drawn: its share of the count, up or down to a whole, by one number.

    >>> sorted(systematic(np.array([0.25, 0.75, 0.0]), 4, np.random.default_rng(0)).tolist())
    [0, 1, 3]
    """
    points = (np.arange(count) + rng.random()) / count
    ends = np.cumsum(shares)
    chosen = np.searchsorted(ends, points * ends[-1], side="right")
    last = int(np.flatnonzero(shares)[-1])
    return np.bincount(np.minimum(chosen, last), minlength=len(shares))
