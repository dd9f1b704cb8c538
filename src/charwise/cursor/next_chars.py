"""The next character, from the next bytes: summed out along the UTF-8 tree."""

from __future__ import annotations

import heapq
import math
from typing import Protocol, Self

from charwise.cursor.distributions import EOS, NextBytes, NextChars
from charwise.errors import SettingError, ZeroProbabilityError, check_count, check_number
from charwise.tokens import utf8

#: Beginnings of characters that are taken apart for one list of next characters.
_BEGINNINGS = 64

#: What float64 cannot tell from the whole need not be listed.
_NOTHING = 1e-15


class Extended(Protocol):
    """A `State`, as far as its next characters go."""

    @property
    def raw(self) -> bytes: ...
    def next(self) -> NextBytes: ...
    def __add__(self, more: bytes, /) -> Self: ...


def next_chars(state: Extended, coverage: float = 0.99, least: int = 0) -> NextChars:
    """p(character | text), the heaviest first; see `State.next_chars`.

    Args:
        state: after the text.
        coverage: list characters until they hold so much of the probability.
        least: and until there are so many.

    >>> import charwise
    >>> next_chars(charwise.load().state("import nump"), 0.5).top(1)[0][0]
    'y'
    """
    check_number("coverage", coverage, 0.0, 1.0)
    check_count("least", least, 0)
    if not coverage > 0:
        raise SettingError(f"coverage is {coverage}: it must lie in (0, 1].")
    begun = utf8.pending(state.raw)
    nxt = state.next()
    listed, held = dict[str, float](), nxt.eos
    states, error, limited = {begun: state}, nxt.error, nxt.limited
    heap = _branches(begun, nxt, 1.0)
    heapq.heapify(heap)
    left = -math.fsum(branch[0] for branch in heap)  # what may still be listed
    while heap and (held < coverage or len(listed) < least):
        # Bytes that are no character may hold too much for it to be reached.
        all_of_it = held + left < coverage and left <= max(1.0 - coverage, _NOTHING)
        if all_of_it and len(listed) >= least:
            break
        negative, start = heapq.heappop(heap)
        left += negative
        if utf8.needs(start) == 0:
            listed[start.decode()] = -negative
            held -= negative
            continue
        if len(states) > _BEGINNINGS:
            continue
        try:
            states[start] = states[start[:-1]] + start[-1:]
        except ZeroProbabilityError:
            continue  # lighter than the least float
        following = states[start].next()
        error, limited = error - negative * following.error, limited or following.limited
        for branch in _branches(start, following, -negative):
            left -= branch[0]
            heapq.heappush(heap, branch)
    missing = max(0.0, 1.0 - held * (1.0 - nxt.missing))
    return NextChars(listed, nxt.eos, missing, min(1.0, error), limited)


def _branches(start: bytes, nxt: NextBytes, weight: float) -> list[tuple[float, bytes]]:
    """(−probability, bytes so far) of each way to go on with a character that has begun."""
    longer = (start + bytes([byte]) for byte in range(EOS))
    return [
        (-float(p) * weight, more)
        for more, p in zip(longer, nxt.probs, strict=False)
        if p > 0 and utf8.needs(more) >= 0
    ]
