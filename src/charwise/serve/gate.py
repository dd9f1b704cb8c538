"""Who may ask: the key, the page that asks, and the name under which the server is asked.

All of it is settled before a body is read.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from charwise.processors.vllm.gate import admits
from charwise.serve.refusals import Refused, body_of
from charwise.serve.server import Settings

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

#: Answered without a key, so that whoever starts servers can see that this one runs.
OPEN = frozenset({"/health"})


class Gate:
    """An ASGI middleware that refuses who may not ask.

    A web page of another origin is refused, preflight or not, unless `settings.allow_origins` has
    it; so is a name that a server on the loopback interface does not have, since a page could
    have made one point here.

    Args:
        app: what is behind it.
        settings: of the server.
        pages: paths of pages that browsers open, which can show no key; what they ask must.
    """

    def __init__(self, app: App, settings: Settings, pages: frozenset[str] = frozenset()) -> None:
        self._app = app
        self._settings = settings
        self._keys = [settings.api_key.encode()] if settings.api_key else []
        self._open = OPEN | pages

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        origin = headers.get(b"origin", b"").decode("latin-1")
        try:
            self._check(scope, headers, origin)
        except Refused as refused:
            await _refuse(scope, send, refused, self._cross(origin, headers))
            return
        cross = self._cross(origin, headers)
        if cross and scope["method"] == "OPTIONS":
            await _answer(send, 204, b"", [*cross, *_PREFLIGHT])
            return
        await self._app(scope, receive, _adding(send, cross) if cross else send)

    def _check(self, scope: Message, headers: dict[bytes, bytes], origin: str) -> None:
        host = headers.get(b"host", b"").decode("latin-1")
        hosts = self._settings.hosts
        if hosts is not None and _name(host) not in hosts:
            raise Refused(
                403,
                f"this server is not asked under the name {host[:80]!r}: it listens on the "
                "loopback interface. Use 127.0.0.1, or start it with --host.",
            )
        if origin and not self._same(origin, headers) and not self._allowed(origin):
            raise Refused(
                403,
                f"pages of {origin[:80]!r} may not ask: start the server with --allow-origin.",
            )
        if scope["method"] == "OPTIONS" and origin:
            return
        if scope["path"] in self._open:
            return
        if not admits(scope["headers"], self._keys):
            raise Refused(401, "the API key is missing or wrong: send `Authorization: Bearer KEY`.")

    def _same(self, origin: str, headers: dict[bytes, bytes]) -> bool:
        """Whether a page comes from this server itself."""
        try:
            name = urlsplit(origin).netloc
        except ValueError:  # no address: such as "http://["
            return False
        return name.encode("latin-1") == headers.get(b"host")

    def _allowed(self, origin: str) -> bool:
        allowed = self._settings.allow_origins
        return "*" in allowed or origin in allowed

    def _cross(self, origin: str, headers: dict[bytes, bytes]) -> list[tuple[bytes, bytes]]:
        """The headers that let a page of another origin read an answer; none for others."""
        if not origin or not self._allowed(origin) or self._same(origin, headers):
            return []
        return [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"origin")]


_PREFLIGHT = [
    (b"access-control-allow-methods", b"GET, POST"),
    (b"access-control-allow-headers", b"authorization, content-type"),
    (b"access-control-max-age", b"600"),
]


def _name(host: str) -> str:
    """A Host header without its port.

    >>> _name("localhost:8000"), _name("[::1]:8000"), _name("127.0.0.1")
    ('localhost', '::1', '127.0.0.1')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


def _adding(send: Send, more: list[tuple[bytes, bytes]]) -> Send:
    async def add(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        await send(message)

    return add


async def _refuse(
    scope: Message, send: Send, refused: Refused, more: list[tuple[bytes, bytes]]
) -> None:
    body = json.dumps(body_of(scope["path"], refused), separators=(",", ":")).encode()
    await _answer(send, refused.status, body, [(b"content-type", b"application/json"), *more])


async def _answer(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})
