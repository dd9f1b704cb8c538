"""The exchange between a client and the server behind: calls out, one answer back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from charwise.api.errors import Refused, UpstreamError, status_of
from charwise.api.http import json_response, refusal, stream_response, until_left
from charwise.api.writer import DONE, Message, event
from charwise.errors import CharwiseError
from charwise.processors.openai.answer import Answer, usage_of
from charwise.processors.openai.upstream import BROKEN_OFF, Upstream, merged


class Form(Protocol):
    """How the answers to some calls are told to the client, as one."""

    @property
    def bodies(self) -> list[Message]:
        """The requests to the server behind: one body for each call."""
        ...

    @property
    def streams(self) -> bool:
        """Whether the client wants a stream."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the end of every choice has come."""
        ...

    def add(self, number: int, chunk: Message) -> Message | None:
        """Take a chunk of a call, and return the stream's events for it."""
        ...

    def needs_no_more(self, number: int) -> bool:
        """Whether a call may end now."""
        ...

    def whole(self) -> Message:
        """Return the whole answer."""
        ...

    def tail(self) -> list[bytes]:
        """Return the events after the last chunk of a stream."""
        ...


class OpenAIForm:
    """Completions and chat of OpenAI's API; see `Form`.

    Args:
        answers: to come, one for each call.
    """

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers = answers
        self.bodies = [answer.call.body for answer in answers]
        self.streams = answers[0].streams

    @property
    def complete(self) -> bool:
        """Whether every choice has ended: half an answer must not pass for a whole one."""
        return all(answer.told_all for answer in self._answers)

    def add(self, number: int, chunk: Message) -> Message | None:
        """Take a chunk; the same id and time stand on the chunks of all calls."""
        if not isinstance(chunk.get("choices"), list):
            said = str(chunk)[:80]
            raise UpstreamError(f"the server behind answered {said}, which has no choices.")
        choices = self._answers[number].add(chunk)
        first = self._answers[0].top
        same = {name: first[name] for name in ("id", "created") if name in first}
        return chunk | same | {"choices": choices} if choices else None

    def needs_no_more(self, number: int) -> bool:
        """Whether every choice of a call has ended."""
        return self._answers[number].ended

    def whole(self) -> Message:
        """Return the choices of all calls, numbered through."""
        choices = [choice for answer in self._answers for choice in answer.choices()]
        return self._answers[0].top | {"choices": choices, "usage": usage_of(self._answers)}

    def tail(self) -> list[bytes]:
        """Return the usage, if it is wanted, and the end mark."""
        if not any(answer.tells_usage for answer in self._answers):
            return [DONE]
        last = self._answers[0].top | {"choices": [], "usage": usage_of(self._answers)}
        return [event(last), DONE]


