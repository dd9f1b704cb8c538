"""What goes in the next batch: wanted candidates, each followed along the base path.

An alternative that ends where a token of the base path does is likely to go on as that does. So
what it will need in later rounds is asked for at once, as far as it stays worth an evaluation: its
*lookahead*.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from charwise.known_text.base_path import BasePath
from charwise.known_text.candidates import Candidates, Wanted
from charwise.known_text.lattice import Lattice
from charwise.known_text.vertex import Branch, ends_with


class Batches:
    """Turns wanted candidates into branches to evaluate.

    Args:
        lattice: the evaluated contexts.
        candidates: of this lattice.
        base: the tokens that alternatives are followed along.
        at_cursor: whether a further round costs more than contexts that it may not need.

    >>> from charwise.known_text.effort import Effort
    >>> from charwise.known_text.ranges import KnownText
    >>> from charwise.known_text.vertex import Vertex
    >>> from charwise.tokens.index import SortedVocabulary
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> known = KnownText.of(b"abb", SortedVocabulary(Vocabulary.from_bytes([b"a", b"b", b"ab"])))
    >>> root = Vertex(0, 0, (), 0, starting=[0.75, 0.5], edges=[(0, 1, 0.25), (2, 2, 0.5)])
    >>> lattice = Lattice(known, root, Effort(0.1, 0.5), through=False)
    >>> base = BasePath(known, [2, 1], through=False, deepest=None, to_end=True)
    >>> lattice.sum(stop=3)
    >>> candidates = Candidates(lattice)
    >>> batches = Batches(lattice, candidates, base, at_cursor=False)
    >>> [tokens for _, tokens in batches.plan(candidates.wanted(stop=3))]  # [ab]; [a]
    [[2], [0]]
    """

    def __init__(
        self, lattice: Lattice, candidates: Candidates, base: BasePath, *, at_cursor: bool
    ) -> None:
        self._lattice = lattice
        self._candidates = candidates
        self._base = base
        self._at_cursor = at_cursor
        self._length = lattice.known.index.length

    def plan(self, wanted: Sequence[Wanted]) -> list[Branch]:
        """What to evaluate next: the wanted candidates, heaviest first, and their lookahead."""
        chosen: defaultdict[int, set[int]] = defaultdict(set)  # their last tokens
        branches = []
        for candidate in sorted(wanted, key=lambda wanted: wanted.rho, reverse=True):
            rho, parent, token, position, share = candidate
            heavy = rho >= self._candidates.floor[position]
            # Before a cursor a further round costs more than contexts that this one may not need.
            most = share if self._at_cursor else rho
            others = chosen[position]
            if not heavy and others and self._serves(most, token in others):
                continue
            if self._base.too_deep(parent.depth + 1, position):
                continue
            tokens = [token]
            others.add(token)
            for following in self.lookahead(candidate, chosen):
                tokens.append(following)
                position += self._length(following)
                chosen[position].add(following)
            branches.append(Branch(parent, tokens))
        return branches

    def lookahead(self, candidate: Wanted, chosen: dict[int, set[int]]) -> list[int]:
        """The tokens that a candidate is followed along, as far as it is worth it.

        Not where a context that is evaluated, or chosen for the same batch, serves as well.
        """
        lattice, effort = self._lattice, self._lattice.effort
        rho, parent, _, position, _ = candidate
        depth = parent.depth + 1
        tokens: list[int] = []
        for token in self._base.rest(position, effort.lookahead):
            rho, position = self._continued(rho, position, token)
            depth += 1
            if position >= len(lattice.known.text) or self._base.too_deep(depth, position):
                break
            if rho < self._candidates.floor[position]:
                if not effort.worth(rho, 0):
                    break
                there, others = lattice.at[position], chosen.get(position, ())
                if self._serves(rho, token in others or ends_with(there, token)):
                    break
            tokens.append(token)
        return tokens

    def _continued(self, rho: float, position: int, token: int) -> tuple[float, int]:
        """What share an alternative should have one token on, and where that is.

        As the model continues the heaviest context that is evaluated there. Where none is, nothing
        is known: the alternative is in the middle of what is canonically a token.
        """
        lattice, end = self._lattice, position + self._length(token)
        here = lattice.at[position]
        if not here or end >= len(lattice.log_prefix) or lattice.log_prefix[end] == -np.inf:
            return 0.0, end
        heaviest = max(here, key=lambda vertex: vertex.weight)
        rise = lattice.log_prefix[position] - lattice.log_prefix[end]
        return min(rho, rho * heaviest.mass(token) * math.exp(rise)), end

    def _serves(self, rho: float, agrees: bool) -> bool:
        """Whether another context, which ends with the same token or does not, serves as well."""
        effort = self._lattice.effort
        return effort.lends and not effort.worth(rho, int(agrees))
