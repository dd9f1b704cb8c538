"""The base path of a text: the tokens that alternatives are followed along, cut into portions.

A text is taken in *sections*, in which other ways to split what repeats are tried, and a section in
*portions*, which bound the contexts held at a time. Both end where a token of the base path does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from charwise.known_text.calls import SECTION
from charwise.known_text.lattice import Lattice
from charwise.known_text.ranges import KnownText
from charwise.known_text.vertex import Branch, Vertex


class Portion(NamedTuple):
    """A part of the text that is worked on at a time; all before it is finished.

    >>> Portion(tokens=128, stop=500).stop
    500
    """

    tokens: int  # of the base path, up to its end
    stop: int  # positions before this are summed over


class BasePath:
    """The tokens that alternatives are followed along: canonical but for what is respelled.

    Args:
        known: the text.
        canonical: its canonical tokens.
        through: whether the contexts that spell the whole text are needed too.
        deepest: most tokens after the root that fit the window.
        to_end: whether a context must have room to go on to the end of the text.

    Attributes:
        known, through, deepest: as given.
        tokens: the base path.
        starts: where each of these tokens begins, and the last ends.
        section: where the section ends that is worked on; none yet: 0.

    >>> from charwise.tokens.index import SortedVocabulary
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> known = KnownText.of(b"abab", SortedVocabulary(Vocabulary.from_bytes([b"a", b"b", b"ab"])))
    >>> base = BasePath(known, [2, 2], through=False, deepest=None, to_end=True)
    >>> base.portion(0, 1), base.portion(1, 8)
    (Portion(tokens=1, stop=2), Portion(tokens=2, stop=5))
    >>> base.rest(2, most=16), base.rest(3, most=16)
    ([2], [])
    """

    def __init__(
        self,
        known: KnownText,
        canonical: Sequence[int],
        *,
        through: bool,
        deepest: int | None,
        to_end: bool,
    ) -> None:
        self.known = known
        self.through = through
        self.deepest = deepest
        self._to_end = to_end
        self.section = 0
        self.respell(canonical)
        self._ends = self.starts[1:]  # of the canonical tokens

    def respell(self, tokens: Sequence[int]) -> None:
        """Go along other tokens from now on. A `Portion` made before counts those before."""
        self.tokens = tokens
        self.starts = list(accumulate(map(self.known.index.length, tokens), initial=0))
        self._begins = {position: n for n, position in enumerate(self.starts)}

    def enter(self, done: int) -> Portion:
        """The section after so many tokens. Portions end where it does."""
        section = self.portion(done, SECTION)
        self.section = section.stop
        return section

    def portion(self, done: int, size: int) -> Portion:
        """The portion after so many tokens: `size` more, or all that the section has left."""
        tokens = done + size
        if self.starts[done] < self.section:
            tokens = min(tokens, bisect_left(self.starts, self.section))
        if tokens >= len(self.tokens):
            return Portion(len(self.tokens), len(self.known.text) + 1)
        return Portion(tokens, self.starts[tokens])

    def tokens_before(self, position: int) -> int:
        """How many tokens begin before a position."""
        return min(len(self.tokens), bisect_left(self.starts, position))

    def branches(self, lattice: Lattice, portion: Portion) -> list[Branch]:
        """The tokens up to the end of a portion, from the first that is not evaluated."""
        vertex, n = lattice.root, 0
        while n < portion.tokens and self.tokens[n] in vertex.children:
            vertex, n = vertex.children[self.tokens[n]], n + 1
        if vertex.position < lattice.frozen:
            return []  # the path ends in what is finished: the candidates from there go on
        tokens = self.tokens[n : portion.tokens]
        while tokens and (
            self.starts[n + len(tokens)] >= len(self.known.text) + self.through
            or self.too_deep(vertex.depth + len(tokens), self.starts[n + len(tokens)])
        ):
            tokens = tokens[:-1]
        return [Branch(vertex, tokens)] if tokens else []

    def all_branches(self, root: Vertex) -> list[Branch]:
        """Every context of the text, along its longest ones: for a text that has few.

        >>> from charwise.tokens.index import SortedVocabulary
        >>> from charwise.tokens.vocabulary import Vocabulary
        >>> vocabulary = Vocabulary.from_bytes([b"a", b"b", b"ab"])
        >>> known = KnownText.of(b"aba", SortedVocabulary(vocabulary))
        >>> base = BasePath(known, [2, 0], through=False, deepest=None, to_end=False)
        >>> [tokens for _, tokens in base.all_branches(Vertex(0, 0, (), 0))]
        [[0, 1], [2]]
        """
        last = len(self.known.text) - (not self.through)
        found, left = list[Branch](), [(root.position, list[int]())]
        while left:
            position, tokens = left.pop()
            _, following, ends = self.known.edges(np.array([position]))
            longer = [
                (end, [*tokens, token])
                for token, end in zip(following.tolist(), ends.tolist(), strict=True)
                if end <= last and not self.too_deep(len(tokens) + 1, end)
            ]
            left += longer[::-1]
            if tokens and not longer:
                found.append(Branch(root, tokens))
        return found

    def rest(self, position: int, most: int) -> Sequence[int]:
        """The tokens to follow from a position, if one begins there: so many, at most."""
        first = self._begins.get(position, len(self.tokens))
        return self.tokens[first : first + most]

    def too_deep(self, depth: int, position: int) -> bool:
        """Whether a context has no room to go on to the end of the text along canonical tokens.

        Where nothing is left out by its weight, only whether it fits itself: other tokens may be
        fewer.
        """
        if self.deepest is None:
            return False
        left = len(self._ends) - bisect_right(self._ends, position) - (not self.through)
        return depth + (max(0, left) if self._to_end else 0) > self.deepest
