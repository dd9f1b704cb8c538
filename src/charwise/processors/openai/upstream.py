"""One call into the application behind an ASGI middleware, and its answer, as it comes.

httpx's `ASGITransport` makes such calls too, but hands out a response when all of it is there: it
cannot stream, nor tell the application that nobody listens any more. So this is our own.

A header of the answer tells what became of the request: healed, or not and why.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as Event

from charwise.api.errors import Refused, UpstreamError
from charwise.api.http import refusal
from charwise.api.writer import Message
from charwise.processors.openai.answer import Answer

#: What is said of an answer that lacks its end.
BROKEN_OFF = "the server behind ended its answer before it was finished."


class Upstream:
    """A request with a body of our own.

    Attributes:
        started: set once the status is known, or the call is over.
        gone: set it to tell the server that nobody listens any more.
        status, headers: of the response.

    Args:
        body: of the request.
        receive: where further messages come from; by default only `gone` makes one.
        more: whether they go on with the body, whose length is then not ours to say.
        most: bytes of an answer in one piece, or of an event of a stream, that are read; more is
            an error. None for no bound.
    """

    def __init__(
        self,
        body: bytes,
        receive: Receive | None = None,
        more: bool = False,
        most: int | None = None,
    ):
        self.started = asyncio.Event()
        self.gone = asyncio.Event()
        self.status: int | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        self._body: bytes | None = body
        self._length = len(body)
        self._receive = receive
        self._more = more
        self._most = most
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._failure: Exception | None = None

    def scope(self, scope: Scope, one_of_many: bool = False) -> Scope:
        """The client's scope with our length; of many calls, each gets an id of its own."""
        if self._more:
            return scope
        dropped = {b"content-length"} | ({b"x-request-id"} if one_of_many else set())
        headers = [pair for pair in scope["headers"] if pair[0] not in dropped]
        return {**scope, "headers": [*headers, (b"content-length", b"%d" % self._length)]}

    async def run(self, app: ASGIApp, scope: Scope, one_of_many: bool) -> None:
        """Make the call, to its end."""
        try:
            await app(self.scope(scope, one_of_many), self.receive, self._send)
        except Exception as error:  # also for whoever reads: what came is not the whole answer
            self._failure = error
            raise
        finally:
            self.started.set()
            self._parts.put_nowait(None)

    async def receive(self) -> Event:
        """Return the client's messages for the server."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": self._more}
        if self._receive is not None:
            return await self._receive()
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Event) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message.get("headers", ()))
            self.started.set()
        elif message.get("body"):
            self._parts.put_nowait(message["body"])

    async def parts(self) -> AsyncIterator[bytes]:
        """The body of the response, as it comes, until it ends or is given up.

        Raises whatever broke the response off.
        """
        while True:
            part = await self._parts.get()
            if self.gone.is_set():
                return
            if part is None:
                if self._failure is not None:
                    raise self._failure
                return
            yield part

    async def chunks(self) -> AsyncIterator[Message | bytes]:
        """JSON objects: one, or those of a stream of events; comments, and the like, as bytes.

        Raises:
            UpstreamError: what is none, or longer than may be. Whatever broke the response off is
                raised as it is.
        """
        kind = dict(self.headers).get(b"content-type", b"")
        if not kind.startswith(b"text/event-stream"):
            whole = bytearray()
            async for part in self.parts():
                whole += part
                self._check_length(len(whole))
            if not self.gone.is_set():  # else what there is is part of an answer, or none
                yield _object(bytes(whole))
            return
        text = bytearray()
        async for part in self.parts():
            seen = max(0, len(text) - len(_ENDS) + 1)  # no end of an event begins before
            text += part
            begin = 0
            while end := _EVENT_END.search(text, max(begin, seen)):
                event, begin = bytes(text[begin : end.start()]), end.end()
                if not event.startswith(b"data:"):
                    yield event + b"\n\n"
                elif event != b"data: [DONE]":
                    yield _object(event.removeprefix(b"data:"))
            del text[:begin]
            self._check_length(len(text))

    def _check_length(self, length: int) -> None:
        if self._most is not None and length > self._most:
            raise UpstreamError(
                f"the server behind sent more than {self._most} bytes that are no whole answer, or "
                "no whole event of a stream."
            )

    async def relay(self, send: Send) -> None:
        """Hand the response on as it is."""
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        async for part in self.parts():
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


#: The end of an event, and the longest text that it may be.
_EVENT_END = re.compile(rb"\r?\n\r?\n")
_ENDS = b"\r\n\r\n"


def _object(text: bytes) -> Message:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UpstreamError(f"the server behind answered {text[:80]!r}, which is no JSON object.")
    return found


async def merged(calls: Sequence[Upstream]) -> AsyncIterator[tuple[int, Message | bytes]]:
    """(number of the call, chunk) of several calls at once, in the order in which they come."""
    queue: asyncio.Queue[tuple[int, Message | bytes | BaseException | None]] = asyncio.Queue()

    async def read(number: int, call: Upstream) -> None:
        try:
            async for chunk in call.chunks():
                queue.put_nowait((number, chunk))
            queue.put_nowait((number, None))
        except Exception as error:  # told to whoever reads
            queue.put_nowait((number, error))

    readers = [asyncio.create_task(read(number, call)) for number, call in enumerate(calls)]
    try:
        ended = 0
        while ended < len(calls):
            number, chunk = await queue.get()
            if isinstance(chunk, BaseException):
                raise chunk
            if chunk is None:
                ended += 1
            else:
                yield number, chunk
                await asyncio.sleep(0)  # many may have come at once: others have their turn
    finally:
        for reader in readers:
            reader.cancel()


#: The header's name.
HEADER = b"x-charwise"


class Outcome(NamedTuple):
    """Healed, unless there is a reason why not.

    Attributes:
        reason: one word, why the request goes through as it came.
        given_back: tokens that its prompts gave back, together.
        forced: bytes that are reproduced, together.
        method: "mask" or "exact".
        taken_over: bytes of suffixes that their middles end with, together.

    >>> Outcome(None, 2, 5).header, Outcome("max_tokens").header
    ('healed; given-back=2; forced=5', 'off; reason=max_tokens')
    """

    reason: str | None = None
    given_back: int = 0
    forced: int = 0
    method: str = "mask"
    taken_over: int = 0

    @classmethod
    def of(cls, found: Sequence[Answer] | str) -> Outcome:
        """Of the prompts that are healed together, or of why they are not."""
        if isinstance(found, str):
            return cls(found)
        healed = [answer.healed for answer in found]
        forced = sum(len(each.forced) for each in healed)
        given_back = sum(each.given_back for each in healed)
        return cls(None, given_back, forced, taken_over=sum(len(each.ending) for each in healed))

    @property
    def header(self) -> str:
        """The header's value."""
        if self.reason is not None:
            return f"off; reason={self.reason}"
        more = f"; taken-over={self.taken_over}" if self.taken_over else ""
        more += "; method=exact" if self.method == "exact" else ""
        return f"healed; given-back={self.given_back}; forced={self.forced}{more}"


def telling(send: Send, outcome: Outcome) -> Send:
    """A `send` that adds the header to any form of response.

    What was not answered with a completion (an error, a redirection) was not healed.
    """

    async def tell(message: Event) -> None:
        if message["type"] == "http.response.start":
            became = outcome
            if message["status"] != 200 and outcome.reason is None:
                became = Outcome("refused")
            headers = [*message.get("headers", ()), (HEADER, became.header.encode())]
            message = {**message, "headers": headers}
        await send(message)

    return tell


async def refuse(why: str, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a client that its request cannot be healed."""
    await refusal(Refused(400, why))(scope, receive, telling(send, Outcome("refused")))
