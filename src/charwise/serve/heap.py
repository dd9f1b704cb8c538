"""Memory that was freed, given back to the system.

A call of the model needs some large arrays for a moment. The C library keeps what was freed between
others that are kept, for later: as pieces of many sizes, of which the process holds ever more.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from functools import cache

#: Seconds between two times that memory is given back: the pages are made anew where they are
#: needed again.
_SECONDS = 10.0


class Heap:
    """The C library's memory.

    >>> heap = Heap()
    >>> heap.give_back(), heap.give_back()  # the second is too early
    (None, None)
    """

    def __init__(self) -> None:
        self._next = time.monotonic() + _SECONDS

    def give_back(self) -> None:
        """Give what is free back to the system, if it was not done just now.

        Does nothing where the C library is not glibc.
        """
        now = time.monotonic()
        if now >= self._next and (trim := _trim()) is not None:
            trim(0)
            self._next = time.monotonic() + max(_SECONDS, 100 * (time.monotonic() - now))


@cache
def _trim() -> Callable[[int], int] | None:
    """glibc's `malloc_trim`."""
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return found
