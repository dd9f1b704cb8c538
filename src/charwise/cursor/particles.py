"""Texts from p(· | what satisfies a constraint), by sequential Monte Carlo over tokens.

Renormalising what is allowed at each step (`conditioning="local"`) draws a beginning as often
as the model says, though nearly all that could come of it may be ruled out later. Here every
particle is drawn so, and weighs the product of what was allowed:

    w = Π_t Z_t,     Z_t = Σ { p(t | tokens so far) : t goes on, or the text is complete with it }

The first factor is that of the prompt's covering. The mean weight is an unbiased estimate of
p(C | prompt), and the weighted particles are a sample of p(· | prompt, C). Where few particles hold
most of the weight, they are drawn anew in proportion to it (systematic resampling). A member of C
after which nothing may follow is complete there, and all tokens that run past it count; any other
is ended by the model. Particles of equal tokens are one context, and a step is one call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from charwise.constraints.constraint import END, Constraint
from charwise.coverings.log_sums import log_sum
from charwise.cursor.drafts import Cursor
from charwise.cursor.following import check_begins
from charwise.cursor.generation import Report, check_report
from charwise.cursor.limit import Limit
from charwise.cursor.members import Members
from charwise.cursor.outcomes import Branch, Outcomes, ended, explore, resolve
from charwise.cursor.particle import Particle, systematic
from charwise.cursor.sampling import MOST_DRAWN
from charwise.cursor.weighted import Weighted, weighed_text, whole_characters
from charwise.errors import ConstraintError, check_count

Floats = NDArray[np.float64]

#: Log-probabilities that one call brings back, at most.
_TOGETHER = 2**25

#: Contexts that no particle needs any more are freed when there are so many of them.
_UNUSED = 256


def particles(
    state: Cursor,
    constraint: Constraint,
    count: int,
    *,
    n: int = 1,
    max_new_bytes: int = 64,
    seed: int | None = None,
    limit: Limit | None = None,
    progress: Report | None = None,
) -> Weighted:
    """The n heaviest of a weighted sample of p(· | prompt, C).

    Args:
        state: the prompt.
        constraint: C.
        count: particles.
        n: most texts that are returned; equal ones are one.
        max_new_bytes: what is longer is cut, and counts as if it satisfied C.
        seed: for the same draws again.
        limit: what has not ended by then counts as it is.
        progress: told how many particles are complete, of all.

    Raises:
        ConstraintError: if no particle satisfies it; says how far the longest came.

    >>> import charwise
    >>> from charwise import constraints
    >>> found = particles(charwise.load().state("x = "), constraints.regex("[01]"), 8, n=2, seed=0)
    >>> {completion.text for completion in found} <= {"0", "1"}, found.logprob < 0
    (True, True)
    """
    check_count("particles", count, 1, MOST_DRAWN)
    check_count("n", n, 1, MOST_DRAWN)
    check_count("max_new_bytes", max_new_bytes, 0)
    check_report(progress)
    check_begins(state.raw, constraint)
    cloud = _Cloud(state, constraint, count, max_new_bytes, np.random.default_rng(seed))
    limit = limit or Limit()
    try:
        while any(not particle.finish for particle in cloud.alive):
            reached = limit.reached()
            for particle in cloud.alive:
                particle.finish = particle.finish or reached
            cloud.step()
            if progress is not None:
                progress(sum(one.size for one in cloud.alive if one.finish), count)
        return cloud.weighted(n)
    finally:
        cloud.close()


class _Cloud:
    """The particles of one request."""

    def __init__(
        self,
        state: Cursor,
        constraint: Constraint,
        count: int,
        most: int,
        rng: np.random.Generator,
    ) -> None:
        self.state, self.count, self.most, self.rng = state, count, most, rng
        self.shared, self.index = state.shared, state.shared.index
        self.estimate, self.longest = 0.0, b""
        self._mine: set[int] = set()
        first = Particle(state.bundles[0].node, -1, constraint, constraint.over(self.index))
        first.size = count
        self._settle(first)
        begun = [first] if state.at_root or first.finish else self._begun(first)
        self.alive: list[Particle] = []
        self._go_on(begun)

    def _begun(self, first: Particle) -> list[Particle]:
        """Particles drawn from the covering, its members conditioned on once."""
        constraint = first.constraint
        members = Members(self.shared, self.state.bundles)
        masses = np.exp(members.logs - log_sum(members.logs.tolist()))
        branches = [
            Branch(constraint, b"", b"", start - bundle.lo, bundle.lo, bundle.hi, bundle.depth)
            for bundle, start in zip(members.bundles, members.starts.tolist(), strict=False)
        ]
        found = explore(self.index, masses, branches, 0.0, self.most)
        fits = np.where(found.fits, masses, 0.0)

        def new(at: int, size: int) -> Particle:
            bundle, rank = members.place(at)
            token = int(self.index.ids[rank])
            mass = float(masses[at])
            return first.longer(members.beyond(at), mass, size, node=bundle.node, token=token)

        return self._drawn(first, found, masses, fits, 0.0, new)

    def step(self) -> None:
        """One more token for every particle that goes on."""
        window = self.shared.engine.window
        for particle in self.alive:
            if window is None or particle.finish:
                continue
            if self.shared.length(particle.node) + (particle.token >= 0) > window:
                particle.finish = "window"
        done = [particle for particle in self.alive if particle.finish]
        going = [particle for particle in self.alive if not particle.finish]
        together = max(1, _TOGETHER // self.index.vocabulary.width)
        for at in range(0, len(going), together):
            some = going[at : at + together]
            for particle, row in zip(some, self._rows(some), strict=True):
                done += self._next(particle, row)
        self._go_on(done)
        self._free()

    def _rows(self, some: list[Particle]) -> Floats:
        """`[n, width]`: log-probabilities of the next tokens of some particles, from one call."""
        tree = self.shared.evaluated.tree
        with self.shared.lock:
            new = [particle for particle in some if particle.token >= 0]
            nodes = tree.extend([(one.node, one.token) for one in new]) if new else []
            self._mine.update(nodes)
            for particle, node in zip(new, nodes, strict=True):
                particle.node, particle.token = node, -1
            rows = tree.logprobs([particle.node for particle in some])
            tree.forget(nodes)
        return np.asarray(rows.double().cpu().numpy(), dtype=np.float64)

    def _next(self, particle: Particle, row: Floats) -> list[Particle]:
        """What becomes of particles of equal tokens with one more; none of those in a dead end."""
        index, vocabulary = self.index, self.index.vocabulary
        probs, mask = np.exp(row), particle.tokens.mask()
        end = float(probs[list(vocabulary.end_ids)].sum())
        end = end if particle.constraint.allowed()[END] else 0.0
        in_order, may = probs[index.ids], mask[index.ids]
        fits, rest = np.where(may, in_order, 0.0), np.where(may, 0.0, in_order)
        whole = Branch(particle.constraint, b"", particle.raw, 0, 0, len(rest), 0)
        found = explore(index, rest, [whole], float(fits.sum()) + end, self.most)

        def new(rank: int, size: int) -> Particle:
            mass, token = float(in_order[rank]), int(index.ids[rank])
            return particle.longer(index.sorted[rank], mass, size, token=token)

        return self._drawn(particle, found, rest, fits, end, new)

    def _drawn(
        self,
        particle: Particle,
        found: Outcomes,
        rest: Floats,
        fits: Floats,
        end: float,
        new: Callable[[int, int], Particle],
    ) -> list[Particle]:
        """Particles drawn from what becomes of some of equal tokens.

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
            self._settle(one)
        return out

    def _resolved(
        self,
        before: Particle,
        unsure: list[Branch],
        place: int,
        mass: float,
        new: Callable[[int, int], Particle],
    ) -> list[Particle]:
        """The particle made by a token drawn from what is unsure; none if it may not follow."""
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

    def _settle(self, particle: Particle) -> None:
        """Finish a particle that is complete, or long enough."""
        if not particle.finish:
            allowed = particle.constraint.allowed()
            # A dead end stays unfinished: its next step finds no mass.
            particle.finish = ended(allowed, len(particle.raw), self.most)
            particle.raw = particle.raw[: self.most]

    def _go_on(self, alive: list[Particle]) -> None:
        """Go on with these particles, drawn anew where few hold most of the weight."""
        if not alive:
            raise ConstraintError(
                f"none of {self.count} particles satisfies the constraint: the longest came to "
                f"{self.longest!r}, and nothing that may follow has any probability.",
                len(self.longest),
            )
        self.longest = max([self.longest, *(particle.raw for particle in alive)], key=len)
        sizes = np.array([particle.size for particle in alive])
        logs = np.array([particle.weight for particle in alive]) + np.log(sizes)
        total = log_sum(logs.tolist())
        shares = np.exp(logs - total)
        if 1.0 / float((shares**2 / sizes).sum()) < self.count / 2:
            self.estimate += total - math.log(self.count)
            counts = systematic(shares / shares.sum(), self.count, self.rng)
            for particle, size in zip(alive, counts.tolist(), strict=True):
                particle.size, particle.weight = size, 0.0
        self.alive = [particle for particle in alive if particle.size]

    def _free(self) -> None:
        """Free the contexts that no particle needs, once they are many."""
        needed = {particle.node for particle in self.alive if not particle.finish}
        unused = self._mine - needed
        if len(unused) > _UNUSED + 4 * len(needed):
            self.shared.drop(list(unused))
            self._mine = needed & self._mine

    def weighted(self, n: int) -> Weighted:
        """The n heaviest texts, equal ones as one."""
        logs = np.array([particle.weight + math.log(particle.size) for particle in self.alive])
        total = log_sum(logs.tolist())
        shares = np.exp(logs - total)
        sizes = np.array([particle.size for particle in self.alive])
        texts = dict[tuple[bytes, str], list[int]]()
        for at, particle in enumerate(self.alive):
            raw = particle.raw
            if particle.finish == "length" and len(raw) >= self.most:
                raw = whole_characters(self.state.raw, raw)
            texts.setdefault((raw, particle.finish), []).append(at)
        weights = {text: float(shares[places].sum()) for text, places in texts.items()}
        heaviest = sorted(weights, key=lambda text: -weights[text])[:n]
        return Weighted(
            [
                weighed_text(
                    self.state,
                    *text,
                    log_sum([self.alive[at].logprob for at in texts[text]]),
                )
                for text in heaviest
            ],
            np.array([weights[text] for text in heaviest]),
            logprob=self.estimate + total - math.log(self.count),
            effective=1.0 / float((shares**2 / sizes).sum()),
        )

    def close(self) -> None:
        """Give back the memory of the contexts evaluated on the way."""
        self.shared.drop(list(self._mine))
        self._mine = set()
