"""Particles that go on token by token; see `particles.py`.

The first factor of a weight is that of the prompt's covering, a member of which each particle is
begun with. A member of C after which nothing may follow is complete there, and all tokens that run
past it count; any other is ended by the model. Particles of equal tokens are one context, and a
step is one call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from charwise.constraints.constraint import END, TokenConstraint
from charwise.coverings.log_sums import log_sum
from charwise.cursor.drafts import Cursor
from charwise.cursor.members import Members
from charwise.cursor.options import GenerationOptions
from charwise.cursor.outcomes import Branch, Outcomes, explore, resolve
from charwise.cursor.particles import Particle, Proposal, systematic

Floats = NDArray[np.float64]


@dataclass(kw_only=True)
class _TokenParticle(Particle):
    """Particles of equal tokens.

    Their `logprob` is that of the tokens; of all that begin with the text, where it ends inside of
    one.
    """

    node: int
    token: int  # drawn after `node`, not evaluated yet; −1 if there is none
    tokens: TokenConstraint

    def complete(self, raw: bytes, finish: str, mass: float, size: int) -> _TokenParticle:
        """So many of these particles that are complete with a text, which has this probability."""
        logprob = self.logprob + math.log(mass)
        return replace(self, raw=raw, finish=finish, logprob=logprob, size=size)

    def longer(self, data: bytes, mass: float, size: int, **at: int) -> _TokenParticle:
        """So many of these particles with a token more, which has this probability."""
        new = replace(self, raw=self.raw + data, size=size, **at)  # type: ignore[arg-type]
        new.logprob += math.log(mass)
        new.constraint, new.tokens = self.constraint.after(data), self.tokens.after(data)
        return new


class TokenParticles(Proposal[_TokenParticle]):
    """The particles of one request to a token model.

    >>> import charwise
    >>> from charwise.cursor.particles import sample
    >>> options = GenerationOptions(regex="[01]", particles=8, n=2, seed=0)
    >>> found = sample(TokenParticles(charwise.load().state("x = "), options), options.limit())
    >>> {completion.text for completion in found} <= {"0", "1"}, found.logprob < 0
    (True, True)
    """

    def __init__(self, state: Cursor, options: GenerationOptions) -> None:
        super().__init__(state, options)
        self.cursor, self.shared, self.index = state, state.shared, state.shared.index
        self._mine: set[int] = set()

    def begin(self) -> list[_TokenParticle]:
        """All particles after the prompt, or after its members where it ends inside of tokens."""
        first = _TokenParticle(
            node=self.cursor.bundles[0].node,
            token=-1,
            constraint=self.constraint,
            tokens=self.constraint.over(self.index),
            size=self.count,
        )
        self.settle(first)
        return [first] if self.cursor.at_root or first.finish else self._begun(first)

    def _begun(self, first: _TokenParticle) -> list[_TokenParticle]:
        """Particles drawn from the covering, its members conditioned on once."""
        constraint = first.constraint
        members = Members(self.shared, self.cursor.bundles)
        masses = np.exp(members.logs - log_sum(members.logs.tolist()))
        branches = [
            Branch(constraint, b"", b"", start - bundle.lo, bundle.lo, bundle.hi, bundle.depth)
            for bundle, start in zip(members.bundles, members.starts.tolist(), strict=False)
        ]
        found = explore(self.index, masses, branches, 0.0, self.most)
        fits = np.where(found.fits, masses, 0.0)

        def new(at: int, size: int) -> _TokenParticle:
            bundle, rank = members.place(at)
            token = int(self.index.ids[rank])
            mass = float(masses[at])
            return first.longer(members.beyond(at), mass, size, node=bundle.node, token=token)

        return self._drawn(first, found, masses, fits, 0.0, new)

    def step(self, going: list[_TokenParticle]) -> list[_TokenParticle]:
        """One more token for each of these; those that the window has no room for are finished."""
        window, found = self.shared.engine.window, []
        for particle in going:
            longer = self.shared.length(particle.node) + (particle.token >= 0)
            if window is not None and longer > window:
                particle.finish = "window"
                found.append(particle)
        going = [particle for particle in going if not particle.finish]
        # Of the log-probabilities that one call brings back.
        together = max(1, 2**25 // self.index.vocabulary.width)
        for at in range(0, len(going), together):
            some = going[at : at + together]
            for particle, row in zip(some, self._rows(some), strict=True):
                found += self._next(particle, row)
        return found

    def _rows(self, some: list[_TokenParticle]) -> Floats:
        """`[n, width]`: log-probabilities of the next tokens of some particles, from one call."""
        tree = self.shared.tree
        with self.shared.lock:
            new = [particle for particle in some if particle.token >= 0]
            paths = tree.extend([(one.node, [one.token]) for one in new], own=True)
            nodes = [node for [node] in paths]
            self._mine.update(nodes)
            for particle, node in zip(new, nodes, strict=True):
                particle.node, particle.token = node, -1
            rows = tree.logprobs([particle.node for particle in some])
            tree.forget(nodes)
        return np.asarray(rows.double().cpu().numpy(), dtype=np.float64)

    def _next(self, particle: _TokenParticle, row: Floats) -> list[_TokenParticle]:
        """Particles of equal tokens with one more, without those in a dead end."""
        index, vocabulary = self.index, self.index.vocabulary
        probs, mask = np.exp(row), particle.tokens.mask()
        end = float(probs[list(vocabulary.end_ids)].sum())
        end = end if particle.constraint.allowed()[END] else 0.0
        in_order, may = probs[index.ids], mask[index.ids]
        fits, rest = np.where(may, in_order, 0.0), np.where(may, 0.0, in_order)
        whole = Branch(particle.constraint, b"", particle.raw, 0, 0, len(rest), 0)
        found = explore(index, rest, [whole], float(fits.sum()) + end, self.most)

        def new(rank: int, size: int) -> _TokenParticle:
            mass, token = float(in_order[rank]), int(index.ids[rank])
            return particle.longer(index.sorted[rank], mass, size, token=token)

        return self._drawn(particle, found, rest, fits, end, new)

    def _drawn(
        self,
        particle: _TokenParticle,
        found: Outcomes,
        rest: Floats,
        fits: Floats,
        end: float,
        new: Callable[[int, int], _TokenParticle],
    ) -> list[_TokenParticle]:
        """Particles drawn from the next tokens of some of equal tokens.

        Args:
            particle: those.
            found: what is complete, and what is unsure.
            rest: `[n]` the masses of the tokens in it.
            fits: `[n]` the masses of the tokens that go on.
            end: that of the end of the text.
            new: so many particles that go on with one of the `n`.
        """
        unsure = [np.arange(one.lo, one.hi) + one.shift for one in found.unsure]
        masses = np.concatenate([rest[places] for places in unsure]) if unsure else np.zeros(0)
        whole = [end, *(one.mass for one in found.complete), float(masses.sum())]
        every = np.concatenate([fits, whole])
        total = float(every.sum())
        if not total > 0:
            return []
        before = replace(particle, weight=particle.weight + math.log(total))
        counts = systematic(every / total, particle.size, self.rng)
        out = []
        for at in np.flatnonzero(counts).tolist():
            size, other = int(counts[at]), at - len(fits)
            if other < 0:
                out.append(replace(new(at, size), weight=before.weight))
            elif other == 0:
                out.append(before.complete(particle.raw, "end", end, size))
            elif other <= len(found.complete):
                out.append(before.complete(*found.complete[other - 1], size))
            else:
                drawn = self.rng.choice(len(masses), size=size, p=masses / masses.sum())
                for place in drawn.tolist():
                    out += self._resolved(before, found.unsure, place, masses[place], new)
        for one in out:
            self.settle(one)
        return out

    def _resolved(
        self,
        before: _TokenParticle,
        unsure: list[Branch],
        place: int,
        mass: float,
        new: Callable[[int, int], _TokenParticle],
    ) -> list[_TokenParticle]:
        """The particle made by a token drawn from the unsure ones; none if it may not follow."""
        for branch in unsure:
            if place < branch.hi - branch.lo:
                break
            place -= branch.hi - branch.lo
        found = resolve(self.index, branch, branch.lo + place, self.most)
        if found is None:
            return []
        if found[1]:
            return [before.complete(*found, mass, 1)]
        return [replace(new(branch.lo + place + branch.shift, 1), weight=before.weight)]

    def free(self, alive: list[_TokenParticle]) -> None:
        """Free the contexts that none of these needs, once they are many."""
        needed = {particle.node for particle in alive if not particle.finish}
        unused = self._mine - needed
        if len(unused) > 256 + 4 * len(needed):
            self.shared.drop(list(unused))
            self._mine = needed & self._mine

    def close(self) -> None:
        """Give back the memory of the contexts evaluated on the way."""
        self.shared.drop(list(self._mine))
        self._mine = set()
