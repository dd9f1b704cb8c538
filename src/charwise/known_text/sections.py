"""Sections of a text: in each, other ways to split what repeats are tried (`repeats.py`).

What proves better is the base path from there on, in later sections too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from charwise.known_text.base_path import BasePath
from charwise.known_text.lattice import Lattice
from charwise.known_text.repeats import Repeats
from charwise.known_text.respellings import Respelling, respellings
from charwise.known_text.vertex import Branch

#: Contexts to spend on other ways to split what repeats, before one is taken: for each canonical
#: token of a section, and in a short section.
_RESPELLING, _SHORT = 2.5, 256


class Sections:
    """Goes through the sections of a text.

    Args:
        lattice: the evaluated contexts.
        base: the base path, which is respelled.
        lends: whether weight is lent; where it is not, nothing is respelled.

    Attributes:
        repeats: what is tried in the section that is worked on; None if nothing is.
        start, stop: the positions of that section.

    >>> from charwise.known_text.effort import Effort
    >>> from charwise.known_text.ranges import KnownText
    >>> from charwise.known_text.vertex import Vertex
    >>> from charwise.tokens.index import SortedVocabulary
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> known = KnownText.of(b"abb", SortedVocabulary(Vocabulary.from_bytes([b"a", b"b", b"ab"])))
    >>> lattice = Lattice(known, Vertex(0, 0, (), 0), Effort(0.1, 0.5), through=False)
    >>> base = BasePath(known, [2, 1], through=False, deepest=None, to_end=True)
    >>> sections = Sections(lattice, base, lends=True)
    >>> [tokens for _, tokens in sections.enter(0)]
    [[2]]
    >>> sections.begin()
    >>> sections.branches()  # nothing repeats
    []
    """

    def __init__(self, lattice: Lattice, base: BasePath, *, lends: bool) -> None:
        self._lattice = lattice
        self._base = base
        self._lends = lends
        self._found: list[Respelling] | None = None  # in the whole text
        self.repeats: Repeats | None = None
        self.start = self.stop = 0

    def enter(self, done: int) -> list[Branch]:
        """Enter the section after so many tokens of the base path; returns what it lacks of that.

        What is respelled has been evaluated by the time that a section is entered.
        """
        base, section = self._base, self._base.enter(done)
        self.repeats, self.start, self.stop = None, base.starts[done], section.stop
        if self._lends and self._found is None:
            self._found = respellings(base.known.text, base.tokens, base.known.index)
        return base.branches(self._lattice, section)

    def begin(self) -> None:
        """Begin to try what repeats in the section, along the base path as it is now."""
        base = self._base
        if self._lends and self._found is not None:
            tokens = base.tokens_before(self.stop) - base.tokens_before(self.start)
            self.repeats = Repeats(
                self._found,
                list(base.tokens),
                base.known.index,
                self.start,
                min(self.stop, len(base.known.text) - (not base.through)),
                max(_SHORT, int(_RESPELLING * tokens)),
                base.too_deep,
            )

    def branches(self) -> list[Branch]:
        """Respellings to evaluate next, and the rest of a base path that was respelled."""
        if self.repeats is None or self.repeats.done:
            return []
        found = self.repeats.branches(self._lattice.root)
        self._follow(self.repeats)
        return found

    def _follow(self, repeats: Repeats) -> None:
        if repeats.base.tokens is not self._base.tokens:
            self._base.respell(repeats.base.tokens)

    def end(self) -> None:
        """Try no more in this section: what it would go on from may be let go of."""
        if self.repeats is not None and not self.repeats.done:
            self.repeats.end()
            self._follow(self.repeats)

    def doubts(self, start: int, log_prefix: NDArray[np.float64]) -> NDArray[np.float64]:
        """`[n - 1]` error to expect at each byte from `start` on for what was not tried, nats.

        Args:
            start: a position.
            log_prefix: `[n]` log →p(text[:t]) from there on, nats.
        """
        if self.repeats is None:
            return np.zeros(len(log_prefix) - 1)
        return self.repeats.doubts(start, log_prefix)
