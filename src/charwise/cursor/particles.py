"""Texts from p(· | the constraint is satisfied), by sequential Monte Carlo.

Renormalising what is allowed at each step (`conditioning="local"`) draws a beginning as often
as the model says, though nearly all that could come of it may be ruled out later. Here every
particle is drawn so, and weighs the product of what was allowed:

    w = Π_t Z_t,     Z_t = Σ { p(x | drawn so far) : x goes on, or the text is complete with it }

The mean weight is an unbiased estimate of p(C | prompt), and the weighted particles are a sample of
p(· | prompt, C). Where few particles hold most of the weight, they are drawn anew in proportion to
it (systematic resampling). A step draws a token (`token_particles.py`) or a byte
(`bytewise.py`). Of small sets all members are added up instead.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from charwise.constraints.constraint import Constraint, closed, finite
from charwise.coverings.log_sums import log_sum
from charwise.cursor.completion import (
    Placed,
    Weighted,
    check_begins,
    weighed_text,
    whole_characters,
)
from charwise.cursor.options import GenerationOptions, Limit
from charwise.cursor.outcomes import ended
from charwise.errors import ConstraintError, SettingError


@dataclass(kw_only=True)
class Particle:
    """Particles that drew the same: the same was allowed on their way, so their weights are equal.

    >>> Particle(constraint=None, size=3).weight
    0.0
    """

    constraint: Constraint
    raw: bytes = b""
    logprob: float = 0.0  # of what was drawn, as the model has it
    finish: str = ""
    size: int = 1  # particles
    weight: float = 0.0  # log of the weight of each


P = TypeVar("P", bound=Particle)


class Proposal(ABC, Generic[P]):
    """How the particles of one request go on.

    Args:
        state: the prompt.
        options: what is asked for, a constraint among it.

    Raises:
        SettingError: without a constraint.
        ConstraintError: one that begins with a whole character, inside of one.
    """

    def __init__(self, state: Placed, options: GenerationOptions) -> None:
        if options.constraint is None:
            raise SettingError("conditioning='global' needs a constraint: give regex=… or another.")
        check_begins(state.raw, options.constraint)
        self.state, self.options, self.constraint = state, options, options.constraint
        self.count, self.most = options.particles, options.max_new_bytes
        self.rng = np.random.default_rng(options.seed)

    @abstractmethod
    def begin(self) -> list[P]:
        """All particles after the prompt."""

    @abstractmethod
    def step(self, going: list[P]) -> list[P]:
        """These particles with one more token or byte, without those in a dead end."""

    def free(self, alive: list[P]) -> None:
        """Free the memory that none of these needs."""

    def close(self) -> None:
        """Give back the contexts evaluated on the way."""

    def settle(self, particle: P) -> None:
        """Finish particles that are complete, or long enough."""
        if not particle.finish:
            allowed = particle.constraint.allowed()
            # A dead end stays unfinished: its next step finds no mass.
            particle.finish = ended(allowed, len(particle.raw), self.most)
            particle.raw = particle.raw[: self.most]


def sample(proposal: Proposal[P], limit: Limit) -> Weighted:
    """The n heaviest of a weighted sample of p(· | prompt, C).

    Args:
        proposal: how the particles go on.
        limit: what has not ended by then counts as it is.

    Raises:
        ConstraintError: if no particle satisfies it; says how far the longest came.

    >>> import charwise
    >>> from charwise.cursor.bytewise import ByteParticles
    >>> options = GenerationOptions(regex="[01]", particles=8, n=2, seed=0)
    >>> found = sample(ByteParticles(charwise.load().state("x = "), options), options.limit())
    >>> {completion.text for completion in found} <= {"0", "1"}, found.logprob < 0
    (True, True)
    """
    options, count = proposal.options, proposal.count
    estimate, longest = 0.0, b""
    try:
        alive = proposal.begin()
        while True:
            if not alive:
                raise ConstraintError(
                    f"none of {count} particles satisfies the constraint: the longest came to "
                    f"{longest!r}, and nothing that may follow has any probability.",
                    len(longest),
                )
            longest = max([longest, *(particle.raw for particle in alive)], key=len)
            estimate += _resample(alive, count, proposal.rng)
            alive = [particle for particle in alive if particle.size]
            proposal.free(alive)
            going = [particle for particle in alive if not particle.finish]
            if not going:
                return _weighted(alive, proposal.state, options, estimate)
            if reached := limit.reached():
                for particle in going:
                    particle.finish = reached
                going = []
            alive = [particle for particle in alive if particle.finish] + proposal.step(going)
            if options.progress is not None:
                options.progress(sum(one.size for one in alive if one.finish), count)
    finally:
        proposal.close()


def _resample(alive: list[P], count: int, rng: np.random.Generator) -> float:
    """Draw particles anew where the effective sample is less than half of them.

    Returns the log of the mean weight, which is taken out of all of them; 0 if nothing was drawn.
    """
    total, shares, sizes = _shares(alive)
    if 1.0 / float((shares**2 / sizes).sum()) >= count / 2:
        return 0.0
    counts = systematic(shares / shares.sum(), count, rng)
    for particle, size in zip(alive, counts.tolist(), strict=True):
        particle.size, particle.weight = size, 0.0
    return total - math.log(count)


def _shares(alive: list[P]) -> tuple[float, NDArray[np.float64], NDArray[np.int64]]:
    """Log of the sum of all weights, `[n]` shares in it, and `[n]` how many particles."""
    sizes = np.array([particle.size for particle in alive])
    logs = np.array([particle.weight for particle in alive]) + np.log(sizes)
    total = log_sum(logs.tolist())
    return total, np.exp(logs - total), sizes


def _weighted(
    alive: list[P], state: Placed, options: GenerationOptions, estimate: float
) -> Weighted:
    """The n heaviest texts, equal ones as one."""
    total, shares, sizes = _shares(alive)
    texts = dict[tuple[bytes, str], list[int]]()
    for at, particle in enumerate(alive):
        raw = particle.raw
        if particle.finish == "length" and len(raw) >= options.max_new_bytes:
            raw = whole_characters(state.raw, raw)
        texts.setdefault((raw, particle.finish), []).append(at)
    weights = {text: float(shares[places].sum()) for text, places in texts.items()}
    heaviest = sorted(weights, key=lambda text: -weights[text])[: options.n]
    logprobs = [log_sum([alive[at].logprob for at in texts[text]]) for text in heaviest]
    return Weighted(
        [
            weighed_text(state, *text, logprob)
            for text, logprob in zip(heaviest, logprobs, strict=True)
        ],
        np.array([weights[text] for text in heaviest]),
        logprob=estimate + total - math.log(options.particles),
        effective=1.0 / float((shares**2 / sizes).sum()),
    )


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


def added_up(state: Any, options: GenerationOptions) -> Weighted | None:
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
    members = finite(constraint, 256, longest=options.max_new_bytes)
    if members is None:
        return None
    if not members:
        raise ConstraintError("nothing satisfies the constraint: every way into it is a dead end.")
    check_begins(state.raw, constraint)
    ends = {member: not closed(constraint.after(member)) for member in members}
    logs = dict[bytes, float]()
    for end in (False, True):
        which = [member for member in members if ends[member] == end]
        if which:
            found = state.choose(which, ended=end)
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
