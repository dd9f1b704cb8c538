"""Ollama's endpoints: `/api/generate`, `/api/chat`, `/api/tags`, `/api/show`, `/api/version`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from importlib.metadata import version as charwise_version

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from charwise.api.chat import ChatMessage
from charwise.api.http import json_response
from charwise.api.limits import SERVER
from charwise.api.request import CompletionRequest, Extensions, llama_limits
from charwise.api.writer import Message, line
from charwise.serve.http import answered, read, stream
from charwise.serve.messages import prompt_of
from charwise.serve.prompts import sides_of
from charwise.serve.server import Server
from charwise.serve.task import NOTHING, Answer, Candidate, CompletionTask


class _Options(BaseModel):
    """`options` of a request."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    temperature: float | None = Field(default=None, ge=0)
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    num_predict: int | None = Field(default=None, le=SERVER.tokens)
    stop: str | list[str] | None = None


class _Body(Extensions):
    """The common fields of `/api/generate` and `/api/chat`."""

    model: str | None = None
    stream: bool = True
    options: _Options | None = None

    def translated(self, prompt: str = "", suffix: str | None = None) -> CompletionRequest:
        """Return the request in OpenAI's form. A negative number of tokens is no bound."""
        options = self.options or _Options()
        return CompletionRequest(
            prompt=prompt,
            suffix=suffix,
            temperature=options.temperature,
            top_k=options.top_k,
            **llama_limits(options.num_predict, options.top_p, options.seed, options.stop),
            **self.extensions,
        )


class _GenerateBody(_Body):
    """`/api/generate`. No template is applied."""

    prompt: str = ""
    suffix: str | None = None


class _ShowBody(BaseModel):
    """`/api/show`; any name stands for the one model."""

    model_config = ConfigDict(extra="ignore")


class _ChatBody(_Body):
    """`/api/chat`. A last message of the assistant is continued."""

    messages: list[ChatMessage] = Field(min_length=1)


def router(server: Server) -> APIRouter:
    """The routes of a server."""
    routes = APIRouter()

    @routes.post("/api/generate")
    async def generate(request: Request) -> Response:
        body = await read(request, server, _GenerateBody)
        asked = body.translated(body.prompt, body.suffix)
        task = CompletionTask.of(asked, body.prompt, server.settings.mode)
        sides_of(task, server.lm.vocabulary)
        return await answer(request, body, task, _generated)

    @routes.post("/api/chat")
    async def chat(request: Request) -> Response:
        body = await read(request, server, _ChatBody)
        prompt = prompt_of(
            [one.rendered for one in body.messages],
            server.lm.vocabulary,
            continued=body.messages[-1].role == "assistant",
        )
        task = CompletionTask.of(body.translated(), prompt, server.settings.mode)
        return await answer(request, body, task, _said)

    async def answer(
        request: Request, body: _Body, task: CompletionTask, written: Callable[[str], Message]
    ) -> Response:
        if body.stream:
            chunks = _streamed(server, task, written)
            return await stream(request, chunks, write=line, kind="application/x-ndjson")
        found = await answered(request, server.answer(task))
        one = (found.candidates or (NOTHING,))[0]
        return json_response(_message(server) | written(one.text) | _last(found, one))

    @routes.get("/api/version")
    async def version() -> Response:
        return json_response({"version": charwise_version("charwise")})

    @routes.post("/api/show")
    async def show(request: Request) -> Response:
        await read(request, server, _ShowBody)
        return json_response(_shown(server))

    @routes.get("/api/tags")
    async def tags() -> Response:
        name = server.settings.name
        began = datetime.fromtimestamp(server.started, UTC).isoformat()
        model = {"name": name, "model": name, "modified_at": began, "size": 0}
        return json_response({"models": [model | {"details": _details(server)}]})

    return routes


def _shown(server: Server) -> Message:
    """Return the description of the model."""
    return {
        "modelfile": "",
        "parameters": "",
        "template": server.lm.vocabulary.chat_template or "",
        "details": _details(server),
        "model_info": {"general.context_length": server.lm.engine.window},
        "capabilities": ["completion"] + ["insert"] * (server.completions.template is not None),
    }


def _details(server: Server) -> Message:
    return {"format": "charwise", "family": server.lm.info().get("model", "")}


def _generated(text: str) -> Message:
    return {"response": text}


def _said(text: str) -> Message:
    return {"message": {"role": "assistant", "content": text}}


def _message(server: Server) -> Message:
    now = datetime.now(UTC).isoformat()
    return {"model": server.settings.name, "created_at": now, "done": False}


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


async def _streamed(
    server: Server, task: CompletionTask, written: Callable[[str], Message]
) -> AsyncGenerator[bytes]:
    """A line of JSON for each piece."""
    async for piece in server.stream(task):
        if isinstance(piece, Answer):
            one = (piece.candidates or (NOTHING,))[0]
            yield line(_message(server) | written("") | _last(piece, one))
        else:
            yield line(_message(server) | written(piece[1]))
