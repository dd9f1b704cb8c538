"""OpenAI's chat completions: `/v1/chat/completions`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from charwise.api.chat import ChatRequest, chat_head, chat_logprobs
from charwise.api.responses import json_response
from charwise.api.writer import DONE, event
from charwise.serve.http import answered, gone, read, stream
from charwise.serve.messages import prompt_of
from charwise.serve.openai import check_fits, choices_of, usage_of
from charwise.serve.server import Server
from charwise.serve.task import Answer, CompletionTask

Message = dict[str, Any]


def router(server: Server) -> APIRouter:
    """Return the route of a server."""
    routes = APIRouter()

    @routes.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        body = await read(request, server, ChatRequest)
        body.check()
        prompt = prompt_of(
            [one.rendered for one in body.messages],
            server.lm.vocabulary,
            continued=body.continue_final_message,
            generation=body.add_generation_prompt is not False,
            variables=body.chat_template_kwargs,
        )
        task = CompletionTask.of(body.translated(), prompt, server.settings.mode)
        await asyncio.to_thread(check_fits, server, task)
        if body.stream:
            return await stream(request, _streamed(server, body, task), end=DONE)
        found = await answered(request, server.answer(task))
        if found is False:
            return gone()
        choices = [_choice(one) for one in choices_of(server, body, task, found[0])]
        top = chat_head(server.settings.name, streamed=False)
        return json_response(
            top | {"choices": choices, "usage": usage_of(server, [(task, found[0])])}
        )

    return routes


def _choice(one: Message) -> Message:
    """Return a choice of a completion as one of a chat."""
    logprobs = one["logprobs"]
    return {
        "index": one["index"],
        "message": {"role": "assistant", "content": one["text"]},
        "logprobs": None if logprobs is None else chat_logprobs(logprobs),
        "finish_reason": one["finish_reason"],
        "charwise": one["charwise"],
    }


def _delta(index: int, delta: Message, reason: str | None = None) -> Message:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}


async def _streamed(
    server: Server, body: ChatRequest, task: CompletionTask
) -> AsyncGenerator[bytes]:
    """Yield chunks, as the answers are drawn. Log-probabilities come when a choice is whole."""
    top = chat_head(server.settings.name, streamed=True)
    tells = body.stream_options is not None and bool(body.stream_options.include_usage)
    empty: Message = {"usage": None} if tells else {}
    for index in range(task.n):
        begun = _delta(index, {"role": "assistant", "content": ""})
        yield event(top | {"choices": [begun]} | empty)
    async for piece in server.stream(task):
        if not isinstance(piece, Answer):
            yield event(top | {"choices": [_delta(piece[0], {"content": piece[1]})]} | empty)
            continue
        for one in map(_choice, choices_of(server, body, task, piece)):
            last = _delta(one["index"], {}, one["finish_reason"])
            yield event(top | {"choices": [last | {"logprobs": one["logprobs"]}]} | empty)
        if tells:
            yield event(top | {"choices": [], "usage": usage_of(server, [(task, piece)])})
