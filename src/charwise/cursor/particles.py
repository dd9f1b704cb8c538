"""Texts from p(· | what satisfies a constraint), by sequential Monte Carlo over bytes.

Renormalising what is allowed at each byte (`NextBytes.under`) draws a first byte as often as the
model says, though nearly all that could come of it may be ruled out later. Here every particle is
drawn so, and weighs the product of what was allowed:

    w = Π_t Z_t,     Z_t = Σ { p(c | text so far) : c may follow }

The mean weight is an unbiased estimate of p(C | prompt), and the weighted particles are one of
p(· | prompt, C). Where few particles hold most of the weight, they are drawn anew in proportion
to it (systematic resampling). A member of C after which nothing may follow is complete there; any
other is ended by the model. Small sets are added up instead (`computed`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from charwise.constraints.constraint import END, Constraint, closed, finite
from charwise.coverings.log_sums import log_sum
from charwise.cursor.choose import Chosen
from charwise.cursor.distributions import EOS
from charwise.cursor.drafts import Completion, Typed
from charwise.cursor.following import check_begins
from charwise.cursor.generation import Report, complete
from charwise.cursor.limit import Limit
from charwise.cursor.sampling import MOST_DRAWN, Sampling
from charwise.errors import ConstraintError, SettingError, check_count, shown
from charwise.tokens.stops import StopStrings
from charwise.tokens.utf8 import decoder_after

Floats = NDArray[np.float64]


#: Whether a constraint is applied at each step, or the model is conditioned on it.
How = Literal["local", "global"]

#: Sets with at most so many members are added up.
_FEW = 256


class Weighted(list[Completion]):
    """Completions that satisfy a constraint, the heaviest first, with their weights.

    Attributes:
        weights: `[n]` p(completion | prompt, C), or the estimate of it.
        logprob: log p(C | prompt), nats, or the log of the unbiased estimate of it.
        effective: effective sample size, (Σ w)² / Σ w²; infinite where nothing was sampled.

    >>> Weighted([], np.zeros(0), logprob=-1.0, effective=math.inf).logprob
    -1.0
    """

    def __init__(
        self, found: Iterable[Completion], weights: Floats, *, logprob: float, effective: float
    ) -> None:
        super().__init__(found)
        self.weights, self.logprob, self.effective = weights, logprob, effective


@dataclass
class _Particle:
    """Particles of equal text: what was allowed on their way is the same, so is their weight."""

    state: Typed
    constraint: Constraint
    before: bytes  # the prompt
    raw: bytes = b""
    logprob: float = 0.0  # of the bytes, as the model has them
    finish: str = ""
    size: int = 1  # particles
    weight: float = 0.0  # log of the weight of each


def particles(
    state: Typed,
    constraint: Constraint,
    count: int,
    *,
    n: int = 1,
    max_new_bytes: int = 64,
    seed: int | None = None,
    limit: Limit | None = None,
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

    Raises:
        ConstraintError: if no particle satisfies it; says how far the longest came.

    >>> import charwise
    >>> from charwise import constraints
    >>> found = particles(charwise.load().state("x = "), constraints.regex("[01]"), 8, n=2, seed=0)
    >>> {completion.text for completion in found} <= {"0", "1"}, found.logprob < 0
    (True, True)
    """
    check_count("particles", count, 1, MOST_DRAWN)
    check_count("n", n, 1, MOST_DRAWN)
    check_begins(state.raw, constraint)
    rng = np.random.default_rng(seed)
    limit = limit or Limit()
    alive = [_Particle(state, constraint, state.raw, size=count)]
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
    logs = np.array([particle.weight + math.log(particle.size) for particle in alive])
    total = log_sum(logs.tolist())
    weights, sizes = np.exp(logs - total), np.array([particle.size for particle in alive])
    order = np.argsort(-weights, kind="stable")[:n]
    return Weighted(
        [_completion(alive[at]) for at in order.tolist()],
        weights[order],
        logprob=estimate + total - math.log(count),
        effective=1.0 / float((weights**2 / sizes).sum()),
    )


