"""OpenAI's API: `/v1/completions`, `/v1/chat/completions` and `/v1/models`."""

import time
from collections.abc import Sequence
from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from charwise.api.http import json_response
from charwise.api.request import ChatRequest, CompletionRequest
from charwise.api.writer import (
    DONE,
    Message,
    chat_logprobs,
    choice,
    end_words,
    finite,
    head,
    spelled,
    usage,
)
from charwise.serve.dialect import Writer, add_endpoint, respond
from charwise.serve.engine import Engine
from charwise.serve.prompt import chat_prompt, parse_prompt
from charwise.serve.task import Answer, Candidate, Piece, Task
from charwise.tokens.utf8 import decoder_after


def router(engine: Engine, name: str) -> APIRouter:
    """Return the routes of a server, whose model has this name."""
    routes = APIRouter()
    model = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "charwise"}

    async def complete(request: Request, body: CompletionRequest) -> Response:
        writer = _Chat if isinstance(body, ChatRequest) else _Completions
        return await respond(request, engine, partial(writer, engine, name, body))

    add_endpoint(routes, "/v1/completions", CompletionRequest, complete)
    add_endpoint(routes, "/v1/chat/completions", ChatRequest, complete, "messages")

    @routes.get("/v1/models")
    async def models() -> Response:
        return json_response({"object": "list", "data": [model], "models": [model]})

    return routes


class _Completions(Writer):
    """A request for completions. An echo, and log-probabilities, come when a choice is whole."""

    end = DONE

    def __init__(self, engine: Engine, name: str, body: CompletionRequest) -> None:
        body.check()
        self._vocabulary, self._body = engine.lm.vocabulary, body
        self.streamed = bool(body.stream)
        self.tasks = self._tasks()
        self._prompts = [self._prompt_text(task) if body.echo else "" for task in self.tasks]
        self._top = self._head(name)
        options = body.stream_options
        self._tells_usage = options is not None and bool(options.include_usage)

    def _tasks(self) -> list[Task]:
        return [Task.of(self._body, prompt, must_fit=True) for prompt in self._body.prompts]

    def _head(self, name: str) -> Message:
        return head(name)

    def new_text(self, index: int, text: str) -> Message:
        return choice(index, text)

    def choice(self, index: int, task: Task, answer: Answer, candidate: Candidate) -> Message:
        text = self._prompts[index // task.options.n] + candidate.text
        top, pieces = task.top, [*answer.echo, *candidate.pieces]
        logprobs = None if top is None else _logprobs(pieces, top)
        details = {
            "text": candidate.text,
            "finish": candidate.finish,
            "probability": candidate.probability,
            "tokens": [spelled(piece.raw) for piece in candidate.pieces],
            "from_memory": answer.from_memory,
            "truncated": answer.truncated,
        }
        reason = end_words(candidate.finish)[0]
        one = choice(index, "" if task.streamed else text, reason, logprobs)
        return one | {"charwise": details}

    def chunk(self, choice: Message) -> Message:
        empty: Message = {"usage": None} if self._tells_usage else {}
        return self._top | {"choices": [choice]} | empty

    def tail(self, answers: Sequence[Answer]) -> Sequence[Message]:
        numbers = {"choices": [], "usage": _usage(answers)}
        return [self._top | numbers] if self._tells_usage else []

    def whole(self, choices: list[Message], answers: Sequence[Answer]) -> Message:
        return self._top | {"choices": choices, "usage": _usage(answers)}

    def _prompt_text(self, task: Task) -> str:
        if isinstance(task.prompt, str):
            return task.prompt
        return parse_prompt(task, self._vocabulary).before.decode("utf-8", "replace")


class _Chat(_Completions):
    """A request for a chat."""

    _body: ChatRequest

    def _tasks(self) -> list[Task]:
        prompt = chat_prompt(self._body, self._vocabulary)
        return [Task.of(self._body.translated(), prompt, must_fit=True)]

    def _head(self, name: str) -> Message:
        return head(name, "chat.completion.chunk" if self.streamed else "chat.completion")

    def head(self) -> Sequence[Message]:
        role = {"role": "assistant", "content": ""}
        return [self.chunk(_delta(index, role)) for index in range(self.tasks[0].options.n)]

    def new_text(self, index: int, text: str) -> Message:
        return _delta(index, {"content": text})

    def choice(self, index: int, task: Task, answer: Answer, candidate: Candidate) -> Message:
        one = super().choice(index, task, answer, candidate)
        logprobs = one["logprobs"] and chat_logprobs(one["logprobs"])
        text = one.pop("text")
        if self.streamed:
            content = {} if task.streamed else {"content": text}
            return _delta(index, content, one["finish_reason"]) | {"logprobs": logprobs}
        message = {"role": "assistant", "content": text}
        return one | {"message": message, "logprobs": logprobs}


def _delta(index: int, delta: Message, reason: str | None = None) -> Message:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}


def _logprobs(pieces: Sequence[Piece], top: int) -> Message:
    """Tokens with their log-probabilities, and the offsets in the text at which they begin."""
    decoder, at, offsets = decoder_after(b""), 0, []
    for piece in pieces:
        offsets.append(at)
        at += len(decoder.decode(piece.raw))
    every = [piece.top or ((piece.raw, piece.logprob),) for piece in pieces]
    tops = [{spelled(raw): finite(logprob) for raw, logprob in one} for one in every]
    return {
        "tokens": [spelled(piece.raw) for piece in pieces],
        "bytes": [list(piece.raw) for piece in pieces],
        "token_logprobs": [finite(own) for (_, own), *_ in every],
        "top_logprobs": tops if top else None,
        "text_offset": offsets,
    }


def _usage(answers: Sequence[Answer]) -> Message:
    """The numbers of tokens of a request's prompts and their answers."""
    return usage(
        sum(one.prompt_tokens for one in answers),
        sum(one.new_tokens for one in answers),
        sum(one.cached_tokens for one in answers),
    )
