"""Exact enumeration: where a sum over every token string is refused, as too expensive.

With threshold 0 nothing bounds the work but the text, and its token strings are exponentially many
in its length.
"""

from __future__ import annotations

from charwise.errors import SearchLimitError, shorter
from charwise.scoring.effort import Limits
from charwise.scoring.lattice import Lattice


def most_contexts(lattice: Lattice, limits: Limits) -> int:
    """The most contexts that an exact sum may keep, with their log-probabilities if they stay."""
    if not lattice.contexts.rows.retain:
        return limits.contexts
    width = lattice.contexts.known.index.vocabulary.width
    return min(limits.contexts, limits.memory // (4 * width))


def refuse_endless(lattice: Lattice, limits: Limits) -> None:
    """Refuse early: where the vocabulary alone shows that there are too many token strings.

    A model that rules out many token strings may be summed over long text. So nothing is refused
    where an edge that was seen is impossible.

    Raises:
        SearchLimitError: how many contexts there may be, and what to do.

    >>> import charwise
    >>> lm = charwise.load()
    >>> try:
    ...     lm.score("from collections import OrderedDict", preset="exact")
    ... except SearchLimitError as error:
    ...     print(str(error)[:62])
    all token strings of the 35 bytes b'from col…deredDict' are mo
    """
    c, most = lattice.contexts, most_contexts(lattice, limits)
    part = c.known.window(lattice.done, min(lattice.stop, c.last))
    if (c.mass > 0).all() and part.contexts(most) > most:
        raise too_many(lattice, limits)


def too_many(lattice: Lattice, limits: Limits) -> SearchLimitError:
    """The error that says so."""
    text = lattice.contexts.known.text
    return SearchLimitError(
        f"all token strings of the {len(text)} bytes {shorter(repr(text), 20)} are more than the "
        f"{most_contexts(lattice, limits):,} contexts that an exact sum may evaluate. Use the "
        "preset 'accurate' or a tolerance, which state their error, or less text."
    )
