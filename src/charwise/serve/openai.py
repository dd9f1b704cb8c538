"""OpenAI's API: `/v1/completions`, `/v1/chat/completions` and `/v1/models`."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from charwise.api.chat import ChatRequest, chat_head, chat_logprobs
from charwise.api.errors import Refused
from charwise.api.http import json_response
from charwise.api.request import CompletionRequest
from charwise.api.writer import (
    DONE,
    Message,
    characters,
    choice,
    event,
    finite,
    head,
    spelled,
    usage,
)
from charwise.serve.alternatives import prompt_pieces
from charwise.serve.http import answered, read, stream
from charwise.serve.messages import prompt_of
from charwise.serve.prompts import check_room, prompt_tokens, sides_of
from charwise.serve.server import Server
from charwise.serve.task import NOTHING, Answer, Candidate, CompletionTask, Piece
from charwise.tokens.utf8 import decoder_after

#: Ends of ours that are stops of theirs; the others are lengths.
_STOPS = {"end", "stop", "line", "block", "suffix", "constraint"}


def router(server: Server) -> APIRouter:
    """Return the routes of a server."""
    routes = APIRouter()

    @routes.post("/v1/completions")
    async def completions(request: Request) -> Response:
        body = await read(request, server, CompletionRequest)
        body.check()
        every = [CompletionTask.of(body, prompt) for prompt in body.prompts]
        for task in every:
            sides = sides_of(task, server.lm.vocabulary)
            if not sides.between and len(sides.before) >= (server.lm.engine.window or math.inf):
                await asyncio.to_thread(_check_fits, server, task)  # a token has a byte at least
        return await _reply(server, request, body, every)

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
        task = CompletionTask.of(body.translated(), prompt)
        await asyncio.to_thread(_check_fits, server, task)
        return await _reply(server, request, body, [task])

    @routes.get("/v1/models")
    async def models() -> Response:
        listed = [_model(server)]
        return json_response({"object": "list", "data": listed, "models": listed})

    @routes.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        if name != server.settings.name:
            raise Refused(404, f"there is no model {name[:80]!r} here.", "model")
        return json_response(_model(server))

    return routes


async def _reply(
    server: Server, request: Request, body: CompletionRequest, every: list[CompletionTask]
) -> Response:
    if body.stream:
        streamed = _streamed_chat if isinstance(body, ChatRequest) else _streamed
        return await stream(request, streamed(server, body, every), end=DONE)
    found = await answered(request, _answers(server, body, every))
    choices = [
        one
        for number, prompted in enumerate(found)
        for one in _choices(server, body, *prompted, number)
    ]
    if isinstance(body, ChatRequest):
        top, choices = (
            chat_head(server.settings.name, streamed=False),
            list(map(_said, choices)),
        )
    else:
        top = head(server.settings.name)
    return json_response(top | {"choices": choices, "usage": _usage(server, found)})


def _check_fits(server: Server, task: CompletionTask) -> None:
    """Refuse a prompt that does not fit; editors have it cut at the far end."""
    check_room(prompt_tokens(task, server.lm.vocabulary), server.lm.engine.window)


def _model(server: Server) -> Message:
    return {
        "id": server.settings.name,
        "object": "model",
        "created": server.started,
        "owned_by": "charwise",
    }


#: A request, its answer, and the pieces of its prompt where they are wanted.
Found = tuple[CompletionTask, Answer, Sequence[Piece]]


async def _answers(
    server: Server, body: CompletionRequest, every: list[CompletionTask]
) -> list[Found]:
    """Return the answers to some requests, one after the other."""
    found = []
    for task in every:
        echoed: Sequence[Piece] = ()
        if body.echo and body.logprobs is not None:
            echoed = await server.run(
                lambda lm, task=task: prompt_pieces(lm, task)  # type: ignore[misc]
            )
        found.append((task, await server.answer(task), echoed))
    return found


def _choices(
    server: Server,
    body: CompletionRequest,
    task: CompletionTask,
    answer: Answer,
    echoed: Sequence[Piece] = (),
    number: int = 0,
) -> list[Message]:
    """Return the choices of one prompt, the `number`th of its request."""
    candidates = answer.candidates or (NOTHING,)
    before = _prompt_text(server, task) if body.echo else ""
    more = {"from_memory": answer.from_memory}
    found = []
    for at, one in enumerate(candidates):
        top = task.top
        logprobs = None if top is None else _logprobs([*echoed, *one.pieces], top)
        reason = "stop" if one.finish in _STOPS else "length"
        written = choice(number * task.options.n + at, before + one.text, reason, logprobs)
        found.append(written | {"charwise": _details(one) | more})
    return found


def _details(one: Candidate) -> Message:
    """Return all that is known of a candidate, beside OpenAI's fields."""
    return {
        "text": one.text,
        "finish": one.finish,
        "probability": one.probability,
        "accept_word": one.accept_word,
        "accept_line": one.accept_line,
        "tokens": [spelled(piece.raw) for piece in one.pieces],
    }


