"""Other tokens at one place that cost much where they stand, and pay by and by.

A model that is far from what it knows may be put off by a token: the TinyStories model spells
*launch* as `laun|ch`, which is 14 nats less likely where it stands, and every word after that
surprises it less, until all is made up for 30 tokens on. No share shows it, and no rank for long.
What shows it is the *drift*: by how much the gain on the base path has grown since the place. So
another way to spell each token that surprised, the one whose first token is likeliest, is followed
along the base path, twice as far again and again, while its drift may make up for what it lost. It
is spelled so wherever the same tokens come again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from charwise.coverings.log_sums import log
from charwise.known_text.vertex import Branch, contexts_of
from charwise.known_text.walk import Walk

#: A token that spends less, in nats, has no rivals.
_SURPRISED = 3.0

#: How many tokens of the base path a race has passed at each stage.
STAGES = (1, 3, 7, 15, 31, 63)

#: A race goes on while its gain and three times its drift come to so much at a stage, in nats. With
#: a gain of `_ARRIVED` it has a share that shows, and needs no race.
_HOPE, _DRIFTS, _ARRIVED = (-2.0, -1.0, 0.0, 0.0, 0.0, 0.0), 3.0, -2.0

#: Contexts to spend on all races, for each token of the base path, and on a few tokens.
_SPENT, _SHORT = 6, 256


@dataclass
class Race:
    """Other tokens for those of a base path from `first` to `last`.

    >>> Race(first=3, last=4, tokens=(7, 8)).lost
    0.0
    """

    first: int
    last: int
    tokens: tuple[int, ...]
    lost: float = 0.0  # at the place, nats below zero
    gain: float = 0.0  # on the base path, as far as it was followed, nats


class Races:
    """Follows what may pay later beside a base path, between two positions.

    Args:
        base: a path that is evaluated there.
        text: what it spells.
        start, stop: the positions.
        too_deep: whether a context of so many tokens that ends there has no room to go on.

    >>> from charwise.known_text.vertex import Vertex
    >>> from charwise.tokens.index import SortedVocabulary
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"b", b"ab"]))
    >>> base = Walk([2], index)
    >>> root, child = Vertex(0, 0, (), 0, edges=[(2, 2, 0.01), (0, 1, 0.9)]), Vertex(1, 2, (2,), 1)
    >>> root.follow(2, child)
    >>> base.follow(root)
    >>> [race.tokens for race in Races(base, b"ab", 0, 2, lambda depth, position: False).alive]
    [(0, 1)]
    """

    def __init__(
        self,
        base: Walk,
        text: bytes,
        start: int,
        stop: int,
        too_deep: Callable[[int, int], bool],
    ) -> None:
        self._base, self._text, self._stop = base, text, stop
        self._too_deep = too_deep
        self._reach = 0  # tokens of the base path up to `stop`, as far as they are evaluated
        while self._reach < len(base.tokens) and self._passes(self._reach):
            self._reach += 1
        self._stage = -1
        self._left = max(_SHORT, _SPENT * sum(at >= start for at in base.starts[: self._reach]))
        self.alive = [
            race
            for first in range(self._reach)
            if base.starts[first] >= start and (race := self._rival(first))
        ]

    def _passes(self, n: int) -> bool:
        end = self._base.starts[n + 1]
        return end <= self._stop and self._base.reaches(end)

    def branches(self) -> list[Branch]:
        """What to evaluate next, nothing when all races are over: the best first, of them all.

        What was asked for before has been evaluated.
        """
        if self._stage >= 0:
            for race in self.alive:
                self._weigh(race)
            self.alive = [race for race in self.alive if self._hopeful(race)]
            self.alive.sort(key=lambda race: race.gain, reverse=True)
        self._stage += 1
        running = self.alive if self._stage < len(STAGES) else []
        asked = [(race, more) for race in running if (more := self._more(race))]
        self.alive = [race for race, _ in asked]
        return [branch for _, branch in asked]

    def _more(self, race: Race) -> Branch | None:
        """What a race passes at this stage, if there is room for it."""
        tokens, end = self._along(race)
        vertex = self._base.vertex(self._base.starts[race.first])
        if end >= self._reach:
            return None
        if self._too_deep(vertex.depth + len(tokens), self._base.starts[end]):
            return None
        branch = Branch(vertex, tokens)
        new = contexts_of([branch])
        if new > self._left:
            return None
        self._left -= new
        return branch

    def _rival(self, first: int) -> Race | None:
        """Another way to spell a token, or one and the next, in two tokens or one.

        The one whose first token is likeliest: what the second is worth is not evaluated yet.
        """
        base, starts = self._base, self._base.starts
        vertex = base.vertex(starts[first])
        if log(vertex.mass(base.tokens[first])) > -_SURPRISED:
            return None
        rivals = [
            (vertex.mass(tokens[0]), last, tokens)
            for last in (first + 1, first + 2)
            if last <= self._reach
            for tokens in self._spellings(starts[first], starts[last], starts[first + 1])
        ]
        mass, last, tokens = max(rivals, default=(0.0, 0, ()))
        return Race(first, last, tokens) if mass > 0 else None

    def _spellings(self, start: int, stop: int, usual: int) -> Iterator[tuple[int, ...]]:
        """The tokens that spell some bytes in one or in two, but for the cut that is usual."""
        for cut in range(start + 1, stop + 1):
            one = self._token(start, cut)
            if one is None or cut == usual:
                continue
            if cut == stop:
                yield (one,)
            elif (other := self._token(cut, stop)) is not None:
                yield one, other

    def _token(self, start: int, stop: int) -> int | None:
        lo, hi = self._base.index.twins(self._text[start:stop])
        return int(self._base.index.ids[lo]) if lo < hi else None

    def _along(self, race: Race) -> tuple[list[int], int]:
        """The tokens of a race at this stage, and where on the base path it has come by then."""
        tokens, usual = self._base.tokens, self._base.tokens[race.first : race.last]
        out, n = [*race.tokens], race.last
        while n < min(race.last + STAGES[self._stage], self._reach):
            if tokens[n : n + len(usual)] == usual and n + len(usual) <= self._reach:
                out += race.tokens
                n += len(usual)
            else:
                out.append(tokens[n])
                n += 1
        return out, n

    def _weigh(self, race: Race) -> None:
        """What a race lost at its place, and its gain, as far as it was followed."""
        tokens, end = self._along(race)
        base, start = self._base, self._base.starts[race.first]
        vertex = base.vertex(start)
        origin = vertex.log_p
        for n, token in enumerate(tokens, 1):
            vertex = vertex.children[token]
            if n == len(race.tokens):
                race.lost = vertex.log_p - origin - base.log_p(start, base.starts[race.last])
        # The masses of the last context are known, too.
        ahead = log(vertex.mass(base.tokens[end]))
        race.gain = vertex.log_p + ahead - origin - base.log_p(start, base.starts[end + 1])

    def _hopeful(self, race: Race) -> bool:
        """Whether a race may still make up for what it lost."""
        drift = race.gain - race.lost
        return race.gain < _ARRIVED and race.gain + _DRIFTS * drift >= _HOPE[self._stage]
