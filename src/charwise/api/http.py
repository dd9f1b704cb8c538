"""The HTTP around a request: its key, its body, whether its client still listens, the response.

Starlette reads a body without a limit, and tells nothing of a client that leaves before the
answer begins; uvicorn waits for ever for the head of a request. So these stand here.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, TypeVar

from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from charwise.api.errors import HTTPError
from charwise.api.writer import compact

Result = TypeVar("Result")

#: In which the body of a request is there.
_BODY_SECONDS = 60.0

#: Headers, as ASGI has them; a name may come twice.
Headers = Iterable[tuple[bytes, bytes]]


async def read_body(receive: Receive, max_bytes: int) -> bytes | None:
    """Return the body of a request; None if the client leaves before.

    One that is longer than `max_bytes`, or late, is an `HTTPError`.
    """
    body = bytearray()
    more = True
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                body += message.get("body", b"")
                if len(body) > max_bytes:
                    raise HTTPError(
                        413, f"the body of this request has more than {max_bytes} bytes."
                    )
                more = bool(message.get("more_body"))
    except TimeoutError:
        why = f"the body of this request did not arrive within {_BODY_SECONDS:g} seconds."
        raise HTTPError(408, why) from None
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


def refusal(refused: HTTPError, *more: tuple[bytes, bytes]) -> Response:
    """Return the response that tells a refusal, in the form of OpenAI's API; `more` are headers."""
    headers = [(name.encode(), value.encode()) for name, value in refused.headers.items()]
    return json_response(refused.body, refused.status, [*headers, *more])


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


class _PatientProtocol(H11Protocol):
    """uvicorn's own protocol, which waits for the head of a request only so long.

    uvicorn ends connections that are idle after an answer (`timeout_keep_alive`), and no others.
    """

    #: In which the head of a request is there, from its first byte or the connection's begin.
    head_seconds = 10.0
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop()

    def _wait(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()  # the head was whole
        elif self._late is None:
            self._late = self.loop.call_later(self.head_seconds, self._end)

    def _stop(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _end(self) -> None:
        self._late = None
        self.transport.close()


#: What our servers tell uvicorn alike.
UVICORN: dict[str, Any] = {
    "http": _PatientProtocol,
    "timeout_keep_alive": 75,
    "log_level": "warning",
    "server_header": False,
}
