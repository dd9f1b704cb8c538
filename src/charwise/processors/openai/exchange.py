"""The exchange between a client and the server behind: calls out, one answer back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from charwise.errors import CharwiseError
from charwise.processors.openai.answer import Answer, usage_of
from charwise.processors.openai.asgi_call import BROKEN_OFF, Upstream, UpstreamError, merged

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]
Result = TypeVar("Result")

#: Choices of one chunk that are read on the event loop; more take a while, and others have a turn.
_AT_ONCE = 16


async def exchange(
    app: App,
    scope: Message,
    receive: Receive,
    send: Send,
    answers: list[Answer],
    *,
    most: int | None = None,
    tells_refusals: bool = True,
) -> bool:
    """Ask the server behind for every prompt, and answer the client as one.

    A client that leaves ends the calls, and gets no answer. Between two calls others have their
    turn: to make one takes the server a few milliseconds.

    Args:
        app: the server behind.
        scope, receive, send: of the client's request.
        answers: to come, one for each call.
        most: bytes of one of its answers, or events, that are read.
        tells_refusals: whether the client is told what the server answers in place of a
            completion, an error as a rule.

    Returns:
        Whether the client was answered, or has left.
    """
    calls = [Upstream(json.dumps(answer.body).encode(), most=most) for answer in answers]
    watch = asyncio.create_task(end_with_client(receive, calls))
    tasks = []
    try:
        for call in calls:
            tasks.append(asyncio.create_task(call.run(app, scope, len(calls) > 1)))
            await asyncio.sleep(0)
        for call in calls:
            await call.started.wait()
        for call, task in zip(calls, tasks, strict=True):
            if call.status is None and not watch.done():
                await task  # raises what the server raised
            if call.status is not None and call.status != 200 and not watch.done():
                if tells_refusals:
                    await call.relay(send)
                return tells_refusals
        if not watch.done():
            tell = _stream if answers[0].streams else _respond
            return await tell(send, calls, answers, watch, tells_refusals)
        return True
    finally:
        watch.cancel()
        for call in calls:
            call.gone.set()
        await asyncio.gather(*tasks, return_exceptions=True)


async def end_with_client(receive: Receive, calls: Sequence[Upstream]) -> None:
    """Give the calls up once the client leaves."""
    await until_left(receive)
    for call in calls:
        call.gone.set()


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result | None:
    """What some work comes to; None, and the work is cancelled, if the client leaves before."""
    task, watch = asyncio.create_task(work), asyncio.create_task(until_left(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def until_left(receive: Receive) -> None:
    """Ends when the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _respond(
    send: Send,
    calls: list[Upstream],
    answers: list[Answer],
    left: asyncio.Task[None],
    tells_refusals: bool,
) -> bool:
    """One JSON object; none if the client left. False for a refusal that is not told."""
    try:
        async for number, chunk in merged(calls):
            if isinstance(chunk, bytes):
                continue
            if "error" in chunk:
                if not tells_refusals and status_of(chunk) < 500:
                    return False
                await send_json(send, status_of(chunk), chunk, [])
                return True
            if len(_with_choices(chunk)["choices"]) > _AT_ONCE:
                await asyncio.to_thread(answers[number].add, chunk)
            else:
                answers[number].add(chunk)
            if answers[number].ended:
                calls[number].gone.set()
        if not left.done():
            _check_whole(answers)
    except CharwiseError as error:
        await send_error(send, status_for(error), str(error))
        return True
    if left.done():
        return True
    body = answers[0].top | {
        "choices": [choice for answer in answers for choice in answer.choices()],
        "usage": usage_of(answers),
    }
    await send_json(send, 200, body, calls[0].headers)
    return True


