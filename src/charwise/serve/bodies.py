"""Requests read, and answers written, as all dialects do it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from typing import Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from charwise.processors.openai.exchange import Receive, while_connected
from charwise.serve.asked import Mode, Until
from charwise.serve.refusals import Refused
from charwise.serve.server import Server

Message = dict[str, Any]
Result = TypeVar("Result")

#: Of a client that left before its answer.
GONE = 499


class Body(BaseModel):
    """What any completion request may say besides what its dialect knows.

    Attributes:
        mode: "exact", "healed" or "plain".
        until: "line" or "block".
        n_indent: end before a line indented by less.
        threshold: offer nothing less probable.
        max_bytes: of a completion.
    """

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    mode: Mode | None = None
    until: Until | None = None
    n_indent: int | None = None
    threshold: float | None = None
    max_bytes: int | None = None

    def common(self, server: Server) -> Message:
        """These, as `Asked` takes them."""
        return {
            "mode": self.mode or server.settings.mode,
            "until": self.until,
            "indent": self.n_indent or 0,
            "threshold": self.threshold or 0.0,
            "max_bytes": self.max_bytes,
        }


Kind = TypeVar("Kind", bound=BaseModel)


async def read(request: Request, server: Server, kind: type[Kind]) -> Kind:
    """The body of a request.

    Raises:
        Refused: it is too long. ValidationError: it is no such request.
    """
    parts, size, most = list[bytes](), 0, server.settings.most_body
    try:
        async for part in request.stream():
            parts.append(part)
            size += len(part)
            if size > most:
                raise Refused(413, f"the body of this request has more than {most} bytes.")
    except ClientDisconnect:
        raise Refused(400, "the body of this request broke off.") from None
    return kind.model_validate_json(b"".join(parts) or b"{}")


async def answered(request: Request, work: Awaitable[Result]) -> Result | Literal[False]:
    """What some work comes to; False, and it is ended, if the client leaves before."""
    found = await while_connected(cast(Receive, request.receive), _wrapped(work))
    return False if found is None else found[0]


async def _wrapped(work: Awaitable[Result]) -> tuple[Result]:
    return (await work,)


def respond(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON, without a space: there are clients that look for `"content":"`."""
    return JSONResponse(content, status, headers)


def gone() -> Response:
    """For a client that left."""
    return Response(status_code=GONE)


async def events(
    request: Request, chunks: AsyncGenerator[bytes], kind: str = "text/event-stream"
) -> Response:
    """A stream of chunks; it ends with its client. What fails before the first is an error."""
    first = await answered(request, anext(chunks, b""))
    if first is False:
        await chunks.aclose()
        return gone()

    async def every() -> AsyncIterator[bytes]:
        try:
            yield first
            async for chunk in chunks:
                yield chunk
        finally:
            await chunks.aclose()

    return StreamingResponse(every(), media_type=kind, headers={"cache-control": "no-cache"})


def event(chunk: Message) -> bytes:
    """A server-sent event.

    >>> event({"content": "y"})
    b'data: {"content":"y"}\\n\\n'
    """
    return b"data: " + line(chunk) + b"\n"


def line(chunk: Message) -> bytes:
    """A line of JSON."""
    return json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
