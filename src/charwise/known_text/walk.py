"""The base path as far as it is evaluated, and what it is at places that are respelled.

`repeats.py` compares respellings with it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from charwise.coverings.log_sums import log
from charwise.known_text.respellings import Place
from charwise.known_text.vertex import Vertex
from charwise.tokens.index import SortedVocabulary


class Walk:
    """Tokens from the beginning of a text, and those of their contexts that are evaluated.

    Args:
        tokens: of the base path.
        index: their vocabulary.

    Attributes:
        tokens, index: as given.
        starts: where each token begins, and the last ends.

    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"b", b"ab"]))
    >>> walk, place = Walk([2, 0, 2], index), Place(3, 5, (0, 1))
    >>> walk.starts, walk.tokens_at(place), walk.respelled([place])
    ([0, 2, 3, 5], (2,), [2, 0, 0, 1])
    >>> walk.between([Place(0, 2, (0, 1)), place])
    [0, 1, 0, 0, 1]
    >>> walk.follow(Vertex(0, 0, (), 0, edges=[(2, 2, 0.5)]))  # nothing but the root is evaluated
    >>> walk.reaches(0), walk.reaches(2), walk.vertex(0).node, walk.first(Place(0, 2, (2,)))[1]
    (True, False, 0, 0.0)
    """

    def __init__(self, tokens: list[int], index: SortedVocabulary) -> None:
        self.tokens, self.index = tokens, index
        self.starts = list(accumulate(map(index.length, tokens), initial=0))
        # Its vertices by position, and log p of the tokens up to there, nats.
        self._at: dict[int, tuple[Vertex, float]] = {}

    def follow(self, root: Vertex) -> None:
        """Find its contexts after the root, as far as they are evaluated and have any mass."""
        vertex, log_p = root, 0.0
        self._at = {0: (root, 0.0)}
        for token in self.tokens:
            if token not in vertex.children or not vertex.mass(token):
                break
            log_p += log(vertex.mass(token))
            vertex = vertex.children[token]
            self._at[vertex.position] = vertex, log_p

    def reaches(self, position: int) -> bool:
        """Whether an evaluated context of it ends at a position."""
        return position in self._at

    def vertex(self, position: int) -> Vertex:
        """The evaluated context that ends at a position."""
        return self._at[position][0]

    def token_at(self, position: int) -> int | None:
        """Its token that begins at a position; None if none does."""
        n = bisect_left(self.starts, position)
        return self.tokens[n] if n < len(self.tokens) and self.starts[n] == position else None

    def log_p(self, start: int, stop: int) -> float:
        """Of its tokens between two positions, given those before; nats."""
        return self._at[stop][1] - self._at[start][1]

    def spent(self, places: Sequence[Place]) -> Sequence[float]:
        """For each place what it spends there and at all later ones, nats; at last 0."""
        each = [-self.log_p(place.start, place.stop) for place in places]
        return list(accumulate(reversed(each), initial=0.0))[::-1]

    def first(self, place: Place) -> tuple[Vertex, float]:
        """The context before a place, and the gain of the first token there on the usual one."""
        vertex = self.vertex(place.start)
        usual = self.tokens[bisect_left(self.starts, place.start)]
        if place.tokens[0] == usual:
            return vertex, 0.0
        return vertex, log(vertex.mass(place.tokens[0])) - log(vertex.mass(usual))

    def tokens_at(self, place: Place) -> tuple[int, ...] | None:
        """Its tokens at a place, if it begins and ends with them."""
        first, last = bisect_left(self.starts, place.start), bisect_left(self.starts, place.stop)
        if last == len(self.starts) or self.starts[first] != place.start:
            return None
        return tuple(self.tokens[first:last]) if self.starts[last] == place.stop else None

    def between(self, places: Sequence[Place]) -> list[int]:
        """Its tokens from the first of some places to the end of the last, respelled there."""
        out: list[int] = []
        at = bisect_left(self.starts, places[0].start)
        for place in places:
            out += self.tokens[at : bisect_left(self.starts, place.start)]
            out += place.tokens
            at = bisect_left(self.starts, place.stop)
        return out

    def respelled(self, places: Sequence[Place]) -> list[int]:
        """All of its tokens, respelled at these places."""
        first = bisect_left(self.starts, places[0].start)
        last = bisect_left(self.starts, places[-1].stop)
        return [*self.tokens[:first], *self.between(places), *self.tokens[last:]]
