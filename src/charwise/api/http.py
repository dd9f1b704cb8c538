"""The HTTP around a request: its key, its body, whether its client still listens, the response.

Starlette reads a body without a limit, and tells nothing of a client that leaves before the
answer begins. So these stand here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, TypeVar

from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from charwise.api.errors import Refused
from charwise.api.writer import compact

Result = TypeVar("Result")

#: The most that the body of a request may pause.
_BODY_SECONDS = 60.0

#: Headers, as ASGI has them; a name may come twice.
Headers = Iterable[tuple[bytes, bytes]]


async def read_body(receive: Receive, max_bytes: int) -> bytes | None:
    """Return the body of a request; None if the client leaves before, and so there is no request.

    Raises:
        Refused: it is longer than `max_bytes`, or does not arrive.
    """
    body = bytearray()
    more = True
    while more:
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                message = await receive()
        except TimeoutError:
            why = f"nothing more of the body of this request came for {_BODY_SECONDS:g} seconds."
            raise Refused(408, why) from None
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise Refused(413, f"the body of this request has more than {max_bytes} bytes.")
        more = bool(message.get("more_body"))
    return bytes(body)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result | None:
    """Return the result of some work; None, and the work is cancelled, if the client leaves."""

    async def until_left() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, watch = asyncio.create_task(work), asyncio.create_task(until_left())
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


def json_response(content: Any, status: int = 200, headers: Headers = ()) -> Response:
    """Return a JSON response with these headers, but for those of the body."""
    response = Response(compact(content), status, media_type="application/json")
    of_the_body = (b"content-length", b"content-type")
    response.raw_headers += [pair for pair in headers if pair[0] not in of_the_body]
    return response


def refusal(refused: Refused) -> Response:
    """Return the response that tells a refusal, in the form of OpenAI's API."""
    headers = [(name.encode(), value.encode()) for name, value in refused.headers.items()]
    return json_response(refused.body, refused.status, headers)


def stream_response(
    parts: AsyncIterator[bytes], status: int = 200, headers: Headers = ()
) -> ASGIApp:
    """Return a stream with the headers of the server behind; it has another length than its.

    It ends when its client leaves, whatever the server's version of ASGI is: from version 2.4 on,
    Starlette waits for an error of `send` in place of listening.
    """
    response = StreamingResponse(parts, status)
    response.raw_headers = [pair for pair in headers if pair[0] != b"content-length"]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await response({**scope, "asgi": {}}, receive, send)

    return app


#: What our servers tell uvicorn alike.
UVICORN: dict[str, Any] = {
    "http": "h11",
    "timeout_keep_alive": 75,
    "log_level": "warning",
    "server_header": False,
}
