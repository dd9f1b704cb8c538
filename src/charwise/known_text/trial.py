"""A respelling that is tried along a base path, and what it may still come to: see `repeats.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from charwise.known_text.respellings import Place, Respelling
from charwise.known_text.vertex import Vertex

#: A respelling is taken to save at most so much of what the base path spends at a place, and so
#: many nats more, for what follows it; and at all places together no more than the last.
_SAVED, _BESIDE, _MOST = 0.5, 1.0, 30.0


@dataclass
class Trial:
    """A respelling along a base path, and how far it has been evaluated.

    Attributes:
        respelling: what is tried.
        places: where: in the section, from the first on that the base path spells otherwise.
        spent: for each place, what the base path spends at it and those after it, nats; at last 0.
        vertex: the last context that is looked at; at first that before the first place.
        log_p: of the tokens from the first place up to there, nats.
        ahead: tokens after it that were asked for.
        reached: places that all of these go through; 0: all of the first but its end; -1: none.
        gain: by how much its path is more likely than the base path, nats.

    >>> start = Vertex(node=0, position=0, tail=(), depth=0)
    >>> places = (Place(0, 2, (1, 2)), Place(3, 5, (1, 2)))
    >>> trial = Trial(Respelling(b"ab", places), places, (7.0, 4.0, 0.0), start, gain=-2.5)
    >>> trial.may_gain(), trial.hopeful
    (3.0, True)
    """

    respelling: Respelling
    places: tuple[Place, ...]
    spent: Sequence[float]
    vertex: Vertex
    log_p: float = 0.0
    ahead: tuple[int, ...] = ()
    reached: int = -1
    gain: float = 0.0

    def may_gain(self) -> float:
        """What it is taken to gain at most at the places that are left, nats."""
        done = max(1, self.reached)
        return min(_MOST, _SAVED * self.spent[done] + _BESIDE * (len(self.places) - done))

    @property
    def hopeful(self) -> bool:
        """Whether that may make up for what it has lost."""
        return self.gain >= -self.may_gain()
