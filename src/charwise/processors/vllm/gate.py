"""The key, before anything is done for a request.

vLLM adds middleware of `--middleware` outside its own, so that it sees requests before vLLM has
checked their key. A request without the right one is handed on untouched, and vLLM refuses it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Any

#: Headers of a request, as ASGI has them.
Headers = Iterable[tuple[bytes, bytes]]


def keys(arguments: Any, variable: str | None) -> list[bytes]:
    """The keys that vLLM accepts: those of `--api-key`, else that of `VLLM_API_KEY`.

    >>> from types import SimpleNamespace
    >>> keys(SimpleNamespace(api_key=None), "k"), keys(SimpleNamespace(api_key=["a"]), "k")
    ([b'k'], [b'a'])
    """
    named = getattr(arguments, "api_key", None)
    if isinstance(named, str):
        named = [named]
    return [key.encode() for key in named or [variable] if key]


def admits(headers: Headers, accepted: Sequence[bytes]) -> bool:
    """Whether a request shows one of the keys, or none is wanted.

    >>> admits([(b"authorization", b"Bearer k")], [b"k"]), admits([], [b"k"]), admits([], [])
    (True, False, True)
    """
    if not accepted:
        return True
    shown = next((value for name, value in headers if name == b"authorization"), b"")
    scheme, _, key = shown.partition(b" ")
    matches = [secrets.compare_digest(key, each) for each in accepted]
    return scheme.lower() == b"bearer" and any(matches)
