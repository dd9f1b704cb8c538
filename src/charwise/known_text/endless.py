"""Where summing over every token string must stop: they are exponentially many in a text's length.

With θ = 0 nothing bounds the work but the text. So many contexts would end in a lack of memory,
minutes later and wherever that happens to be noticed.
"""

from __future__ import annotations

import numpy as np

from charwise.errors import SearchLimitError, shorter
from charwise.known_text.lattice import Lattice

#: Contexts that a portion of a text may take with θ = 0: which of them comes from which takes
#: a bit for each pair. Where their log-probabilities are kept, these may take so many bytes.
_MOST, _KEPT = 100_000, 2**30

#: As many rounds as this are enough for more contexts than that.
_ROUNDS = 100


class Endless:
    """Refuses a sum with θ = 0 over more token strings than can be evaluated.

    Args:
        lattice: what is summed.
        rounds: most rounds over a portion; few may end before there are so many contexts.
        through: whether contexts that spell the whole text are evaluated, too.
        kept: whether the log-probabilities of all contexts are kept.

    >>> import charwise
    >>> lm = charwise.load()
    >>> try:
    ...     lm.score("from collections import OrderedDict", preset="exact")
    ... except SearchLimitError as error:
    ...     print(str(error)[:62])
    all token strings of the 35 bytes b'from col…deredDict' are mo
    """

    def __init__(self, lattice: Lattice, rounds: int, *, through: bool, kept: bool) -> None:
        self._lattice = lattice
        size, row = len(lattice.known.text), 4 * lattice.known.index.vocabulary.width
        self._last = size if through else size - 1
        self._most = min(_MOST, _KEPT // row) if kept else _MOST
        self._foresees = rounds >= min(size, _ROUNDS)
        self._calls = 0

    def refuse(self, brought: int, stop: int) -> None:
        """Before a call: refuse it if a portion would then have too many contexts, or is sure to.

        Args:
            brought: contexts that the portion would then have.
            stop: where in the text it ends.

        Raises:
            SearchLimitError: how many there may be, and what to do.
        """
        self._calls += 1
        sure = self._foresees and self._calls == 2 and self._sure(stop)
        if brought > self._most or sure:
            text = self._lattice.known.text
            raise SearchLimitError(
                f"all token strings of the {len(text)} bytes {shorter(repr(text), 20)} are more "
                f"than the {self._most:,} contexts that an exact sum (theta=0) may evaluate. "
                "Use the preset 'accurate' or a tolerance, which say how far off they may be, or "
                "less text."
            )

    def _sure(self, stop: int) -> bool:
        """Whether the vocabulary alone tells: where nothing seen so far is impossible.

        That is asked once the canonical contexts are evaluated, and those that leave them. A model
        that rules out many token strings may be summed over long text.
        """
        known, vertices = self._lattice.known, self._lattice.vertices
        _, spelling, _ = known.edges(np.array([vertex.position for vertex in vertices]))
        possible = sum(len(vertex.edges) + len(vertex.followed) for vertex in vertices)
        first = known.window(0, max(0, min(stop, self._last)))
        return possible == len(spelling) and first.contexts(self._most) > self._most
