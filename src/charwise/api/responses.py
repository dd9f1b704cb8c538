"""Responses of Starlette that keep another server's headers, and end with their client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from charwise.api.errors import Refused
from charwise.api.writer import compact

#: Headers, as ASGI has them; a name may come twice.
RawHeaders = Iterable[tuple[bytes, bytes]]

_OF_THE_BODY = frozenset({b"content-length", b"content-type"})


class Stream(StreamingResponse):
    """A stream that ends when its client leaves, whatever the server's version of ASGI is.

    From version 2.4 on, Starlette waits for an error of `send` in place of listening. A request of
    our own to an application (`Upstream`) never has one.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the parts."""
        await super().__call__({**scope, "asgi": {}}, receive, send)


def json_response(content: Any, status: int = 200, headers: RawHeaders = ()) -> Response:
    """Return a JSON response with these headers, but for those of the body.

    >>> json_response({"a": 1}, headers=[(b"x-a", b"1"), (b"content-length", b"9")]).raw_headers
    [(b'content-length', b'7'), (b'content-type', b'application/json'), (b'x-a', b'1')]
    """
    response = Response(compact(content), status, media_type="application/json")
    response.raw_headers += [pair for pair in headers if pair[0] not in _OF_THE_BODY]
    return response


def refusal(refused: Refused) -> Response:
    """Return the response that tells a refusal, in the form of OpenAI's API."""
    headers = [(name.encode(), value.encode()) for name, value in refused.headers.items()]
    return json_response(refused.body, refused.status, headers)


def stream_response(
    parts: AsyncIterator[bytes], status: int = 200, headers: RawHeaders = ()
) -> Stream:
    """Return a stream with the headers of the server behind; it has another length than its."""
    response = Stream(parts, status)
    response.raw_headers = [pair for pair in headers if pair[0] != b"content-length"]
    return response
