"""Completions drawn byte by byte, from anything that has a next byte.

A combination has no tokens to draw: its members' differ. Each byte is drawn from the distribution
of the next one, by the rules that `cursor/drafts.py` has for tokens: where to stop, what is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from charwise.constraints.constraint import END, Constraint, closed
from charwise.constraints.validity import has_check
from charwise.cursor.distributions import EOS, NextBytes
from charwise.cursor.drafts import Bytewise, Completion
from charwise.cursor.following import check_begins
from charwise.cursor.generation import (
    Report,
    check_report,
    draw_byte,
    in_one_piece,
    most_probable,
)
from charwise.cursor.limit import Limit
from charwise.cursor.rejection import valid
from charwise.cursor.sampling import MOST_DRAWN, Sampling
from charwise.errors import ConstraintError, ZeroProbabilityError, check_count
from charwise.tokens.stops import Stops, StopStrings
from charwise.tokens.utf8 import decoder_after, pending


@dataclass
class Draft:
    """A completion being drawn.

    >>> Draft(None, None).raw
    b''
    """

    state: Bytewise
    constraint: Constraint | None
    raw: bytes = b""
    logprob: float = 0.0
    finish: str = ""
    cut: int = -1  # where a stop string starts
    ended: bool = False  # the end of text was drawn


class ByteDrafts:
    """The completions of one request.

    >>> import charwise
    >>> state = charwise.load().state("import nump")
    >>> drafts = ByteDrafts(state, 1, 1, (), Sampling(), Limit(), None)
    >>> drafts.advance(drafts.drafts[0]), drafts.kept(drafts.drafts[0])
    (None, b'y')
    """

    def __init__(
        self,
        state: Bytewise,
        n: int,
        max_new_bytes: int,
        stop: StopStrings,
        sampling: Sampling,
        limit: Limit,
        constraint: Constraint | None,
    ) -> None:
        check_count("n", n, 1, MOST_DRAWN)
        check_count("max_new_bytes", max_new_bytes, 0)
        if constraint is not None:
            check_begins(state.raw, constraint)
        self.state, self.most, self.sampling, self.limit = state, max_new_bytes, sampling, limit
        self.stops = Stops(stop)
        self.rng = np.random.default_rng(sampling.seed)
        self.drafts = [Draft(state, constraint) for _ in range(n)]
        for draft in self.drafts:
            self._check(draft)
        if n > 1 and not sampling.temperature:
            self._take_the_likeliest()

    def _take_the_likeliest(self) -> None:
        """At temperature 0, each completion begins with a byte of its own."""
        active = [draft for draft in self.drafts if not draft.finish]
        if not active:
            return
        nxt = self._next(active[0])
        order = np.argsort(-nxt.probs, kind="stable")
        order = order[nxt.probs[order] > 0]
        for draft, code in zip(active, order.tolist(), strict=False):
            self._take(draft, nxt, code)
        self.drafts = [draft for draft in self.drafts if draft.raw or draft.finish]

    def _next(self, draft: Draft) -> NextBytes:
        nxt = draft.state.next()
        return nxt if draft.constraint is None else nxt.under(draft.constraint)

    def advance(self, draft: Draft) -> None:
        """Draw the next byte of a draft that is not finished."""
        draft.finish = self.limit.reached()
        if draft.finish:
            return
        try:
            nxt = self._next(draft)
        except (ConstraintError, ZeroProbabilityError):
            if not draft.raw:
                raise
            draft.finish = "dead end"
            return
        self._take(draft, nxt, draw_byte(nxt, self.sampling, self.rng))

    def _take(self, draft: Draft, nxt: NextBytes, code: int) -> None:
        # Of the distribution without the constraint, as `Completion.logprob` is.
        draft.logprob += math.log(draft.state.next().probs[code])
        if code == EOS:
            draft.finish, draft.ended = "end", True
            return
        byte = bytes([code])
        draft.raw += byte
        if draft.constraint is not None:
            draft.constraint = draft.constraint.after(byte)
        self._check(draft)
        if not draft.finish:
            draft.state = draft.state + byte

    def _check(self, draft: Draft) -> None:
        """Finish a draft that holds a stop string, or enough bytes, or that nothing may follow."""
        match = self.stops.first(draft.raw)
        if match is not None and match[0] <= self.most:
            draft.cut, draft.finish = match[0], "stop"
        elif len(draft.raw) >= self.most:
            draft.finish = "length"
        elif draft.constraint is not None and closed(draft.constraint):
            draft.finish = "constraint" if draft.constraint.allowed()[END] else "dead end"

    def done(self) -> int:
        """How many bytes are settled, of those that may be drawn."""
        return sum(self.most if draft.finish else len(draft.raw) for draft in self.drafts)

    def kept(self, draft: Draft) -> bytes:
        """The bytes of a draft up to the stop string or the limit, whole characters only."""
        if draft.cut >= 0:
            return draft.raw[: draft.cut]
        if len(draft.raw) < self.most:
            return draft.raw
        text = self.state.raw[-3:] + draft.raw[: self.most]
        return draft.raw[: max(0, self.most - len(pending(text)))]

    def safe(self, draft: Draft) -> int:
        """How many bytes of a draft can be sent: no stop string can still begin before."""
        return min(len(draft.raw) - self.stops.held(draft.raw), len(self.kept(draft)))

    def completion(self, draft: Draft) -> Completion:
        """What was drawn; there are no tokens."""
        raw = self.kept(draft)
        return Completion(
            decoder_after(self.state.raw).decode(raw),
            raw,
            draft.logprob,
            [],
            self.state.exact_from,
            draft.finish,
            len(draft.raw) + draft.ended,
        )


def complete(
    state: Bytewise,
    *,
    n: int,
    max_new_bytes: int,
    stop: StopStrings,
    sampling: Sampling,
    limit: Limit,
    constraint: Constraint | None,
    progress: Report | None,
) -> list[Completion]:
    """n completions of a state's text; see `Combination.complete`.

    >>> import charwise
    >>> state, none = charwise.load().state("import nump"), {"constraint": None, "progress": None}
    >>> complete(state, n=1, max_new_bytes=1, stop="", sampling=Sampling(), limit=Limit(), **none)
    Traceback (most recent call last):
    charwise.errors.SettingError: a stop string is empty: it would stop before anything is new.
    """
    check_report(progress)
    told = progress

    def draw(count: int, sampling: Sampling) -> list[Completion]:
        nonlocal told
        drawn = ByteDrafts(state, count, max_new_bytes, stop, sampling, limit, constraint)
        while active := [draft for draft in drawn.drafts if not draft.finish]:
            for draft in active:
                drawn.advance(draft)
            if told is not None:
                told(drawn.done(), n * max_new_bytes)
        told = None  # what is drawn again is not counted
        return [drawn.completion(draft) for draft in drawn.drafts]

    completions = valid(
        draw,
        state,
        constraint,
        n=n,
        max_new_bytes=max_new_bytes,
        stop=stop,
        sampling=sampling,
        limit=limit,
    )
    return completions if sampling.temperature else most_probable(completions)


def stream(
    state: Bytewise,
    *,
    max_new_bytes: int,
    stop: StopStrings,
    sampling: Sampling,
    limit: Limit,
    constraint: Constraint | None,
) -> Iterator[str]:
    """The pieces of one completion as they are drawn; no piece ends inside a character.

    >>> import charwise
    >>> state, rest = charwise.load().state("import nump"), {"limit": Limit(), "constraint": None}
    >>> list(stream(state, max_new_bytes=1, stop=(), sampling=Sampling(), **rest))
    ['y']
    """
    # What is wrong with the arguments is said here, not when the first piece is asked for.
    drawn = ByteDrafts(state, 1, max_new_bytes, stop, sampling, limit, constraint)
    if not has_check(constraint):
        return _pieces(drawn)
    return in_one_piece(
        lambda: complete(
            state,
            n=1,
            max_new_bytes=max_new_bytes,
            stop=stop,
            sampling=sampling,
            limit=limit,
            constraint=constraint,
            progress=None,
        )
    )


def _pieces(drawn: ByteDrafts) -> Iterator[str]:
    [draft] = drawn.drafts
    decoder, sent = decoder_after(drawn.state.raw), 0
    while True:
        end = len(drawn.kept(draft)) if draft.finish else drawn.safe(draft)
        piece = decoder.decode(drawn.kept(draft)[sent:end])
        sent = max(sent, end)
        if piece:
            yield piece
        if draft.finish:
            return
        drawn.advance(draft)
