"""llama.cpp's own endpoints: `/infill`, `/completion`, `/health`, `/props`, `/tokenize`, …"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from charwise.api.errors import Refused
from charwise.api.http import json_response
from charwise.api.limits import SERVER
from charwise.api.request import CompletionRequest, Extensions, llama_limits
from charwise.api.writer import Message, characters, event, finite, spelled
from charwise.serve.http import answered, read, stream
from charwise.serve.prompts import sides_of
from charwise.serve.server import Server
from charwise.serve.task import NOTHING, Answer, Candidate, CompletionTask, Piece
from charwise.tokens.prompts import Prompt

#: Our ends in their words.
_TYPES = {"end": "eos", "constraint": "eos", "stop": "word"}


class _CompletionBody(Extensions):
    """`/completion`; `/infill` takes more."""

    prompt: str | list[str | int | list[str | int]] = ""
    n_predict: int | None = Field(None, le=SERVER.tokens)
    max_tokens: int | None = Field(None, le=SERVER.tokens)
    temperature: float | None = Field(None, ge=0)
    top_k: int | None = None
    top_p: float | None = None
    samplers: list[str] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    n_cmpl: int | None = None
    n: int | None = None
    n_probs: int | None = Field(None, ge=0, le=100)
    t_max_predict_ms: float | None = None
    response_fields: list[str] | None = None
    return_tokens: bool | None = None

    @property
    def prompts(self) -> list[Prompt]:
        """Each prompt: a text, or a list of token ids and texts. A list with an id in it is one.

        Raises:
            Refused: there are too many, or ids beside whole prompts.
        """
        several: Any = self.prompt
        if isinstance(several, str) or not several:  # no ids are a prompt, too
            return [several]
        if any(isinstance(part, int) for part in several):
            if any(isinstance(part, list) for part in several):
                raise Refused(400, "prompt has ids beside lists: put the ids in a list.", "prompt")
            return [several]
        if excess := SERVER.exceeded(len(several), 1, None, None):
            raise Refused(400, f"{excess}: send several requests.", "prompt")
        return list(several)

    @property
    def files(self) -> tuple[tuple[str, str], ...]:
        """Other files, as `CompletionTask` has them."""
        return ()

    @property
    def suffix(self) -> str | None:
        """The text after the completion; None where it is not known."""
        return None

    def translated(self) -> CompletionRequest:
        """Return the request in OpenAI's form, but for its prompt.

        Where a list of samplers has none of temperature, the most probable is taken: so editors
        mean it. A negative number of tokens is no bound: unless the request says where else it
        ends, such a completion ends with its block.
        """
        most = self.n_predict if self.n_predict is not None else self.max_tokens
        cold = self.samplers is not None and "temperature" not in self.samplers
        line = self.t_max_predict_ms
        endless = (most is None or most < 0) and not any(self.stop or ()) and self.form is None
        ends: Message = {"until": "block"} if endless else {}
        return CompletionRequest(
            n=self.n_cmpl or self.n or 1,
            temperature=0.0 if cold else self.temperature,
            top_k=self.top_k,
            **llama_limits(most, self.top_p, self.seed, self.stop),
            line_seconds=None if line is None or line <= 0 else line / 1000,
            logprobs=self.n_probs or None,
            suffix=self.suffix,
            **{**ends, **self.extensions},
        )


class _Extra(BaseModel):
    """A part of another file, beside `/infill`."""

    model_config = ConfigDict(extra="ignore")

    filename: str = "tmp"
    text: str = ""

    @property
    def whole(self) -> str:
        """Its path and its text, a line each at least."""
        return f"{self.filename}\n{self.text}" + "\n" * (not self.text.endswith("\n"))


class _InfillBody(_CompletionBody):
    """`/infill`."""

    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[_Extra] | None = None

    @property
    def prompts(self) -> list[Prompt]:
        """`prompt` comes after the prefix, as in llama.cpp's server."""
        if not isinstance(self.prompt, str):
            raise Refused(400, "prompt is the text before the cursor on its line.", "prompt")
        return [self.input_prefix + self.prompt]

    @property
    def files(self) -> tuple[tuple[str, str], ...]:
        """The other files, and the beginning of the one with the cursor."""
        every = [one.whole for one in self.input_extra or ()]
        return tuple(("<|file_sep|>", text) for text in [*every, ""] if every)

    @property
    def suffix(self) -> str | None:
        """The text after the cursor."""
        return self.input_suffix


class _TokenizeBody(BaseModel):
    """`/tokenize`."""

    model_config = ConfigDict(extra="ignore")

    content: str | None = None
    add_special: bool = False
    with_pieces: bool = False


class _DetokenizeBody(BaseModel):
    """`/detokenize`."""

    model_config = ConfigDict(extra="ignore")

    tokens: list[int] = []


