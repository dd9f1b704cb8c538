"""Texts by the global rule, by sequential Monte Carlo over bytes.

As in `cursor/particles.py`, whose particles go token by token; a combination has no tokens. Each
particle is drawn by the local rule from what may follow, and weighs the product of what that added
up to before it was normalised (docs/combine.md):

    w = Π_t Z_t,     Z_t = Σ { F(→p_1(σ·c), …) / F(→p_1(σ), …) : c may follow }
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from charwise.constraints.constraint import Constraint
from charwise.coverings.log_sums import log_sum
from charwise.cursor.conditioned import Choosing, check_conditioned, computed, few
from charwise.cursor.distributions import EOS
from charwise.cursor.drafts import Bytewise
from charwise.cursor.following import check_begins
from charwise.cursor.generation import Report, check_report
from charwise.cursor.limit import Limit
from charwise.cursor.outcomes import ended
from charwise.cursor.particle import systematic
from charwise.cursor.sampling import MOST_DRAWN, Sampling
from charwise.cursor.weighted import Weighted, weighed_text
from charwise.errors import ConstraintError, ZeroProbabilityError, check_count
from charwise.tokens.stops import StopStrings


@dataclass
class _Particle:
    """Particles of equal text: what was allowed on their way is the same, so is their weight."""

    state: Bytewise
    constraint: Constraint
    raw: bytes = b""
    logprob: float = 0.0  # of the bytes, as the model has them
    finish: str = ""
    size: int = 1  # particles
    weight: float = 0.0  # log of the weight of each


def particles(
    state: Bytewise,
    constraint: Constraint,
    count: int,
    *,
    n: int = 1,
    max_new_bytes: int = 64,
    seed: int | None = None,
    limit: Limit | None = None,
    progress: Report | None = None,
) -> Weighted:
    """The n heaviest of a weighted sample of p(· | prompt, C).

    Args:
        state: the prompt.
        constraint: C.
        count: particles.
        n: most texts that are returned; equal ones are one.
        max_new_bytes: what is longer is cut, and counts as if it satisfied C.
        seed: for the same draws again.
        limit: what has not ended by then counts as it is.
        progress: told how many particles are complete, of all.

    Raises:
        ConstraintError: if no particle satisfies it; says how far the longest came.
        ZeroProbabilityError: if nothing may follow the prompt itself.

    >>> import charwise
    >>> from charwise import constraints
    >>> found = particles(charwise.load().state("x = "), constraints.regex("[01]"), 8, n=2, seed=0)
    >>> {completion.text for completion in found} <= {"0", "1"}, found.logprob < 0
    (True, True)
    """
    check_count("particles", count, 1, MOST_DRAWN)
    check_count("n", n, 1, MOST_DRAWN)
    check_count("max_new_bytes", max_new_bytes, 0)
    check_report(progress)
    check_begins(state.raw, constraint)
    rng = np.random.default_rng(seed)
    limit = limit or Limit()
    alive = [_Particle(state, constraint, size=count)]
    estimate, longest = 0.0, b""
    while any(not particle.finish for particle in alive):
        reached = limit.reached()
        for particle in alive:
            _finish(particle, max_new_bytes, reached)
        longest = max([longest, *(particle.raw for particle in alive)], key=len)
        alive = [new for particle in alive for new in _step(particle, rng)]
        if not alive:
            raise ConstraintError(
                f"none of {count} particles satisfies the constraint: the longest came to "
                f"{longest!r}, and nothing that may follow has any probability.",
                len(longest),
            )
        estimate += _resample(alive, count, rng)
        alive = [particle for particle in alive if particle.size]
        if progress is not None:
            progress(sum(one.size for one in alive if one.finish), count)
    logs = np.array([particle.weight + math.log(particle.size) for particle in alive])
    total = log_sum(logs.tolist())
    weights, sizes = np.exp(logs - total), np.array([particle.size for particle in alive])
    order = np.argsort(-weights, kind="stable")[:n]
    return Weighted(
        [
            weighed_text(state, one.raw, one.finish, one.logprob)
            for one in (alive[at] for at in order.tolist())
        ],
        weights[order],
        logprob=estimate + total - math.log(count),
        effective=1.0 / float((weights**2 / sizes).sum()),
    )


def _finish(particle: _Particle, most: int, reached: str) -> None:
    """Finish a particle that is complete, long enough, or out of time."""
    if not particle.finish:
        # A dead end stays unfinished: its next step finds no mass.
        allowed = particle.constraint.allowed()
        particle.finish = ended(allowed, len(particle.raw), most) or reached


def _step(particle: _Particle, rng: np.random.Generator) -> list[_Particle]:
    """What becomes of particles of equal text with one more byte; none of those in a dead end."""
    if particle.finish:
        return [particle]
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
    drawn = rng.multinomial(particle.size, masses / mass)
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
        out.append(new)
    return out


def _resample(alive: list[_Particle], count: int, rng: np.random.Generator) -> float:
    """Draw particles anew where the effective sample is less than half of them.

    Returns the log of the mean weight, which is taken out of all of them; 0 if nothing was drawn.
    """
    sizes = np.array([particle.size for particle in alive])
    logs = np.array([particle.weight for particle in alive]) + np.log(sizes)
    total = log_sum(logs.tolist())
    shares = np.exp(logs - total)
    if 1.0 / float((shares**2 / sizes).sum()) >= count / 2:
        return 0.0
    for particle, size in zip(alive, systematic(shares, count, rng).tolist(), strict=True):
        particle.size, particle.weight = size, 0.0
    return total - math.log(count)


def conditioned(
    state: Choosing,
    constraint: Constraint,
    count: int,
    *,
    n: int,
    max_new_bytes: int,
    stop: StopStrings,
    sampling: Sampling,
    limit: Limit,
    progress: Report | None = None,
) -> Weighted:
    """Completions of a state's text, given a constraint as a whole: added up, or sampled.

    Raises:
        SettingError: settings that conditioning has no meaning for.

    >>> import charwise
    >>> from charwise import constraints
    >>> one, rest = constraints.choices(["nge(", "ndom."]), {"stop": (), "limit": Limit()}
    >>> state = charwise.load().state("for i in ra")
    >>> conditioned(state, one, 8, n=1, max_new_bytes=9, sampling=Sampling(), **rest)[0].text
    'nge('
    """
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
