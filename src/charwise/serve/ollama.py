"""Ollama's `/api/generate` and `/api/tags`, as far as completing goes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from charwise.api.limits import SERVER
from charwise.api.request import CompletionRequest, Extensions
from charwise.api.responses import json_response
from charwise.api.writer import line
from charwise.serve.http import answered, gone, read, stream
from charwise.serve.prompts import sides_of
from charwise.serve.server import Server
from charwise.serve.task import NOTHING, Answer, Candidate, CompletionTask

Message = dict[str, Any]


class Options(BaseModel):
    """`options` of a request."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    temperature: float | None = Field(default=None, ge=0)
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    num_predict: int | None = Field(default=None, le=SERVER.tokens)
    stop: str | list[str] | None = None


class GenerateBody(Extensions):
    """`/api/generate`. No template is applied."""

    model: str | None = None
    prompt: str = ""
    suffix: str | None = None
    stream: bool = True
    options: Options | None = None

    def translated(self) -> CompletionRequest:
        """Return the request in OpenAI's form. A negative number of tokens is no bound."""
        options = self.options or Options()
        most, top_p, seed = options.num_predict, options.top_p, options.seed
        stop = [options.stop] if isinstance(options.stop, str) else options.stop or []
        return CompletionRequest(
            prompt=self.prompt,
            suffix=self.suffix,
            max_tokens=SERVER.tokens if most is None or most < 0 else most,
            temperature=options.temperature,
            top_p=None if top_p is None or top_p <= 0 else min(top_p, 1.0),
            top_k=options.top_k,
            seed=None if seed is None or seed < 0 else seed,
            stop=[one for one in stop if one],
            **self.extensions,
        )


def router(server: Server) -> APIRouter:
    """The routes of a server."""
    routes = APIRouter()

    @routes.post("/api/generate")
    async def generate(request: Request) -> Response:
        body = await read(request, server, GenerateBody)
        task = CompletionTask.of(body.translated(), body.prompt, server.settings.mode)
        sides_of(task, server.lm.vocabulary)
        if body.stream:
            chunks = _streamed(server, task)
            return await stream(request, chunks, write=line, kind="application/x-ndjson")
        answer = await answered(request, server.answer(task))
        if answer is False:
            return gone()
        one = (answer[0].candidates or (NOTHING,))[0]
        return json_response(_message(server, one.text) | _last(answer[0], one))

    @routes.get("/api/tags")
    async def tags() -> Response:
        name = server.settings.name
        began = datetime.fromtimestamp(server.started, UTC).isoformat()
        details = {"format": "charwise", "family": server.lm.info().get("model", "")}
        model = {"name": name, "model": name, "modified_at": began, "size": 0, "details": details}
        return json_response({"models": [model]})

    return routes


def _message(server: Server, text: str) -> Message:
    now = datetime.now(UTC).isoformat()
    return {"model": server.settings.name, "created_at": now, "response": text, "done": False}


def _last(answer: Answer, one: Candidate) -> Message:
    reading = int(1e9 * answer.prompt_seconds)
    return {
        "done": True,
        "done_reason": "length" if one.finish in ("length", "window", "time") else "stop",
        "total_duration": int(1e9 * answer.seconds),
        "load_duration": 0,
        "prompt_eval_count": answer.prompt_tokens,
        "prompt_eval_duration": reading,
        "eval_count": len(one.pieces),
        "eval_duration": max(0, int(1e9 * answer.seconds) - reading),
    }


async def _streamed(server: Server, task: CompletionTask) -> AsyncGenerator[bytes]:
    """A line of JSON for each piece."""
    async for piece in server.stream(task):
        if isinstance(piece, Answer):
            one = (piece.candidates or (NOTHING,))[0]
            yield line(_message(server, "") | _last(piece, one))
        else:
            yield line(_message(server, piece[1]))
