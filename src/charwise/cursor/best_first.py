"""Valid texts by search: where the likeliest one fails its check, the next candidate.

Each step takes the likeliest beginning that was not gone on with, and goes on greedily, byte by
byte. The bytes that came second on the way are new beginnings. A text that fails its check says
from which of its bytes on nothing can be valid: all beginnings with these bytes are left out.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np

from charwise.constraints.constraint import END, Constraint, closed
from charwise.constraints.validity import fault_of
from charwise.cursor.byte_drafts import Bytewise
from charwise.cursor.completion import Completion, weighed_text, whole_characters
from charwise.cursor.distributions import EOS
from charwise.cursor.limit import Limit
from charwise.cursor.options import GenerationOptions
from charwise.errors import ZeroProbabilityError
from charwise.tokens.stops import Stops

#: Beginnings that are gone on with, at most.
_TRIES = 100

#: Bytes at one place that are kept as other ways to go on.
_ASIDE = 8


def candidates(
    state: Bytewise, constraint: Constraint, options: GenerationOptions, limit: Limit
) -> Iterator[Completion]:
    """Texts that satisfy a constraint, and those that were cut at their length: likely ones first.

    Args:
        state: the text that they go on with.
        constraint: what may follow, and what the whole must be.
        options: most bytes of a text, and the strings that end one.
        limit: when to end the search; the text that it ends is the last.

    >>> import charwise
    >>> from charwise.constraints import json_schema
    >>> state, even = charwise.load().state("x = "), json_schema({"enum": [1, 4], "multipleOf": 2})
    >>> [one.text for one in candidates(state, even, GenerationOptions(), Limit())]
    ['4']
    """
    search = _Search(state, constraint, options, limit)
    for _ in range(_TRIES):
        if not search.heap:
            return
        found = search.step()
        if found is not None:
            yield found
            if found.finish in ("time", "cancelled"):
                return


class _Search:
    """Beginnings that wait, the likeliest first."""

    def __init__(
        self, state: Bytewise, constraint: Constraint, options: GenerationOptions, limit: Limit
    ) -> None:
        self.state, self.constraint, self.limit = state, constraint, limit
        self.most, self.stops = options.max_new_bytes, Stops(options.stop)
        self.heap: list[tuple[float, int, bytes, bool]] = [(0.0, 0, b"", False)]
        self.pushed = 0

    def step(self) -> Completion | None:
        """Go on with the likeliest beginning; the text that it leads to, if that is valid."""
        cost, _, raw, ended = heapq.heappop(self.heap)
        try:
            here, left = self.state + raw, self.constraint.after(raw)
            while not ended:
                finish, raw = self._finish(raw, left)
                if finish:
                    return None if finish == "dead end" else self._text(raw, finish, cost)
                logs = np.where(left.allowed(), here.next().logprobs, -np.inf)
                codes = np.argsort(-logs, kind="stable")[: 1 + _ASIDE].tolist()
                best, *others = [code for code in codes if logs[code] > -np.inf] or [None]
                if best is None:
                    return None
                for code in others:
                    self._push(cost - float(logs[code]), raw, code)
                cost, ended = cost - float(logs[best]), best == EOS
                if not ended:
                    byte = bytes([best])
                    raw, here, left = raw + byte, here + byte, left.after(byte)
        except ZeroProbabilityError:
            return None
        return self._text(raw, "end", cost)

    def _finish(self, raw: bytes, left: Constraint) -> tuple[str, bytes]:
        """Why a text ends here, and what is kept of it; "" if it goes on."""
        match = self.stops.first(raw)
        if match is not None:
            valid = fault_of(self.constraint.after(raw[: match[0]])) is None
            return ("stop" if valid else "dead end"), raw[: match[0]]
        if len(raw) >= self.most:
            return "length", whole_characters(self.state.raw, raw)
        if closed(left):
            if left.allowed()[END]:
                return "constraint", raw
            fault = fault_of(left)
            self._leave_out(raw if fault is None else raw[: fault.dead])
            return "dead end", raw
        return self.limit.reached(), raw

    def _push(self, cost: float, raw: bytes, code: int) -> None:
        ended = code == EOS
        beginning = raw if ended else raw + bytes([code])
        self.pushed += 1
        heapq.heappush(self.heap, (cost, self.pushed, beginning, ended))

    def _leave_out(self, beginning: bytes) -> None:
        """Drop what begins with these bytes."""
        self.heap = [entry for entry in self.heap if not entry[2].startswith(beginning)]
        heapq.heapify(self.heap)

    def _text(self, raw: bytes, finish: str, cost: float) -> Completion:
        return weighed_text(self.state, raw, finish, -cost)