def router(server: Server) -> APIRouter:
    """The routes of a server."""
    routes = APIRouter()

    async def complete(request: Request, body: _CompletionBody) -> Response:
        asked = body.translated()
        tasks = [CompletionTask.of(asked, prompt, body.files) for prompt in body.prompts]
        for task in tasks:
            sides_of(task, server.lm.vocabulary)
        if body.stream:
            return await stream(request, _streamed(server, body, tasks))

        async def answers() -> list[Answer]:
            return [await server.answer(task) for task in tasks]

        found = await answered(request, answers())
        every = [
            _message(server, body, answer, one, number * task.options.n + at)
            for number, (task, answer) in enumerate(zip(tasks, found, strict=True))
            for at, one in enumerate(answer.candidates or (NOTHING,))
        ]
        return json_response(every[0] if len(tasks) == task.options.n == 1 else every)

    @routes.post("/infill")
    async def infill(request: Request) -> Response:
        return await complete(request, await read(request, server, _InfillBody))

    @routes.post("/completion")
    async def completion(request: Request) -> Response:
        return await complete(request, await read(request, server, _CompletionBody))

    @routes.get("/health")
    async def health() -> Response:
        return json_response({"status": "ok"})

    @routes.get("/props")
    async def props() -> Response:
        return json_response(_props(server))

    @routes.post("/tokenize")
    async def tokenize(request: Request) -> Response:
        body = await read(request, server, _TokenizeBody)
        vocabulary = server.lm.vocabulary
        ids = vocabulary.encode(body.content or "")
        if body.add_special:
            ids = [*vocabulary.bos_ids, *ids]
        if not body.with_pieces:
            return json_response({"tokens": ids})
        pieces = [{"id": id, "piece": _piece(vocabulary.tokens[id] or b"")} for id in ids]
        return json_response({"tokens": pieces})

    @routes.post("/detokenize")
    async def detokenize(request: Request) -> Response:
        body = await read(request, server, _DetokenizeBody)
        raw = server.lm.vocabulary.decode(body.tokens)
        return json_response({"content": characters(raw)})

    return routes


def _props(server: Server) -> Message:
    """Return the description of the server."""
    window = server.lm.engine.window
    return {
        "default_generation_settings": {"n_ctx": window, "params": {"temperature": 0.0}},
        "total_slots": 1,
        "model_path": server.settings.name,
        "model_alias": server.settings.name,
        "build_info": "charwise",
        "modalities": {"vision": False, "audio": False},
        "fills_in": server.completions.template is not None,
    }


def _piece(raw: bytes) -> str | list[int]:
    """Text, or bytes that are no part of one, as llama.cpp lists them."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


def _message(
    server: Server, body: _CompletionBody, answer: Answer, one: Candidate, index: int
) -> Message:
    """A whole answer, or those of its fields that were asked for."""
    known = answer.cached
    found: Message = {
        "index": index,
        "content": one.text,
        "tokens": [piece.id for piece in one.pieces] if body.return_tokens else [],
        "id_slot": 0,
        "stop": True,
        "model": server.settings.name,
        "tokens_predicted": len(one.pieces),
        "tokens_evaluated": answer.prompt_tokens,
        "has_new_line": "\n" in one.text,
        "truncated": answer.truncated,
        "stop_type": _TYPES.get(one.finish, "limit"),
        "stopping_word": characters(one.stopped_by or b""),
        "tokens_cached": known,
        "timings": _timings(answer, one),
        "probability": one.probability,
        "accept_word": one.accept_word,
        "accept_line": one.accept_line,
        "finish": one.finish,
    }
    if body.n_probs:
        found["completion_probabilities"] = [_probabilities(piece) for piece in one.pieces]
    if body.response_fields is None:
        return found
    return {name: value for name in body.response_fields for value in _nested(found, name)}


def _nested(found: Message, name: str) -> list[Any]:
    """The value of a field, `a/b` for field b of a; none where there is no such field."""
    value: Any = found
    for part in name.split("/"):
        if not isinstance(value, dict) or part not in value:
            return []
        value = value[part]
    return [value]


def _timings(answer: Answer, one: Candidate) -> Message:
    read_ = max(answer.prompt_tokens - answer.cached, 0)
    written = len(one.pieces)
    prompt_ms = 1000 * answer.prompt_seconds
    predicted_ms = 1000 * max(answer.seconds - answer.prompt_seconds, 0.0)
    return {
        "cache_n": answer.cached,
        "prompt_n": read_,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / max(read_, 1),
        "prompt_per_second": 1000 * read_ / max(prompt_ms, 1e-3),
        "predicted_n": written,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / max(written, 1),
        "predicted_per_second": 1000 * written / max(predicted_ms, 1e-3),
    }


def _probabilities(piece: Piece) -> Message:
    every: list[Message] = [
        {"token": spelled(raw), "bytes": list(raw), "logprob": finite(logprob)}
        for raw, logprob in piece.top
    ]
    ordered = sorted(every, key=lambda one: -one["logprob"])
    return {"id": piece.id, **every[0], "top_logprobs": ordered}


async def _streamed(
    server: Server, body: _CompletionBody, tasks: list[CompletionTask]
) -> AsyncGenerator[bytes]:
    """Pieces as they are drawn, one prompt after the other; last of each, all but the content."""
    for number, task in enumerate(tasks):
        first = number * task.options.n
        async for piece in server.stream(task):
            if isinstance(piece, Answer):
                for at, one in enumerate(piece.candidates or (NOTHING,), first):
                    yield event(_message(server, body, piece, one, at) | {"content": ""})
            else:
                at, text = piece
                yield event({"index": first + at, "content": text, "tokens": [], "stop": False})
