"""Texts from p(· | the constraint is satisfied), by sequential Monte Carlo.

Masking at each step (`conditioning="local"`) draws a beginning as often as the model says, though
nearly all that could come of it may be ruled out later. Here each particle is drawn so, and weighs
the product of the masses that were allowed:

    w = Π_t Z_t,     Z_t = Σ { p(x | drawn so far) : x goes on, or the text is complete with it }

The mean weight is an unbiased estimate of p(C | prompt), and the weighted particles are a sample of
p(· | prompt, C). Where few particles hold most of the weight, they are drawn anew in proportion to
it (systematic resampling). Of small sets all members are added up instead.

A member of C after which nothing may follow is complete, whatever token runs past it; so is a text
of the longest length. These are looked for where the mass is, in ranges of tokens that begin alike,
until little is left of which it is not known. That rest counts, and a token drawn from it is
resolved then.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.constraints.constraint import (
    END,
    Constraint,
    Flags,
    TokenConstraint,
    closed,
    finite,
)
from charwise.coverings.bundles import log_sum
from charwise.cursor.generation import Completion, Cursor, Members, check_begins, whole_characters
from charwise.cursor.options import GenerationOptions, Limit
from charwise.errors import ConstraintError, SettingError
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.utf8 import decoder_after

Floats = NDArray[np.float64]


class Weighted(list[Completion]):
    """Completions that satisfy a constraint, the heaviest first, with their weights.

    The `logprob` of a completion is that of its text where sets are added up. Of one that was
    sampled it is that of its tokenizations that were drawn. There are no `token_ids`: weights are
    those of texts.

    Attributes:
        weights: `[n]` p(completion | prompt, C), or the estimate of it.
        logprob: log p(C | prompt), nats, or the log of the unbiased estimate of it.
        effective: effective sample size, (Σ w)² / Σ w²; infinite where nothing was sampled.
    """

    def __init__(
        self,
        completions: Iterable[Completion],
        weights: Floats,
        *,
        logprob: float,
        effective: float,
    ) -> None:
        super().__init__(completions)
        self.weights, self.logprob, self.effective = weights, logprob, effective


@dataclass
class Particles:
    """Particles that drew the same tokens: one context, and one weight."""

    node: int
    token: int  # drawn after `node`, not evaluated yet; −1 if there is none
    constraint: Constraint
    tokens: TokenConstraint
    size: int  # particles
    raw: bytes = b""
    logprob: float = 0.0  # of the tokens, nats; where the text ends inside one, of all such tokens
    finish: str = ""
    weight: float = 0.0  # log of the weight of each

    def complete(self, raw: bytes, finish: str, mass: float, size: int) -> Particles:
        """So many of them that are complete with a text, which has this probability."""
        logprob = self.logprob + math.log(mass)
        return replace(self, raw=raw, finish=finish, logprob=logprob, size=size)

    def longer(self, node: int, token: int, data: bytes, mass: float, size: int) -> Particles:
        """So many of them with a token more, which has this probability."""
        new = replace(self, node=node, token=token, raw=self.raw + data, size=size)
        new.logprob += math.log(mass)
        new.constraint, new.tokens = self.constraint.after(data), self.tokens.after(data)
        return new


def sample(cursor: Cursor, options: GenerationOptions, limit: Limit) -> Weighted:
    """The n heaviest of a weighted sample of p(· | prompt, C).

    Args:
        cursor: after the prompt.
        options: the constraint, and the number of particles.
        limit: what has not ended by then counts as it is.

    Raises:
        SettingError: without a constraint.
        ConstraintError: if no particle satisfies it; says how far the longest came.
    """
    sampler, count = _Sampler(cursor, options), options.particles
    estimate, longest = 0.0, b""
    try:
        alive = sampler.begin()
        while True:
            if not alive:
                raise ConstraintError(
                    f"none of {count} particles satisfies the constraint: the longest came to "
                    f"{longest!r}, and nothing that may follow has any probability.",
                    len(longest),
                )
            longest = max([longest, *(particles.raw for particles in alive)], key=len)
            estimate += _resample(alive, count, sampler.rng)
            alive = [particles for particles in alive if particles.size]
            sampler.free(alive)
            unfinished = [particles for particles in alive if not particles.finish]
            if not unfinished:
                return _heaviest(alive, cursor, options, estimate)
            if reached := limit.reached():
                for particles in unfinished:
                    particles.finish = reached
                unfinished = []
            finished = [particles for particles in alive if particles.finish]
            alive = finished + sampler.step(unfinished)
            if options.progress is not None:
                options.progress(sum(one.size for one in alive if one.finish), count)
    finally:
        sampler.close()


def sum_members(state: Any, options: GenerationOptions) -> Weighted | None:
    """The n heaviest members of a small set that follow a state; None if there are too many.

    Args:
        state: after the prompt.
        options: the set, of whose members those of `max_new_bytes` at most count, and n.

    Raises:
        ConstraintError: if it has no members.
        ZeroProbabilityError: if all have probability zero.
    """
    constraint = options.constraint
    members = None if constraint is None else finite(constraint, 256, options.max_new_bytes)
    if constraint is None or members is None:
        return None
    if not members:
        raise ConstraintError("nothing satisfies the constraint: every way into it is a dead end.")
    check_begins(state.raw, constraint)
    ends = {member: not closed(constraint.after(member)) for member in members}
    logs = dict[bytes, float]()
    for end in (False, True):
        some = [member for member in members if ends[member] == end]
        if some:
            posterior = state.choose(some, ended=end)
            logs |= dict(zip(posterior.raw, posterior.logprobs.tolist(), strict=True))
    total = log_sum(list(logs.values()))
    order = sorted(members, key=lambda member: -logs[member])[: options.n]
    finish = {member: "end" if ends[member] else "constraint" for member in order}
    return Weighted(
        [_text(state, member, finish[member], logs[member]) for member in order],
        np.exp([logs[member] - total for member in order]),
        logprob=total,
        effective=math.inf,
    )


def _text(cursor: Cursor, raw: bytes, finish: str, logprob: float) -> Completion:
    """A text after a prompt, without its tokens."""
    text = decoder_after(cursor.raw).decode(raw, final=True)
    drawn = len(raw) + (finish == "end")
    return Completion(text, raw, logprob, [], cursor.exact_from, finish, drawn)


def _resample(alive: Sequence[Particles], count: int, rng: np.random.Generator) -> float:
    """Draw particles anew where the effective sample is less than half of them.

    Returns the log of the mean weight, which is taken out of all of them; 0 if nothing was drawn.
    """
    total, shares, sizes = _shares(alive)
    if 1.0 / float((shares**2 / sizes).sum()) >= count / 2:
        return 0.0
    counts = systematic(shares / shares.sum(), count, rng)
    for particles, size in zip(alive, counts.tolist(), strict=True):
        particles.size, particles.weight = size, 0.0
    return total - math.log(count)


def _shares(alive: Sequence[Particles]) -> tuple[float, Floats, NDArray[np.int64]]:
    """Log of the sum of all weights, `[n]` shares in it, and `[n]` how many particles."""
    sizes = np.array([particles.size for particles in alive])
    logs = np.array([particles.weight for particles in alive]) + np.log(sizes)
    total = log_sum(logs.tolist())
    return total, np.exp(logs - total), sizes


def _heaviest(
    alive: Sequence[Particles], cursor: Cursor, options: GenerationOptions, estimate: float
) -> Weighted:
    """The n heaviest texts, equal ones as one."""
    total, shares, sizes = _shares(alive)
    places = dict[tuple[bytes, str], list[int]]()
    for at, particles in enumerate(alive):
        raw = particles.raw
        if particles.finish == "length" and len(raw) >= options.max_new_bytes:
            raw = whole_characters(cursor.raw, raw)
        places.setdefault((raw, particles.finish), []).append(at)
    weights = {text: float(shares[some].sum()) for text, some in places.items()}
    heaviest = sorted(weights, key=lambda text: -weights[text])[: options.n]
    logs = {text: log_sum([alive[at].logprob for at in places[text]]) for text in heaviest}
    return Weighted(
        [_text(cursor, *text, logs[text]) for text in heaviest],
        np.array([weights[text] for text in heaviest]),
        logprob=estimate + total - math.log(options.particles),
        effective=1.0 / float((shares**2 / sizes).sum()),
    )


def systematic(shares: Floats, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """How often each is drawn: its share of the count, up or down to a whole, by one number."""
    points = (np.arange(count) + rng.random()) / count
    ends = np.cumsum(shares)
    chosen = np.searchsorted(ends, points * ends[-1], side="right")
    last = int(np.flatnonzero(shares)[-1])
    return np.bincount(np.minimum(chosen, last), minlength=len(shares))


class _Sampler:
    """The particles of one request; a step is one model call."""

    def __init__(self, cursor: Cursor, options: GenerationOptions) -> None:
        if options.constraint is None:
            raise SettingError("conditioning='global' needs a constraint: give regex=… or another.")
        check_begins(cursor.raw, options.constraint)
        self.cursor, self.shared, self.index = cursor, cursor.shared, cursor.shared.index
        self.constraint, self.count = options.constraint, options.particles
        self.most, self.rng = options.max_new_bytes, np.random.default_rng(options.seed)
        self._nodes: set[int] = set()

    def begin(self) -> list[Particles]:
        """All particles after the prompt, or after its members where it ends inside of tokens.

        The mass of the members that may follow is the first factor of the weights.
        """
        tokens, node = self.constraint.over(self.index), self.cursor.bundles[0].node
        first = Particles(node, -1, self.constraint, tokens, self.count)
        self._settle(first)
        if self.cursor.at_root or first.finish:
            return [first]
        members = Members(self.cursor)
        masses = np.exp(members.logs - log_sum(members.logs.tolist()))
        ranges = [
            _Range(self.constraint, b"", b"", start - bundle.lo, bundle.lo, bundle.hi, bundle.depth)
            for bundle, start in zip(members.bundles, members.starts.tolist(), strict=False)
        ]
        outcomes = _explore(self.index, masses, ranges, 0.0, self.most)

        def longer(at: int, size: int) -> Particles:
            bundle, rank = members.place(at)
            token, beyond = int(self.index.ids[rank]), members.beyond(at)
            return first.longer(bundle.node, token, beyond, float(masses[at]), size)

        return self._draw(
            first, outcomes, masses, np.where(outcomes.fits, masses, 0.0), 0.0, longer
        )

    def step(self, unfinished: Sequence[Particles]) -> list[Particles]:
        """One more token for each of these, without those in a dead end."""
        window, stepped = self.shared.engine.window, list[Particles]()
        for particles in unfinished:
            longer = self.shared.length(particles.node) + (particles.token >= 0)
            if window is not None and longer > window:
                particles.finish = "window"
                stepped.append(particles)
        some = [particles for particles in unfinished if not particles.finish]
        # Of the log-probabilities that one call brings back.
        together = max(1, 2**25 // self.index.vocabulary.width)
        for at in range(0, len(some), together):
            part = some[at : at + together]
            for particles, row in zip(part, self._rows(part), strict=True):
                stepped += self._next(particles, row)
        return stepped

    def free(self, alive: Sequence[Particles]) -> None:
        """Free the contexts that none of these needs, once they are many."""
        needed = {particles.node for particles in alive if not particles.finish}
        unused = self._nodes - needed
        if len(unused) > 256 + 4 * len(needed):
            self.shared.drop(list(unused))
            self._nodes &= needed

    def close(self) -> None:
        """Free the contexts that were evaluated on the way."""
        self.shared.drop(list(self._nodes))
        self._nodes = set()

    def _rows(self, some: Sequence[Particles]) -> Floats:
        """`[n, width]` log-probabilities of the next tokens, from one call."""
        tree = self.shared.tree
        with self.shared.lock:
            new = [particles for particles in some if particles.token >= 0]
            paths = tree.extend([(one.node, [one.token]) for one in new], own=True)
            nodes = [node for [node] in paths]
            self._nodes.update(nodes)
            for particles, node in zip(new, nodes, strict=True):
                particles.node, particles.token = node, -1
            rows = tree.logprobs([particles.node for particles in some])
            tree.forget(nodes)
        return np.asarray(rows.double().cpu().numpy(), dtype=np.float64)

    def _next(self, particles: Particles, row: Floats) -> list[Particles]:
        """Particles of equal tokens with one more, without those in a dead end."""
        index = self.index
        probs, mask = np.exp(row), particles.tokens.mask()
        end = float(probs[list(index.vocabulary.end_ids)].sum())
        end = end if particles.constraint.allowed()[END] else 0.0
        in_order, allowed = probs[index.ids], mask[index.ids]
        fits, rest = np.where(allowed, in_order, 0.0), np.where(allowed, 0.0, in_order)
        whole = _Range(particles.constraint, b"", particles.raw, 0, 0, len(rest), 0)
        outcomes = _explore(index, rest, [whole], float(fits.sum()) + end, self.most)

        def longer(rank: int, size: int) -> Particles:
            token, mass = int(index.ids[rank]), float(in_order[rank])
            return particles.longer(particles.node, token, index.sorted[rank], mass, size)

        return self._draw(particles, outcomes, rest, fits, end, longer)

    def _draw(
        self,
        particles: Particles,
        outcomes: _Outcomes,
        rest: Floats,
        fits: Floats,
        end: float,
        longer: Callable[[int, int], Particles],
    ) -> list[Particles]:
        """Particles drawn from the next tokens of some of equal tokens.

        Args:
            particles: those.
            outcomes: the texts that are complete, and the tokens that are unsure.
            rest: `[n]` masses of the unsure tokens.
            fits: `[n]` masses of the tokens that go on.
            end: the mass of the end of the text.
            longer: so many particles that go on with one of the `n`.
        """
        unsure = [np.arange(one.lo, one.hi) + one.shift for one in outcomes.unsure]
        masses = np.concatenate([rest[places] for places in unsure]) if unsure else np.zeros(0)
        others = [end, *(one.mass for one in outcomes.complete), float(masses.sum())]
        every = np.concatenate([fits, others])
        total = float(every.sum())
        if not total > 0:
            return []
        before = replace(particles, weight=particles.weight + math.log(total))
        counts = systematic(every / total, particles.size, self.rng)
        drawn = []
        for at in np.flatnonzero(counts).tolist():
            size, other = int(counts[at]), at - len(fits)
            if other < 0:
                drawn.append(replace(longer(at, size), weight=before.weight))
            elif other == 0:
                drawn.append(before.complete(particles.raw, "end", end, size))
            elif other <= len(outcomes.complete):
                drawn.append(before.complete(*outcomes.complete[other - 1], size))
            else:
                for place in self.rng.choice(len(masses), size, p=masses / masses.sum()).tolist():
                    resolved = _resolve(self.index, outcomes.unsure, place, self.most)
                    if resolved is None:
                        continue
                    at, text, finish = resolved
                    if finish:
                        drawn.append(before.complete(text, finish, float(masses[place]), 1))
                    else:
                        drawn.append(replace(longer(at, 1), weight=before.weight))
        for one in drawn:
            self._settle(one)
        return drawn

    def _settle(self, particles: Particles) -> None:
        """Finish particles that are complete, or long enough."""
        if not particles.finish:  # a dead end stays unfinished: its next step has no mass
            allowed = particles.constraint.allowed()
            particles.finish = _finish(allowed, len(particles.raw), self.most)
            particles.raw = particles.raw[: self.most]


@dataclass(frozen=True, slots=True)
class _Range:
    """A range of tokens that begin alike."""

    before: Constraint  # what may follow, but for `new`
    new: bytes
    text: bytes  # how these tokens go on, `new` included
    shift: int  # the mass of the token at `rank` is at `rank + shift`
    lo: int
    hi: int
    depth: int  # bytes on which the tokens agree

    def constraint(self) -> Constraint:
        """What may follow `text`."""
        return self.before.after(self.new) if self.new else self.before


class _Complete(NamedTuple):
    """A text that is complete, whatever follows, and the mass of the tokens that run past it."""

    text: bytes
    finish: str  # "constraint" or "length"
    mass: float


class _Outcomes(NamedTuple):
    """The outcomes of a text with one token more."""

    fits: Flags  # `[n]` tokens that go on
    complete: list[_Complete]
    unsure: list[_Range]


def _finish(allowed: Flags, size: int, most: int) -> str:
    """Why nothing is drawn after a text of `size` bytes; "" if it goes on, or is a dead end."""
    if not allowed[:END].any():
        return "constraint" if allowed[END] else ""
    return "length" if size >= most else ""


def _explore(
    index: SortedVocabulary,
    masses: Floats,
    ranges: Sequence[_Range],
    known: float,
    most: int,
    *,
    least: float = 1e-2,
    effort: int = 512,
) -> _Outcomes:
    """The outcomes of texts that go on with the tokens of some ranges, the heaviest first.

    Args:
        index: the vocabulary.
        masses: `[n]` probabilities of the tokens, those that are known already as 0.
        ranges: the ranges.
        known: the mass of the tokens that are known already.
        most: most bytes of a text.
        least: the search ends where so small a share is unsure.
        effort: the search ends after so many ranges.
    """
    fits, complete = np.zeros(len(masses), dtype=np.bool_), list[_Complete]()

    def mass_of(one: _Range) -> float:
        return float(masses[one.lo + one.shift : one.hi + one.shift].sum())

    heap = [(-mass_of(one), n, one) for n, one in enumerate(ranges)]
    heapq.heapify(heap)
    steps, left = len(heap), -math.fsum(entry[0] for entry in heap)
    while heap and left > least * known and steps < effort + len(ranges):
        weight, _, one = heapq.heappop(heap)
        left += weight
        lo, constraint = one.lo, one.constraint()
        allowed = constraint.allowed()
        if finish := _finish(allowed, len(one.text), most):
            complete.append(_Complete(one.text, finish, -weight))
            known -= weight
            continue
        while lo < one.hi and len(index.sorted[lo]) == one.depth:
            fits[lo + one.shift] = True
            known += float(masses[lo + one.shift])
            lo += 1
        for code, first, last in _runs(index, lo, one.hi, one.depth):
            byte = bytes([code])
            text, depth = one.text + byte, one.depth + 1
            part = _Range(constraint, byte, text, one.shift, first, last, depth)
            if allowed[code] and (mass := mass_of(part)) > 0:
                steps += 1
                left += mass
                heapq.heappush(heap, (-mass, steps, part))
    return _Outcomes(fits, complete, [one for _, _, one in heap])


def _runs(index: SortedVocabulary, lo: int, hi: int, depth: int) -> Iterator[tuple[int, int, int]]:
    """The bytes with which the tokens of a range go on, and the range of those that do."""
    following = index.flat[index.starts[lo:hi] + depth]
    first = lo
    for end in np.flatnonzero(np.diff(following, append=-1)).tolist() if hi > lo else []:
        yield int(following[end]), first, lo + end + 1
        first = lo + end + 1


def _resolve(
    index: SortedVocabulary, unsure: Sequence[_Range], place: int, most: int
) -> tuple[int, bytes, str] | None:
    """The outcome of the token at a place among the unsure ones; None if it may not follow.

    Returns:
        Where its mass is, the text, and why that is complete: "" if it goes on.
    """
    for one in unsure:
        if place < one.hi - one.lo:
            break
        place -= one.hi - one.lo
    rank, constraint, text = one.lo + place, one.constraint(), one.text
    for byte in index.sorted[rank][one.depth :]:
        allowed = constraint.allowed()
        if finish := _finish(allowed, len(text), most):
            return rank + one.shift, text, finish
        if not allowed[byte]:
            return None
        constraint, text = constraint.after(bytes([byte])), text + bytes([byte])
    return rank + one.shift, text, ""
