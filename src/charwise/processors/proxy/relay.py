"""An ASGI app that hands requests on to an HTTP server, and its answers back, as they come."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

from charwise.errors import MissingExtraError, SettingError
from charwise.processors.openai.asgi_call import UpstreamError
from charwise.processors.openai.exchange import (
    Message,
    Receive,
    Send,
    send_error,
    until_left,
)

logger = logging.getLogger("charwise.proxy")

#: Bytes of an answer to a question of our own.
_MOST_ASKED = 2**20

#: Headers that belong to one connection, not to the request.
_OF_A_HOP = {
    b"connection",
    b"host",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
}


class Relay:
    """Everything goes through as it is: paths, headers, bodies, streams, errors.

    A client that leaves ends the request behind. A server that is not there is a 502, one that is
    silent for too long a 504.

    Args:
        upstream: address of the server behind, such as `http://127.0.0.1:8080`.
        seconds: how long it may say nothing.

    Raises:
        MissingExtraError: httpx is not installed.
        SettingError: an address that is none.
    """

    def __init__(self, upstream: str, seconds: float = 600.0) -> None:
        try:
            import httpx
        except ImportError as error:
            raise MissingExtraError(
                "httpx is not installed: pip install 'charwise[proxy]'."
            ) from error
        if not upstream.startswith(("http://", "https://")):
            raise SettingError(f"the server behind is at {upstream!r}: give http://HOST:PORT.")
        self._errors = (httpx.ConnectError, httpx.TimeoutException, httpx.HTTPError)
        self._timeout_error = httpx.TimeoutException
        self._url_error = httpx.InvalidURL
        self._upstream = upstream.rstrip("/")
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(seconds, connect=min(10.0, seconds), pool=None),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        )
        self._client.headers.clear()  # the client's own headers, and no others

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def ask(
        self, path: str, headers: list[tuple[bytes, bytes]], body: Message | None = None
    ) -> tuple[int, Any]:
        """Status and JSON of a path; 0 if the server says nothing, None if it says no JSON."""
        method = "GET" if body is None else "POST"
        url, said = self._upstream + path, bytearray()
        try:
            async with self._client.stream(method, url, headers=headers, json=body) as response:
                async for part in response.aiter_bytes():
                    said += part
                    if len(said) > _MOST_ASKED:
                        return response.status_code, None
        except self._errors:
            return 0, None
        try:
            return response.status_code, json.loads(said)
        except (ValueError, RecursionError):
            return response.status_code, None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Hand on one request, until it is answered or its client leaves."""
        has_body = any(
            name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"]
        )
        heard = asyncio.Event()
        if not has_body:
            heard.set()
        answering = asyncio.ensure_future(self._answer(scope, receive, send, has_body, heard))
        leaving = asyncio.ensure_future(_left(receive, heard))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            if not answering.done():
                answering.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)
        if not answering.cancelled():
            answering.result()  # raises what broke the answer off

    def _request(self, scope: Message, body: AsyncIterator[bytes] | None) -> Any:
        """What the server behind is asked.

        Raises:
            httpx.InvalidURL: a path that is none, or would lead to another server.
        """
        path = scope.get("raw_path") or scope["path"].encode()
        if not path.startswith(b"/"):  # "@elsewhere/" would make another host of ours
            raise self._url_error("it does not begin with /")
        query = scope.get("query_string", b"")
        return self._client.build_request(
            scope["method"],
            self._upstream + (path + (b"?" + query if query else b"")).decode("latin-1"),
            headers=[pair for pair in scope["headers"] if pair[0].lower() not in _OF_A_HOP],
            content=body,
        )

    async def _answer(
        self, scope: Message, receive: Receive, send: Send, has_body: bool, heard: asyncio.Event
    ) -> None:
        try:
            request = self._request(scope, _body(receive, heard) if has_body else None)
        except self._url_error as error:
            message = f"the path {scope['path'][:80]!r}: {error}."
            await send_error(send, 400, message)
            return
        started = False
        try:
            response = await self._client.send(request, stream=True)
            try:
                headers = [
                    (name.lower(), value)
                    for name, value in response.headers.raw
                    if name.lower() not in _OF_A_HOP
                ]
                await send(
                    {
                        "type": "http.response.start",
                        "status": response.status_code,
                        "headers": headers,
                    }
                )
                started = True
                async for part in response.aiter_raw():
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
            finally:
                await response.aclose()
        except self._errors as error:
            logger.warning("%s: %s", request.url, error or type(error).__name__)
            found = self._failure(error, started)
            if started:  # the connection breaks off, as the one behind did
                raise found from error
            await send_error(send, found.status, str(found))

    def _failure(self, error: Exception, started: bool) -> UpstreamError:
        name = str(error) or type(error).__name__
        if isinstance(error, self._timeout_error):
            return UpstreamError(f"the server behind did not answer in time: {name}", 504)
        what = "broke off" if started else "cannot be reached"
        return UpstreamError(f"the server behind {what}: {name}")


async def _body(receive: Receive, heard: asyncio.Event) -> AsyncIterator[bytes]:
    """The request's body, as it comes; sets `heard` at its end."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise asyncio.CancelledError
        if message.get("body"):
            yield message["body"]
        if not message.get("more_body"):
            heard.set()
            return


async def _left(receive: Receive, heard: asyncio.Event) -> None:
    """Ends when the client leaves; listens once the body was heard."""
    await heard.wait()
    await until_left(receive)
