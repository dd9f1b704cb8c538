"""What is on loan: the share of each sum that no evaluated context has of its own.

Each context has its own p_Δ; what a sum is above theirs was lent to them, there or before.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from charwise.known_text.lattice import Lattice

#: Shares that are no larger are of the rounding of sums.
_ROUNDING = 1e-9


def on_loan(lattice: Lattice, first: int, stop: int) -> NDArray[np.float64]:
    """`[stop - first]` share of →p(σ[:t]), as of the last pass, that is on loan.

    >>> from charwise.known_text.effort import Effort
    >>> from charwise.known_text.ranges import KnownText
    >>> from charwise.known_text.vertex import Vertex
    >>> from charwise.tokens.index import SortedVocabulary
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab"]))
    >>> root = Vertex(0, 0, (), 0, starting=[0.75, 0.25], edges=[(0, 1, 0.5)])
    >>> lattice = Lattice(KnownText.of(b"ab", index), root, Effort(1e-3, 0.5), through=False)
    >>> lattice.sum(stop=3)
    >>> on_loan(lattice, 0, 3).tolist()  # [a] is not evaluated: nobody is there to be lent to
    [0.0, 0.0, 0.0]
    """
    log_prefix = lattice.log_prefix
    own = np.zeros(stop - first)
    if first == 0:
        own[0] = 1.0
    reaching = lattice.at[max(0, first - lattice.known.deepest) : stop]
    some = [vertex for here in reaching for vertex in here if vertex.log_p > -math.inf]
    if some:
        counts = [len(vertex.starting) for vertex in some]
        masses = np.array([mass for vertex in some for mass in vertex.starting])
        logs = np.repeat([vertex.log_p for vertex in some], counts)
        ends = np.repeat([vertex.position + 1 for vertex in some], counts)
        ends += np.arange(len(ends)) - np.repeat(np.cumsum(counts) - counts, counts)
        inside = (ends >= first) & (ends < stop) & (masses > 0)
        at = ends[inside]
        shares = np.exp(logs[inside] + np.log(masses[inside]) - log_prefix[at])
        own += np.bincount(at - first, weights=shares, minlength=stop - first)
    known = np.isfinite(log_prefix[first:stop])
    return np.where(known & (own < 1.0 - _ROUNDING), 1.0 - own, 0.0)