async def _stream(
    send: Send,
    calls: list[Upstream],
    answers: list[Answer],
    left: asyncio.Task[None],
    tells_refusals: bool,
) -> bool:
    """Server-sent events, until the client leaves; no end mark if that was not all of them.

    False for a refusal that is not told: a grammar is read when the first token is due, so that an
    answer with one does not begin before that.
    """
    headers = without_length(calls[0].headers)
    started = False

    async def start() -> None:
        nonlocal started
        if not started:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        started = True

    async def event(data: bytes) -> None:
        await start()
        await send({"type": "http.response.body", "body": data, "more_body": True})

    first = answers[0].top
    failed = False  # which it has said itself
    if tells_refusals or "structured_outputs" not in answers[0].body:
        await start()
    try:
        async for number, chunk in merged(calls):
            if isinstance(chunk, bytes):  # a comment, to keep the connection alive
                await event(chunk)
                continue
            answer = answers[number]
            if "error" in chunk:
                if not started and status_of(chunk) < 500:
                    return False
                failed = True
                await event(_event(chunk))
            elif choices := answer.add(_with_choices(chunk)):
                same = {name: first[name] for name in ("id", "created") if name in first}
                await event(_event(chunk | same | {"choices": choices}))
            if answer.ended:
                calls[number].gone.set()
        if not (failed or left.done()):
            _check_whole(answers)
    except CharwiseError as error:
        await event(_event({"error": error_of(status_for(error), str(error))}))
        await send({"type": "http.response.body", "body": b""})
        return True
    if left.done():
        return True
    if any(answer.tells_usage for answer in answers):
        await event(_event(first | {"choices": [], "usage": usage_of(answers)}))
    await event(b"data: [DONE]\n\n")
    await send({"type": "http.response.body", "body": b""})
    return True


def _check_whole(answers: list[Answer]) -> None:
    """Refuse what came if some choice has no end: half an answer must not pass for a whole one."""
    if not all(answer.told_all for answer in answers):
        raise UpstreamError(BROKEN_OFF)


def status_for(error: CharwiseError) -> int:
    """The status that tells a client of an error: a server's is not ours."""
    return error.status if isinstance(error, UpstreamError) else 500


def _with_choices(chunk: Message) -> Message:
    """The chunk, which has choices, if only none."""
    if not isinstance(chunk.get("choices"), list):
        raise UpstreamError(f"the server behind answered {str(chunk)[:80]}, which has no choices.")
    return chunk


async def read_up_to(receive: Receive, most: int) -> tuple[bytes, bool] | None:
    """The body of a request, or its beginning of about `most` bytes; and whether that is all.

    None if the client leaves before: what came is no request.
    """
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if not message.get("more_body"):
            return b"".join(parts), True
        if size > most:
            return b"".join(parts), False


def without_length(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Headers of a stream that is written anew: its length is not that of the one behind."""
    return [pair for pair in headers if pair[0] != b"content-length"]


def _event(chunk: Message) -> bytes:
    return b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n"


#: What an error is called; any other is an internal one.
_KINDS = {400: "BadRequestError", 502: "BadGateway", 504: "GatewayTimeout"}


def error_of(status: int, message: str) -> Message:
    """An error in the form of OpenAI's API.

    >>> error_of(504, "late")["type"], error_of(500, "lost")["type"]
    ('GatewayTimeout', 'InternalServerError')
    """
    kind = _KINDS.get(status, "InternalServerError")
    return {"message": message, "type": kind, "param": None, "code": status}


async def send_error(send: Send, status: int, message: str) -> None:
    """Answer with an error, in the form of OpenAI's API."""
    await send_json(send, status, {"error": error_of(status, message)}, [])


def status_of(answer: Message) -> int:
    """The status that an error of the server behind names; 500 if it names none.

    >>> status_of({"error": {"code": 404}}), status_of({"error": {"code": None}})
    (404, 500)
    """
    error = answer["error"]
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and 400 <= code < 600 else 500


async def send_json(
    send: Send, status: int, content: Message, headers: list[tuple[bytes, bytes]]
) -> None:
    """Answer with a JSON object, and these headers but for those of the body."""
    body = json.dumps(content, ensure_ascii=False).encode()
    rest = [pair for pair in headers if pair[0] not in (b"content-length", b"content-type")]
    own = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": rest + own})
    await send({"type": "http.response.body", "body": body})
