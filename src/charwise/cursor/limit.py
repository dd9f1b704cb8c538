"""When to stop drawing, whatever has been drawn: a time budget, and a flag that cancels."""

from __future__ import annotations

import math
import time
from typing import Protocol

from charwise.errors import SettingError, check_number, shown


class Cancel(Protocol):
    """What can be set to stop, from any thread: a `threading.Event`."""

    def is_set(self) -> bool:
        """Whether to stop."""
        ...


class Limit:
    """A time budget that has begun, and a flag; both are looked at between two model calls.

    Args:
        seconds: from now on; None for no end.
        cancel: stops when it is set.

    Raises:
        SettingError: for seconds below 0 or no number, or a flag without `is_set`.

    >>> import threading
    >>> cancel = threading.Event()
    >>> limit = Limit(seconds=60, cancel=cancel)
    >>> limit.reached(), cancel.set(), limit.reached()
    ('', None, 'cancelled')
    """

    def __init__(self, seconds: float | None = None, cancel: Cancel | None = None) -> None:
        if seconds is not None:
            check_number("seconds", seconds, 0.0, math.inf)
        if cancel is not None and not callable(getattr(cancel, "is_set", None)):
            raise SettingError(f"cancel is {shown(cancel)}: give a threading.Event.")
        self._end = math.inf if seconds is None else time.monotonic() + seconds
        self._cancel = cancel

    def reached(self) -> str:
        """Why to stop: "cancelled", "time", or "" to go on."""
        if self._cancel is not None and self._cancel.is_set():
            return "cancelled"
        return "time" if time.monotonic() >= self._end else ""
