"""Particles that go on byte by byte, where there are no tokens; see `particles.py`.

Of a combination a byte's mass is what the members make of it by the global rule, which need not
add up to 1 (docs/combine.md):

    Z_t = Σ { F(→p_1(σ·c), …) / F(→p_1(σ), …) : c may follow }
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from charwise.cursor.byte_drafts import Bytewise
from charwise.cursor.distributions import EOS
from charwise.cursor.options import GenerationOptions
from charwise.cursor.particles import Particle, Proposal
from charwise.errors import ZeroProbabilityError


@dataclass(kw_only=True)
class ByteParticle(Particle):
    """Particles of equal text, and the state after it."""

    state: Bytewise


class ByteParticles(Proposal[ByteParticle]):
    """The particles of one request.

    >>> import charwise
    >>> options = GenerationOptions(choices=["y"], particles=8)
    >>> found = ByteParticles(charwise.load().state("import nump"), options)
    >>> [one.size for one in found.begin()]
    [8]
    """

    def __init__(self, state: Bytewise, options: GenerationOptions) -> None:
        super().__init__(state, options)
        self.start = state

    def begin(self) -> list[ByteParticle]:
        """All particles, after the prompt."""
        first = ByteParticle(state=self.start, constraint=self.constraint, size=self.count)
        self.settle(first)
        return [first]

    def step(self, going: list[ByteParticle]) -> list[ByteParticle]:
        """What becomes of these with one more byte; none of those in a dead end."""
        return [new for particle in going for new in self._next(particle)]

    def _next(self, particle: ByteParticle) -> list[ByteParticle]:
        allowed = particle.constraint.allowed()
        try:
            nxt = particle.state.next()
        except ZeroProbabilityError:  # what one member goes on with, another cannot
            if not particle.raw:
                raise
            return []
        masses = np.where(allowed, nxt.probs, 0.0)
        mass = float(masses.sum())
        if not (allowed.any() and mass > 0):
            return []
        drawn = self.rng.multinomial(particle.size, masses / mass)
        out = []
        for code in np.flatnonzero(drawn).tolist():
            new = replace(
                particle,
                logprob=particle.logprob + math.log(masses[code]) + nxt.log_total,
                weight=particle.weight + math.log(mass) + nxt.log_total,
                size=int(drawn[code]),
            )
            if code == EOS:
                new.finish = "end"
            else:
                byte = bytes([code])
                new.state, new.constraint = new.state + byte, new.constraint.after(byte)
                new.raw += byte
                self.settle(new)
            out.append(new)
        return out