class Exchange:
    """Calls of the server behind for every prompt, and one answer to the client.

    Args:
        app: the server behind.
        form: of the answer.
        most: bytes of one of the server's answers, or events, that are read.
        tells_refusals: whether the client is told an answer of the server that is no completion,
            an error as a rule.
        behind: address of the server, for errors; none where it is in this process.
    """

    def __init__(
        self,
        app: ASGIApp,
        form: Form,
        *,
        most: int | None = None,
        tells_refusals: bool = True,
        behind: str = "",
    ) -> None:
        self._app = app
        self._form = form
        self._tells_refusals = tells_refusals
        self._behind = behind
        self._calls = [Upstream(json.dumps(body).encode(), most=most) for body in form.bodies]

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Answer a client; return whether it was answered, or has left.

        A client that leaves ends the calls, and gets no answer. Between two calls others have
        their turn: to make one takes the server a few milliseconds.
        """
        calls, tells = self._calls, self._tells_refusals
        left = asyncio.create_task(end_with_client(receive, calls))
        tasks = []
        try:
            for call in calls:
                tasks.append(asyncio.create_task(call.run(self._app, scope, len(calls) > 1)))
                await asyncio.sleep(0)
            for call in calls:
                await call.started.wait()
            for call, task in zip(calls, tasks, strict=True):
                if call.status is None and not left.done():
                    await task  # raises what the server raised
                if call.status is not None and call.status != 200 and not left.done():
                    if tells:
                        await call.relay(send)
                    return tells
            if left.done():
                return True
            response = await (self._stream if self._form.streams else self._respond)(left)
            if response is not None and not left.done():
                await response(scope, _leaving(left), send)
            return response is not None or left.done()
        finally:
            left.cancel()
            for call in calls:
                call.gone.set()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _told(self, left: asyncio.Task[None]) -> AsyncIterator[Message | bytes]:
        """Yield the events of the calls: chunks, errors of the server, and comments as bytes.

        Raises:
            UpstreamError: that was not all of it.
        """
        failed = False  # which the server has said itself
        async for number, chunk in merged(self._calls):
            if isinstance(chunk, bytes) or "error" in chunk:
                failed = failed or not isinstance(chunk, bytes)
                yield chunk
                continue
            choices = chunk.get("choices")
            # Many choices take a while to read: others have their turn meanwhile.
            if isinstance(choices, list) and len(choices) > 16:
                told = await asyncio.to_thread(self._form.add, number, chunk)
            else:
                told = self._form.add(number, chunk)
            if self._form.needs_no_more(number):
                self._calls[number].gone.set()
            if told is not None:
                yield told
        if not (failed or self._form.complete or left.done()):
            raise UpstreamError(BROKEN_OFF)

    async def _respond(self, left: asyncio.Task[None]) -> Response | None:
        """Return one JSON object; None for a refusal that is not told, or if the client left."""
        try:
            async for told in self._told(left):
                if isinstance(told, dict) and "error" in told:
                    hidden = not self._tells_refusals and status_of(told) < 500
                    return None if hidden else json_response(told, status_of(told))
        except CharwiseError as error:
            return refusal(self._failure(error))
        if left.done():
            return None
        return json_response(self._form.whole(), 200, self._calls[0].headers)

    async def _stream(self, left: asyncio.Task[None]) -> Response | None:
        """Return a stream; None for a refusal that is not told, or if the client left.

        A grammar is read when the first token is due, so that an answer with one does not begin
        before that.
        """
        headers = self._calls[0].headers
        if self._tells_refusals or "structured_outputs" not in self._form.bodies[0]:
            return stream_response(self._events(left), 200, headers)
        events = self._events(left, hides_refusal=True)
        try:
            first = await anext(events)
        except (_Hidden, StopAsyncIteration):
            return None

        async def every() -> AsyncIterator[bytes]:
            yield first
            async for part in events:
                yield part

        return stream_response(every(), 200, headers)

    async def _events(
        self, left: asyncio.Task[None], hides_refusal: bool = False
    ) -> AsyncIterator[bytes]:
        """Yield server-sent events; no end mark if that was not all of them."""
        try:
            async for told in self._told(left):
                refused = isinstance(told, dict) and "error" in told and status_of(told) < 500
                if hides_refusal and refused:
                    raise _Hidden
                hides_refusal = False  # the answer has begun
                yield told if isinstance(told, bytes) else event(told)  # bytes keep the connection
        except CharwiseError as error:
            yield event(self._failure(error).body)
            return
        if not left.done():
            for part in self._form.tail():
                yield part

    def _failure(self, error: CharwiseError) -> Refused:
        """Return the refusal for an error of the server behind, never the client's fault."""
        message = f"{self._behind}: {error}" if self._behind else str(error)
        return Refused(getattr(error, "status", 500), message)


class _Hidden(Exception):
    """A refusal that is not told."""


async def end_with_client(receive: Receive, calls: Sequence[Upstream]) -> None:
    """Give the calls up once the client leaves."""
    await until_left(receive)
    for call in calls:
        call.gone.set()


def _leaving(left: asyncio.Task[None]) -> Receive:
    """Return a `receive` that hears only of the client's leaving, for which `left` waits."""

    async def receive() -> Message:
        await asyncio.wait({left})
        return {"type": "http.disconnect"}

    return receive