def _prompt_text(server: Server, task: CompletionTask) -> str:
    if isinstance(task.prompt, str):
        return task.prompt
    return characters(sides_of(task, server.lm.vocabulary).before)


def _logprobs(pieces: Sequence[Piece], top: int) -> Message:
    """Return tokens with their log-probabilities, and where in the text they begin."""
    decoder, at, offsets = decoder_after(b""), 0, []
    for piece in pieces:
        offsets.append(at)
        at += len(decoder.decode(piece.raw))
    return {
        "tokens": [spelled(piece.raw) for piece in pieces],
        "bytes": [list(piece.raw) for piece in pieces],
        "token_logprobs": [finite(piece.shown) for piece in pieces],
        "top_logprobs": [_alternatives(piece) for piece in pieces] if top else None,
        "text_offset": offsets,
    }


def _alternatives(piece: Piece) -> Message:
    every = piece.top or ((piece.raw, piece.logprob),)
    return {spelled(raw): finite(logprob) for raw, logprob in every}


def _usage(server: Server, found: Sequence[Found]) -> Message:
    """Return the numbers of tokens of a request's prompts and their answers.

    Prompts are counted anew: what is known of one says nothing of its length.
    """
    lengths = [prompt_tokens(task, server.lm.vocabulary) for task, _, _ in found]
    cached = (min(one.cached, n) for n, (_, one, _) in zip(lengths, found, strict=True))
    return usage(sum(lengths), sum(one.written for _, one, _ in found), sum(cached))


class _Chunks:
    """The chunks of a stream, of which the last tells the usage where that is wanted."""

    def __init__(self, body: CompletionRequest, top: Message) -> None:
        self._top = top
        options = body.stream_options
        self.tells_usage = options is not None and bool(options.include_usage)

    def of(self, choice: Message) -> bytes:
        """Return a chunk with one choice."""
        empty: Message = {"usage": None} if self.tells_usage else {}
        return event(self._top | {"choices": [choice]} | empty)

    def last(self, numbers: Message) -> bytes:
        """Return the chunk with the usage."""
        return event(self._top | {"choices": [], "usage": numbers})


async def _streamed(
    server: Server, body: CompletionRequest, every: list[CompletionTask]
) -> AsyncGenerator[bytes]:
    """Yield chunks, as the candidates of each prompt are drawn, one prompt after the other.

    An echo, and log-probabilities, come in one chunk when the choice is whole.
    """
    chunks = _Chunks(body, head(server.settings.name))
    found: list[Found] = []
    for number, task in enumerate(every):
        if body.echo or body.logprobs is not None:
            found += await _answers(server, body, [task])
            for one in _choices(server, body, *found[-1], number):
                yield chunks.of(one)
            continue
        async for piece in server.stream(task):
            if isinstance(piece, Answer):
                found.append((task, piece, ()))
                for one in _choices(server, body, task, piece, (), number):
                    yield chunks.of(one | {"text": ""})
            else:
                yield chunks.of(choice(number * task.options.n + piece[0], piece[1]))
    if chunks.tells_usage:
        yield chunks.last(_usage(server, found))


def _said(one: Message) -> Message:
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


async def _streamed_chat(
    server: Server, body: CompletionRequest, every: list[CompletionTask]
) -> AsyncGenerator[bytes]:
    """Yield chunks, as the answers are drawn. Log-probabilities come when a choice is whole."""
    chunks = _Chunks(body, chat_head(server.settings.name, streamed=True))
    [task] = every
    for index in range(task.options.n):
        yield chunks.of(_delta(index, {"role": "assistant", "content": ""}))
    async for piece in server.stream(task):
        if not isinstance(piece, Answer):
            yield chunks.of(_delta(piece[0], {"content": piece[1]}))
            continue
        for one in map(_said, _choices(server, body, task, piece)):
            last = _delta(one["index"], {}, one["finish_reason"])
            yield chunks.of(last | {"logprobs": one["logprobs"]})
        if chunks.tells_usage:
            yield chunks.last(_usage(server, [(task, piece, ())]))
