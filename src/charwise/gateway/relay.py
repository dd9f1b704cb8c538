"""The connection to the server behind: requests of the gateway's own, and those handed on."""

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
from starlette.types import Receive, Scope, Send

from charwise.api.errors import HTTPError
from charwise.api.http import Headers, refusal, stream_response, while_connected
from charwise.api.writer import compact
from charwise.errors import SettingError

logger = logging.getLogger("charwise.gateway")

#: Headers that belong to one connection, and those that belong to one body.
_OF_A_HOP = {
    *(b"connection", b"host", b"keep-alive", b"proxy-authenticate", b"proxy-authorization"),
    *(b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"),
}
_OF_A_BODY = {b"content-length", b"content-type", b"accept-encoding", b"x-request-id"}


class Relay:
    """Connections to one server, which may say nothing for so many seconds.

    The attribute `address` has no password. An address that is none is a `SettingError`.
    """

    def __init__(self, address: str, seconds: float = 600.0) -> None:
        self._base = address.rstrip("/").removesuffix("/v1")
        try:
            parts = urlsplit(self._base)
            named = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # a port above 65535, half of an IPv6 address
            named = False
        if not named:
            raise SettingError(f"the server is at {address!r}: give http://HOST:PORT.")
        self.address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        seconds_of = httpx.Timeout(seconds, connect=min(10.0, seconds), pool=None)
        self._extensions = {"timeout": seconds_of.as_dict()}
        # The pool alone: a client of httpx would add headers and cookies of its own.
        self._pool = httpx.AsyncHTTPTransport(
            # Uvicorn closes what is idle for five seconds: a request must not meet that.
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=256, keepalive_expiry=3.0
            ),
            trust_env=False,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._pool.aclose()

    @asynccontextmanager
    async def stream(
        self, path: str, headers: Headers, body: Any = None
    ) -> AsyncIterator[httpx.Response]:
        """A request of our own, whose answer is read as it comes; POST if it has a body."""
        own = [pair for pair in headers if pair[0].lower() not in _OF_A_HOP | _OF_A_BODY]
        method, content = "GET", None
        if body is not None:
            method, content = "POST", compact(body)
            own.append((b"content-type", b"application/json"))
        response = await self._send(method, path, own, content)
        try:
            yield response
        finally:
            await response.aclose()

    async def _send(
        self, method: str, path: str, headers: Headers, content: bytes | None
    ) -> httpx.Response:
        """The head of an answer. A connection that breaks before it is replaced, once."""
        url, extensions = self._base + path, self._extensions
        request = httpx.Request(
            method, url, headers=list(headers), content=content, extensions=extensions
        )
        try:  # it may be closed, at either end, just as a request takes it out of the pool
            return await self._pool.handle_async_request(request)
        except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
            return await self._pool.handle_async_request(request)

    async def ask(self, path: str, headers: Headers = (), body: Any = None) -> tuple[int, Any]:
        """Status and JSON of a path; None if the answer is no JSON."""
        async with self.stream(path, headers, body) as response:
            content = await response.aread()
        try:
            return response.status_code, json.loads(content)
        except (ValueError, RecursionError):
            return response.status_code, None

    async def text(self, path: str, headers: Headers) -> str:
        """The text of a path; empty if there is none."""
        try:
            async with self.stream(path, headers) as response:
                await response.aread()
        except httpx.HTTPError:
            return ""
        return response.text if response.status_code == 200 else ""

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, body: bytes, *more: tuple[bytes, bytes]
    ) -> None:
        """Hand on one request with its body, until it is answered or its client leaves.

        All goes through as it is; `more` are further headers of the answer. A server that is not
        there is a 502, one that is silent for too long a 504.
        """
        path = scope.get("raw_path") or scope["path"].encode()
        query = b"?" + scope["query_string"] if scope.get("query_string") else b""
        dropped = _OF_A_HOP | {b"content-length"}
        try:
            if not path.startswith(b"/"):  # "@elsewhere/" would make another host of ours
                raise httpx.InvalidURL("it does not begin with /")
            headers = [pair for pair in scope["headers"] if pair[0].lower() not in dropped]
            target = (path + query).decode("latin-1")
            sending = self._send(scope["method"], target, headers, body)
            response = await while_connected(receive, sending)
        except (httpx.InvalidURL, httpx.HTTPError) as error:
            wrong = HTTPError(400, f"the path {scope['path'][:80]!r}: {error}.")
            refused = wrong if isinstance(error, httpx.InvalidURL) else self.refused(error)
            await refusal(refused, *more)(scope, receive, send)
            return
        if response is None:
            return
        try:
            headers = [*self.headers_of(response), *more]
            answer = stream_response(response.aiter_raw(), response.status_code, headers)
            await answer(scope, receive, send)
        finally:
            await response.aclose()

    def refused(self, error: Exception) -> HTTPError:
        """The answer to a client whose request the server behind did not answer."""
        name = str(error).rstrip(".") or type(error).__name__
        logger.warning("%s: %s", self.address, name)
        if isinstance(error, ValueError):
            return HTTPError(502, f"the server at {self.address} wrote no JSON: {name}.")
        if isinstance(error, httpx.TimeoutException):
            return HTTPError(504, f"the server at {self.address} did not answer in time: {name}.")
        return HTTPError(502, f"the server at {self.address} cannot be reached: {name}.")

    @staticmethod
    def headers_of(response: httpx.Response) -> list[tuple[bytes, bytes]]:
        """The headers of an answer, less those of its connection."""
        headers = [(name.lower(), value) for name, value in response.headers.raw]
        return [pair for pair in headers if pair[0] not in _OF_A_HOP]
