"""Selection: which candidates a round evaluates, by the beam's width and threshold.

The value of a candidate is its forward share of P(t), or its posterior if that is more. The forward
share alone misses what the rest of the text needs. The posterior alone starves the distributions of
the next bytes. A candidate is chosen if its value is at least the threshold θ, and it is among the
K best contexts that end at its position. It is followed as its stand-in would go on, while that
stays true.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from charwise.scoring.contexts import Branch, Floats
from charwise.scoring.lattice import Lattice
from charwise.tokens.known_text import Ints

#: What a value counts where no evaluated context ends: such a context shows bytes that no other
#: does.
FIRST = 100.0

#: Most tokens that a candidate is followed along at once.
LOOKAHEAD = 16


def select(lattice: Lattice, width: float, threshold: float, deepest: float) -> list[Branch]:
    """The candidates that are worth an evaluation, best first, with the tokens to follow.

    Args:
        lattice: both of its sums must be current.
        width: the most contexts at a position, evaluated ones included.
        threshold: the least value.
        deepest: most tokens of a context.

    >>> import charwise
    >>> from charwise.coverings.rows import EvaluatedRows
    >>> from charwise.scoring.contexts import Contexts
    >>> from charwise.tokens.known_text import KnownText
    >>> lm = charwise.load()
    >>> rows = EvaluatedRows.of(lm.engine, lm.vocabulary.bos_ids)
    >>> lattice = Lattice(Contexts(rows, KnownText.of(b"os", lm.index)))
    >>> lattice.enter(2, [0])
    >>> lattice.forward(), lattice.backward()
    (None, None)
    >>> [branch.context for branch in select(lattice, 8, 0.005, math.inf)]  # [o]
    [0]
    """
    c = lattice.contexts
    candidates, ends, value = lattice.candidates(deepest)
    empty = np.ones(lattice.n + 1, dtype=bool)  # where no context ends, the chosen ones included
    empty[c.position] = False
    chosen, floor = _best(lattice, ends, value, empty, width, threshold)
    edge, value = candidates[chosen], value[chosen]
    source, at, like, depth = c.source[edge], c.end[edge], c.stand_in[edge], c.depth[c.source[edge]]
    branches = [
        Branch(context, [token])
        for context, token in zip(source.tolist(), c.token[edge].tolist(), strict=True)
    ]
    depth += 1
    active = np.arange(len(branches))
    for _ in range(LOOKAHEAD if threshold > 0 else 0):
        active = active[(like[active] >= 0) & (depth[active] < deepest)]
        if not len(active):
            break
        edge, mass = lattice.best_edges(like[active])
        active, mass, edge = active[edge >= 0], mass[edge >= 0], edge[edge >= 0]
        at[active], like[active] = c.end[edge], c.target[edge]
        value[active] *= np.minimum(1.0, mass)
        depth[active] += 1
        order = np.argsort(-value[active], kind="stable")
        active, tokens = active[order], c.token[edge[order]]
        good = value[active] * _first(at[active], empty) >= floor[at[active]]
        active, tokens = active[good], tokens[good]
        empty[at[active]] = False
        for i, token in zip(active.tolist(), tokens.tolist(), strict=True):
            branches[i].tokens.append(token)
    return branches


def _best(
    lattice: Lattice,
    at: Ints,
    value: Floats,
    empty: NDArray[np.bool_],
    width: float,
    threshold: float,
) -> tuple[Ints, Floats]:
    """Which candidates are chosen, best first, and the least value to be chosen at each position.

    `empty` is told where they end.
    """
    order = np.lexsort((-value, at))
    worth = value[order] * _first(at[order], empty)
    chosen = order[worth >= threshold]
    worth = worth[worth >= threshold]
    floor = np.full(lattice.n + 1, threshold)
    if width < math.inf:
        # Their ranks among all contexts that end at the same position.
        evaluated = np.minimum(1.0, lattice.weight * np.maximum(1.0, lattice.worth))
        ends = np.concatenate((lattice.contexts.position, at[chosen]))
        values = np.concatenate((evaluated, worth))
        ranked = np.lexsort((-values, ends))
        rank = np.empty(len(ends), dtype=np.int64)
        rank[ranked] = np.arange(len(ends)) - np.searchsorted(ends[ranked], ends[ranked])
        last = rank == width - 1
        floor[ends[last]] = np.maximum(threshold, values[last])
        inside = rank[len(evaluated) :] < width
        chosen, worth = chosen[inside], worth[inside]
    empty[at[chosen]] = False
    return chosen[np.argsort(-worth, kind="stable")], floor


def _first(at: Ints, empty: NDArray[np.bool_]) -> Floats:
    """`FIRST` for the first of several contexts to end where none does, 1 for the others."""
    _, first = np.unique(at, return_index=True)
    factor = np.ones(len(at))
    factor[first] = np.where(empty[at[first]], FIRST, 1.0)
    return factor
