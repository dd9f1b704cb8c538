"""One healed request in the form of llama.cpp's own `/completion`."""

from __future__ import annotations

import asyncio
import json

from charwise.errors import CharwiseError
from charwise.processors.openai.asgi_call import Upstream
from charwise.processors.openai.exchange import (
    App,
    Receive,
    Send,
    end_with_client,
    send_error,
    send_json,
    status_of,
)
from charwise.processors.proxy.answer import Message, NativeAnswer, TextAnswer


async def exchange_native(
    app: App, scope: Message, receive: Receive, send: Send, answer: TextAnswer
) -> None:
    """Ask the server behind, and answer the client in the same form."""
    call = Upstream(json.dumps(answer.body).encode())
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
    except CharwiseError as error:
        await send_error(send, 500, str(error))
        return
    if last is None or call.gone.is_set():
        return  # the client left
    if "error" in last:
        await send_json(send, status_of(last), last, call.headers)
    else:
        await send_json(send, 200, {**last, "content": text}, call.headers)


async def _stream(send: Send, call: Upstream, answer: NativeAnswer) -> None:
    """Server-sent events, without an end mark."""
    await send({"type": "http.response.start", "status": 200, "headers": call.headers})

    async def event(data: bytes) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})

    try:
        async for chunk in call.chunks():
            if isinstance(chunk, bytes):
                await event(chunk)
            elif "error" in chunk:
                await event(_event(chunk))
                break
            elif (told := answer.add(chunk)) is not None:
                await event(_event(told))
            if answer.ended:
                break
    except CharwiseError as error:
        message = {"code": 500, "message": str(error), "type": "server_error"}
        await event(_event({"error": message}))
    await send({"type": "http.response.body", "body": b""})


def _event(told: Message) -> bytes:
    return b"data: " + json.dumps(told, separators=(",", ":")).encode() + b"\n\n"
