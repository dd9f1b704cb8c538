"""The key of a server, checked before anything is done for a request."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

#: Headers of a request, as ASGI has them.
Headers = Iterable[tuple[bytes, bytes]]


def admits(headers: Headers, accepted: Sequence[bytes]) -> bool:
    """Return whether a request shows one of the accepted keys, or none is wanted.

    The first `authorization` header counts.

    >>> admits([(b"authorization", b"Bearer k")], [b"k"]), admits([], [b"k"]), admits([], [])
    (True, False, True)
    """
    if not accepted:
        return True
    shown = next((value for name, value in headers if name == b"authorization"), b"")
    scheme, _, key = shown.partition(b" ")
    matches = [secrets.compare_digest(key, each) for each in accepted]
    return scheme.lower() == b"bearer" and any(matches)
