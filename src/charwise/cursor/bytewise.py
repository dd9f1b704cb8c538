"""Completions and particles that go on byte by byte, from anything that has a next byte.

A combination has no tokens to draw: its members' differ. Its particles weigh a byte by what the
members make of it by the global rule, which need not add up to 1 (docs/combine.md):

    Z_t = Σ { F(→p_1(σ·c), …) / F(→p_1(σ), …) : c may follow }
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from charwise.constraints.constraint import Constraint, Flags
from charwise.constraints.validity import fault_of
from charwise.cursor.completion import Bytewise
from charwise.cursor.distributions import EOS, NextBytes
from charwise.cursor.drawing import Drawing, DrawnText
from charwise.cursor.following import draw_byte
from charwise.cursor.options import GenerationOptions, Limit
from charwise.cursor.particles import Particle, Proposal
from charwise.errors import ConstraintError, ZeroProbabilityError
from charwise.tokens.utf8 import decoder_after


@dataclass(kw_only=True)
class _ByteDraft(DrawnText):
    """A completion being drawn, and where it stands."""

    state: Bytewise
    constraint: Constraint | None
    drawn_from: NextBytes | None = None  # its last byte


class ByteDrafts(Drawing[_ByteDraft]):
    """The completions of one request, which have no tokens.

    At temperature 0 each begins with a byte of its own, the likeliest first.

    >>> import charwise
    >>> state, options = charwise.load().state("import nump"), GenerationOptions(max_new_bytes=1)
    >>> ByteDrafts(state, options, options.limit()).completions()[0].text
    'y'
    """

    def __init__(self, state: Bytewise, options: GenerationOptions, limit: Limit) -> None:
        super().__init__(state, options, limit)
        self.drafts = [
            _ByteDraft(state=state, constraint=options.constraint) for _ in range(options.n)
        ]
        for draft in self.drafts:
            self.check(draft)
        if options.n > 1 and not options.temperature:
            self._take_the_likeliest()

    def allowed(self, draft: _ByteDraft) -> Flags | None:
        return None if draft.constraint is None else draft.constraint.allowed()

    def advance(self) -> None:
        for draft in self.active():
            draft.finish = self.limit.reached()
            if draft.finish:
                continue
            try:
                model, nxt = self._next(draft)
            except (ConstraintError, ZeroProbabilityError):
                if not draft.raw:
                    raise
                draft.finish = "dead end"
                continue
            self._take(draft, model, draw_byte(nxt, self.options, self.rng))
            draft.drawn_from = nxt

    def _take_the_likeliest(self) -> None:
        active = self.active()
        if not active:
            return
        model, nxt = self._next(active[0])
        order = np.argsort(-nxt.probs, kind="stable")
        order = order[nxt.probs[order] > 0]
        for draft, code in zip(active, order.tolist(), strict=False):
            self._take(draft, model, code)
        self.drafts = [draft for draft in self.drafts if draft.raw or draft.finish]

    def _next(self, draft: _ByteDraft) -> tuple[NextBytes, NextBytes]:
        """The model's next byte, and the next byte under the constraint."""
        model = draft.state.next()
        return model, model if draft.constraint is None else model.under(draft.constraint)

    def _take(self, draft: _ByteDraft, model: NextBytes, code: int) -> None:
        draft.logprob += math.log(model.probs[code])
        if code == EOS:
            draft.finish = "end"
            return
        byte = bytes([code])
        draft.raw += byte
        if draft.constraint is not None:
            draft.constraint = draft.constraint.after(byte)
        self.check(draft)
        if not draft.finish:
            draft.state = draft.state + byte


@dataclass(frozen=True)
class Drawn:
    """One character drawn byte by byte, and the distribution of each of its bytes.

    `character` is "" at the end of text.
    """

    character: str
    distributions: list[NextBytes]


def characters(state: Bytewise, options: GenerationOptions) -> Iterator[Drawn]:
    """A completion a character at a time, each with the distributions it was drawn from.

    Slower than `complete` of a token model, which draws tokens, but with the same result in
    distribution, for callers who look at every distribution. `top_k` and `top_p` apply to bytes.
    """
    return _watched(ByteDrafts(state, options, options.limit()))


def _watched(drafts: ByteDrafts) -> Iterator[Drawn]:
    [draft] = drafts.drafts
    decoder = decoder_after(drafts.before)
    seen: list[NextBytes] = []
    while drafts.active():
        size = len(draft.raw)
        drafts.advance()
        ended = draft.finish == "end"
        if draft.drawn_from is not None and (ended or len(draft.raw) > size):
            seen.append(draft.drawn_from)
        text = decoder.decode(draft.raw[size:], final=ended)
        if text or ended:
            yield Drawn(text, seen)
            seen = []
    if draft.finish == "dead end":
        fault = None if draft.constraint is None else fault_of(draft.constraint)
        why = f"are no valid JSON of the schema: {fault.why}" if fault else "have no continuation"
        raise ConstraintError(f"the characters drawn {why}. Draw again with another seed.")


@dataclass(kw_only=True)
class _ByteParticle(Particle):
    """Particles of equal text, and the state after it."""

    state: Bytewise


class ByteParticles(Proposal[_ByteParticle]):
    """The particles of one request.

    >>> import charwise
    >>> options = GenerationOptions(choices=["y"], particles=8)
    >>> found = ByteParticles(charwise.load().state("import nump"), options)
    >>> [one.size for one in found.begin()]
    [8]
    """

    def __init__(self, state: Bytewise, options: GenerationOptions) -> None:
        super().__init__(state, options)
        self.start = state

    def begin(self) -> list[_ByteParticle]:
        """All particles, after the prompt."""
        first = _ByteParticle(state=self.start, constraint=self.constraint, size=self.count)
        self.settle(first)
        return [first]

    def step(self, going: list[_ByteParticle]) -> list[_ByteParticle]:
        """These particles with one more byte, without those in a dead end."""
        return [new for particle in going for new in self._next(particle)]

    def _next(self, particle: _ByteParticle) -> list[_ByteParticle]:
        allowed = particle.constraint.allowed()
        try:
            nxt = particle.state.next()
        except ZeroProbabilityError:  # what one member goes on with, another cannot
            if not particle.raw:
                raise
            return []
        masses = np.where(allowed, nxt.probs, 0.0)
        mass = float(masses.sum())
        if not (allowed.any() and mass > 0):
            return []
        drawn = self.rng.multinomial(particle.size, masses / mass)
        out = []
        for code in np.flatnonzero(drawn).tolist():
            new = replace(
                particle,
                logprob=particle.logprob + math.log(masses[code]) + nxt.log_total,
                weight=particle.weight + math.log(mass) + nxt.log_total,
                size=int(drawn[code]),
            )
            if code == EOS:
                new.finish = "end"
            else:
                byte = bytes([code])
                new.state, new.constraint = new.state + byte, new.constraint.after(byte)
                new.raw += byte
                self.settle(new)
            out.append(new)
        return out
