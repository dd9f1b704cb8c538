"""One healed request in the form of llama.cpp's own `/completion`."""

from __future__ import annotations

import asyncio
import json

from charwise.errors import CharwiseError
from charwise.processors.openai.asgi_call import BROKEN_OFF, Upstream, UpstreamError
from charwise.processors.openai.exchange import (
    App,
    Receive,
    Send,
    end_with_client,
    error_of,
    send_error,
    send_json,
    status_for,
    status_of,
    without_length,
)
from charwise.processors.proxy.answer import Message, NativeAnswer, TextAnswer


async def exchange_native(
    app: App,
    scope: Message,
    receive: Receive,
    send: Send,
    answer: TextAnswer,
    most: int | None = None,
) -> None:
    """Ask the server behind, and answer the client in the same form; see `exchange`."""
    call = Upstream(json.dumps(answer.body).encode(), most=most)
    task = asyncio.create_task(call.run(app, scope, one_of_many=False))
    watch = asyncio.create_task(end_with_client(receive, [call]))
    try:
        await call.started.wait()
        if call.status is None:
            await task  # raises what the server raised
        elif call.status != 200:
            await call.relay(send)
        else:
            await (_stream if answer.streams else _respond)(send, call, NativeAnswer(answer))
    finally:
        watch.cancel()
        call.gone.set()
        await asyncio.gather(task, return_exceptions=True)


async def _respond(send: Send, call: Upstream, answer: NativeAnswer) -> None:
    """One JSON object, from one or from a stream of them."""
    text, last = "", None
    try:
        async for chunk in call.chunks():
            if isinstance(chunk, bytes):
                continue
            told = chunk if "error" in chunk else answer.add(chunk)
            if told is not None:
                last = told
                text += told.get("content", "")
            elif answer.ended and last is not None:
                last = {**chunk, **last}  # what only the server's last word has: its timings
            if "error" in chunk or answer.answer.stopped is not None or chunk.get("stop"):
                break
        if call.gone.is_set():
            return  # the client left
        if last is None or not ("error" in last or answer.ended):
            raise UpstreamError(BROKEN_OFF)
    except CharwiseError as error:
        await send_error(send, status_for(error), str(error))
        return
    if "error" in last:
        await send_json(send, status_of(last), last, call.headers)
    else:
        await send_json(send, 200, {**last, "content": text}, call.headers)


async def _stream(send: Send, call: Upstream, answer: NativeAnswer) -> None:
    """Server-sent events, without an end mark."""
    headers = without_length(call.headers)
    await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def event(data: bytes) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})

    failed = False  # which the server has said itself
    try:
        async for chunk in call.chunks():
            if isinstance(chunk, bytes):
                await event(chunk)
            elif "error" in chunk:
                await event(_event(chunk))
                failed = True
                break
            elif (told := answer.add(chunk)) is not None:
                await event(_event(told))
            if answer.ended:
                break
        if not (failed or answer.ended or call.gone.is_set()):
            raise UpstreamError(BROKEN_OFF)
    except CharwiseError as error:
        await event(_event({"error": error_of(status_for(error), str(error))}))
    await send({"type": "http.response.body", "body": b""})


def _event(told: Message) -> bytes:
    return b"data: " + json.dumps(told, separators=(",", ":")).encode() + b"\n\n"