def _finish(particle: _Particle, most: int, reached: str) -> None:
    """Finish a particle that is complete, long enough, or out of time."""
    if particle.finish:
        return
    allowed = particle.constraint.allowed()
    if not allowed[:END].any():
        # A dead end stays unfinished: its next step finds no mass.
        particle.finish = "constraint" if allowed[END] else ""
    elif len(particle.raw) >= most:
        particle.finish = "length"
    particle.finish = particle.finish or reached


def _step(particle: _Particle, rng: np.random.Generator) -> list[_Particle]:
    """What becomes of particles of equal text with one more byte; none of those in a dead end."""
    if particle.finish:
        return [particle]
    allowed = particle.constraint.allowed()
    masses = np.where(allowed, particle.state.next().probs, 0.0)
    mass = float(masses.sum())
    if not (allowed.any() and mass > 0):
        return []
    drawn = rng.multinomial(particle.size, masses / mass)
    out = []
    for code in np.flatnonzero(drawn).tolist():
        new = replace(
            particle,
            logprob=particle.logprob + math.log(masses[code]),
            weight=particle.weight + math.log(mass),
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
    # Systematic: one draw for all, so that each gets its share of the count, up or down to a whole.
    points = (np.arange(count) + rng.random()) / count
    chosen = np.minimum(np.searchsorted(np.cumsum(shares), points), len(alive) - 1)
    for particle, size in zip(alive, np.bincount(chosen, minlength=len(alive)), strict=True):
        particle.size, particle.weight = int(size), 0.0
    return total - math.log(count)


def _completion(particle: _Particle) -> Completion:
    """A particle's text; bytes were drawn, so there are no tokens."""
    return Completion(
        decoder_after(particle.before).decode(particle.raw, final=True),
        particle.raw,
        particle.logprob,
        [],
        particle.state.exact_from,
        particle.finish,
        len(particle.raw) + (particle.finish == "end"),
    )


class Choosing(Typed, Protocol):
    """A `State`, as far as this module goes."""

    def choose(self, choices: Iterable[str | bytes], *, ended: bool = False) -> Chosen: ...


def completions(
    state: Choosing,
    constraint: Constraint | None,
    how: str,
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
        SettingError: another word for `how`, or settings that conditioning has no meaning for.
    """
    if not isinstance(how, str) or how not in ("local", "global"):
        raise SettingError(f"how is {shown(how)}: choose 'local' or 'global'.")
    if how == "local":
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
        raise SettingError("how='global' conditions on a constraint: give regex=… or another.")
    if sampling.temperature not in (0.0, 1.0) or sampling.top_p < 1 or sampling.top_k or stop:
        raise SettingError(
            "how='global' conditions the model as it is: leave temperature, top_p, top_k and stop "
            "alone, and write what should end a completion into the constraint."
        )
    members = finite(constraint, _FEW, longest=max_new_bytes)
    if members is not None:
        return computed(state, constraint, members, n=n)
    return particles(
        state, constraint, count, n=n, max_new_bytes=max_new_bytes, seed=sampling.seed, limit=limit
    )


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
    ends = [not closed(constraint.after(member)) for member in members]
    logs = dict[bytes, float]()
    for ended in (False, True):
        which = [member for member, other in zip(members, ends, strict=True) if other == ended]
        if which:
            found = state.choose(which, ended=ended)
            logs |= dict(zip(found.raw, found.logprobs.tolist(), strict=True))
    total = log_sum(list(logs.values()))
    order = sorted(members, key=lambda member: -logs[member])[:n]
    return Weighted(
        [
            _completion(_Particle(state, constraint, state.raw, member, logs[member], finish))
            for member in order
            for finish in ("end" if ends[members.index(member)] else "constraint",)
        ],
        np.exp([logs[member] - total for member in order]),
        logprob=total,
        effective=math.inf,
    )
