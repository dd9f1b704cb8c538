"""Texts drawn piece by piece: where they stop, and which part is kept and can be sent.

`drafts.py` draws them token by token, `bytewise.py` byte by byte.
"""

from __future__ import annotations

import secrets
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from charwise.constraints.constraint import END, Flags
from charwise.cursor.completion import (
    Completion,
    Placed,
    check_begins,
    most_probable,
    whole_characters,
)
from charwise.cursor.options import GenerationOptions, Limit
from charwise.tokens.stops import Stops
from charwise.tokens.utf8 import decoder_after


@dataclass(kw_only=True)
class DrawnText:
    """A completion being drawn.

    >>> DrawnText(raw=b"y").finish
    ''
    """

    raw: bytes = b""  # after the prompt
    logprob: float = 0.0
    finish: str = ""
    cut: int = -1  # where a stop string starts
    token_ids: list[int] = field(default_factory=list)


D = TypeVar("D", bound=DrawnText)


class Drawing(ABC, Generic[D]):
    """The completions of one request while they are drawn.

    Args:
        state: after the prompt.
        options: how they are drawn.
        limit: when to stop, whatever has been drawn.

    Attributes:
        drafts: the completions as they are drawn.
    """

    drafts: Sequence[D]

    def __init__(self, state: Placed, options: GenerationOptions, limit: Limit) -> None:
        if options.constraint is not None:
            check_begins(state.raw, options.constraint)
        self.options, self.limit = options, limit
        self.before, self.exact_from = state.raw, state.exact_from
        self.most, self.stops = options.max_new_bytes, Stops(options.stop)
        self.seed = secrets.randbits(63) if options.seed is None else int(options.seed)
        self.rng = np.random.default_rng(self.seed)

    @abstractmethod
    def advance(self) -> None:
        """Draw the next piece of every draft that is not finished."""

    @abstractmethod
    def allowed(self, draft: D) -> Flags | None:
        """`[257]` the bytes that may follow a draft, at 256 the end; None for all of them."""

    def close(self) -> None:
        """Free the contexts evaluated on the way."""

    def active(self) -> list[D]:
        """The drafts that are not finished."""
        return [draft for draft in self.drafts if not draft.finish]

    def done(self) -> int:
        """How many bytes are settled, of those that may be drawn."""
        return sum(
            self.most if draft.finish else min(self.most, len(draft.raw)) for draft in self.drafts
        )

    def check(self, draft: D) -> None:
        """Finish a draft that holds a stop string, or enough bytes, or that nothing may follow."""
        match = self.stops.first(draft.raw)
        if match is not None and match[0] <= self.most:
            draft.cut, draft.finish = match[0], "stop"
        elif len(draft.raw) >= self.most:
            draft.finish = "length"
        else:
            allowed = self.allowed(draft)
            if allowed is not None and not allowed[:END].any():
                draft.finish = "constraint" if allowed[END] else "dead end"

    def kept(self, draft: D) -> bytes:
        """The bytes of a draft up to the stop string or the limit, whole characters only."""
        if draft.cut >= 0:
            return draft.raw[: draft.cut]
        if len(draft.raw) < self.most:
            return draft.raw
        return whole_characters(self.before, draft.raw[: self.most])

    def safe(self, draft: D) -> int:
        """How many bytes of a draft can be sent: no stop string can still begin before."""
        return min(len(draft.raw) - self.stops.held(draft.raw), len(self.kept(draft)))

    def completion(self, draft: D) -> Completion:
        """Return the completion."""
        raw = self.kept(draft)
        return Completion(
            decoder_after(self.before).decode(raw),
            raw,
            draft.logprob,
            draft.token_ids,
            self.exact_from,
            draft.finish,
            len(draft.raw) + (draft.finish == "end"),
        )

    def completions(self) -> list[Completion]:
        """All of it, drawn to the end; see `GenerationOptions`."""
        try:
            while self.active():
                self.advance()
                if self.options.progress is not None:
                    self.options.progress(self.done(), self.options.n * self.most)
            found = [self.completion(draft) for draft in self.drafts]
        finally:
            self.close()
        return found if self.options.temperature else most_probable(found)

    def pieces(self) -> Iterator[str]:
        """The pieces of one completion as they are drawn; no piece ends inside a character.

        Text that may turn out to begin a stop string is held back until that is known.
        """
        [draft] = self.drafts
        decoder = decoder_after(self.before)
        exiting = sys.is_finalizing  # modules are gone by then
        sent = 0
        try:
            while True:
                end = len(self.kept(draft)) if draft.finish else self.safe(draft)
                piece = decoder.decode(self.kept(draft)[sent:end])
                sent = max(sent, end)
                if piece:
                    yield piece
                if draft.finish:
                    return
                self.advance()
        finally:
            if not exiting():
                self.close()
