"""Completions of a combination's text, by the local rule or the global one."""

from __future__ import annotations

from typing import Protocol

from charwise.combine.anything import Anything
from charwise.combine.drawing import complete
from charwise.combine.particles import conditioned
from charwise.constraints.constraint import Constraint
from charwise.cursor.conditioned import Choosing, Conditioning, check_conditioning
from charwise.cursor.drafts import Bytewise, Completion
from charwise.cursor.generation import Report
from charwise.cursor.limit import Limit
from charwise.cursor.sampling import MOST_DRAWN, Sampling
from charwise.errors import check_count
from charwise.tokens.stops import StopStrings


class BothWays(Bytewise, Protocol):
    """A `CombinedState`, as far as completions go."""

    def by_the_global_rule(self) -> Choosing: ...


def completions(
    state: BothWays,
    constraint: Constraint | None,
    conditioning: Conditioning,
    particles: int,
    *,
    n: int,
    max_new_bytes: int,
    stop: StopStrings,
    sampling: Sampling,
    limit: Limit,
    progress: Report | None,
) -> list[Completion]:
    """Completions of a state's text, by the local rule or the global one.

    >>> import charwise
    >>> from charwise import combine
    >>> state = combine.product([charwise.load()]).state("import nump")
    >>> rest = {"stop": (), "sampling": Sampling(), "limit": Limit(), "progress": None}
    >>> completions(state, None, "local", 1, n=1, max_new_bytes=1, **rest)[0].text
    'y'
    """
    check_conditioning(conditioning)
    check_count("particles", particles, 1, MOST_DRAWN)
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
    return conditioned(
        state.by_the_global_rule(),
        Anything() if constraint is None else constraint,
        particles,
        n=n,
        max_new_bytes=max_new_bytes,
        stop=stop,
        sampling=sampling,
        limit=limit,
        progress=progress,
    )
