"""Completions drawn byte by byte, from anything that has a next byte.

A combination has no tokens to draw: its members' differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np

from charwise.constraints.constraint import Constraint, Flags, closed
from charwise.constraints.validity import fault_of
from charwise.cursor.completion import Placed
from charwise.cursor.distributions import EOS, NextBytes
from charwise.cursor.drawing import Drawing, DrawnText
from charwise.cursor.following import check_begins
from charwise.cursor.limit import Limit
from charwise.cursor.options import GenerationOptions
from charwise.cursor.sampling import draw_byte
from charwise.errors import ConstraintError, ZeroProbabilityError
from charwise.tokens.utf8 import decoder_after


class Bytewise(Placed, Protocol):
    """A state, as far as going on from it byte by byte goes."""

    def next(self) -> NextBytes: ...
    def __add__(self, more: bytes, /) -> Self: ...


@dataclass(kw_only=True)
class ByteDraft(DrawnText):
    """A completion being drawn, and where it stands.

    >>> ByteDraft(state=None, constraint=None).raw
    b''
    """

    state: Bytewise
    constraint: Constraint | None


class ByteDrafts(Drawing[ByteDraft]):
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
            ByteDraft(state=state, constraint=options.constraint) for _ in range(options.n)
        ]
        for draft in self.drafts:
            self.check(draft)
        if options.n > 1 and not options.temperature:
            self._take_the_likeliest()

    def allowed(self, draft: ByteDraft) -> Flags | None:
        return None if draft.constraint is None else draft.constraint.allowed()

    def advance(self) -> None:
        for draft in self.active():
            draft.finish = self.limit.reached()
            if draft.finish:
                continue
            try:
                nxt = self._next(draft)
            except (ConstraintError, ZeroProbabilityError):
                if not draft.raw:
                    raise
                draft.finish = "dead end"
                continue
            self._take(draft, nxt, draw_byte(nxt, self.options, self.rng))

    def _take_the_likeliest(self) -> None:
        active = self.active()
        if not active:
            return
        nxt = self._next(active[0])
        order = np.argsort(-nxt.probs, kind="stable")
        order = order[nxt.probs[order] > 0]
        for draft, code in zip(active, order.tolist(), strict=False):
            self._take(draft, nxt, code)
        self.drafts = [draft for draft in self.drafts if draft.raw or draft.finish]

    def _next(self, draft: ByteDraft) -> NextBytes:
        nxt = draft.state.next()
        return nxt if draft.constraint is None else nxt.under(draft.constraint)

    def _take(self, draft: ByteDraft, nxt: NextBytes, code: int) -> None:
        # Of the distribution without the constraint, as `Completion.logprob` is.
        draft.logprob += math.log(draft.state.next().probs[code])
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
    if options.constraint is not None:
        check_begins(state.raw, options.constraint)
    return _drawn(state, options)


def _drawn(state: Bytewise, options: GenerationOptions) -> Iterator[Drawn]:
    rng, constraint = np.random.default_rng(options.seed), options.constraint
    decoder = decoder_after(state.raw)
    seen: list[NextBytes] = []
    for _ in range(options.max_new_bytes):
        distribution = state.next()
        if constraint is not None:
            if closed(constraint):
                if fault := fault_of(constraint):
                    raise ConstraintError(
                        f"the characters drawn are no valid JSON of the schema: {fault.why}. "
                        "Draw again with another seed."
                    )
                return
            distribution = distribution.under(constraint)
        seen.append(distribution)
        code = draw_byte(distribution, options, rng)
        if code == EOS:
            yield Drawn(decoder.decode(b"", final=True), seen)
            return
        text = decoder.decode(bytes([code]))
        if text:
            yield Drawn(text, seen)
            seen = []
        state = state + bytes([code])
        if constraint is not None:
            constraint = constraint.after(bytes([code]))
