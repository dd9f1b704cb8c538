"""llama.cpp's own endpoints: `/infill`, `/completion`, `/props`, `/tokenize`, `/detokenize`."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from charwise.api.http import json_response
from charwise.api.request import (
    MOST_COMPLETIONS,
    MOST_TOKENS,
    CompletionRequest,
    Extensions,
    Prompts,
    Real,
    Whole,
)
from charwise.api.writer import Message, end_words
from charwise.serve.dialect import Writer, add_endpoint, respond
from charwise.serve.engine import Engine
from charwise.serve.task import Answer, Candidate, Task


class _CompletionBody(Extensions):
    """`/completion`; `/infill` takes more."""

    prompt: Prompts = ""
    n_predict: Whole | None = Field(None, le=MOST_TOKENS)
    max_tokens: Whole | None = Field(None, le=MOST_TOKENS)
    temperature: Real | None = Field(None, ge=0)
    top_k: Whole | None = None
    top_p: Real | None = None
    samplers: list[str] | None = None
    seed: Whole | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    n_cmpl: Whole | None = Field(None, ge=1, le=MOST_COMPLETIONS)
    n: Whole | None = Field(None, ge=1, le=MOST_COMPLETIONS)
    t_max_predict_ms: Real | None = None
    response_fields: list[str] | None = None

    def translated(self) -> CompletionRequest:
        """Return the request in OpenAI's form."""
        self.check_present("prompt")
        return self._translated(self.prompt)

    def _translated(
        self, prompt: Any, suffix: str | None = None, usual: int | None = None
    ) -> CompletionRequest:
        """The request with this prompt and suffix, in OpenAI's form, of `usual` tokens at most.

        A negative number, and an empty stop string, is none. Where a list of samplers has none of
        temperature, the most probable is taken: so editors mean it. A completion with no bound on
        its tokens ends with its block, unless the request says where else.
        """
        limit = self.n_predict if self.n_predict is not None else self.max_tokens
        most = usual if limit is None else limit
        stop = self.stop or ()
        stops = [one for one in ([stop] if isinstance(stop, str) else stop) if one]
        cold = self.samplers is not None and "temperature" not in self.samplers
        endless = (limit is None or limit < 0) and not stops and self.form is None
        ends: Message = {"until": "block"} if endless else {}
        milliseconds, top_p = self.t_max_predict_ms or 0, self.top_p or 0
        return CompletionRequest(
            prompt=prompt,
            suffix=suffix,
            n=self.n_cmpl or self.n or 1,
            temperature=0.0 if cold else self.temperature,
            top_k=self.top_k,
            top_p=min(top_p, 1.0) if top_p > 0 else None,
            stream=self.stream,
            max_tokens=MOST_TOKENS if most is None or most < 0 else most,
            seed=None if self.seed is None else max(self.seed, -1),
            stop=stops,
            line_seconds=milliseconds / 1000 if milliseconds > 0 else None,
            **{**ends, **self.extensions},
        )


class _Extra(BaseModel):
    """A part of another file, beside `/infill`."""

    filename: str = "tmp"
    text: str = ""


class _InfillBody(_CompletionBody):
    """`/infill`."""

    prompt: str = ""
    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[_Extra] | None = None

    def translated(self) -> CompletionRequest:
        self.check_suffix("input_suffix")
        self.check_present("input_prefix", "input_suffix", "prompt")
        # In this order as in llama.cpp's server; so many tokens as its editors ask for.
        return self._translated(self.input_prefix + self.prompt, self.input_suffix, usual=128)

    @property
    def files(self) -> tuple[tuple[str, str], ...]:
        """The other files, and the beginning of the one with the cursor, as `Task` has them."""
        every = [(one.filename, one.text) for one in self.input_extra or ()]
        texts = [f"{name}\n{text}" + "\n" * (not text.endswith("\n")) for name, text in every]
        return tuple(("<|file_sep|>", text) for text in [*texts, ""] if texts)


class _TokenizeBody(BaseModel):
    """`/tokenize`. The names of special tokens in a text are text."""

    content: str
    add_special: bool = False
    with_pieces: bool = False
    parse_special: Literal[False] | None = None


class _DetokenizeBody(BaseModel):
    """`/detokenize`."""

    tokens: list[Whole]


def router(engine: Engine, name: str) -> APIRouter:
    """Return the routes of a server, whose model has this name."""
    routes, vocabulary = APIRouter(), engine.lm.vocabulary

    async def complete(request: Request, body: _CompletionBody) -> Response:
        return await respond(request, engine, partial(_Completions, name, body))

    @routes.get("/props")
    async def props() -> Response:
        settings = {"n_ctx": engine.lm.engine.window, "params": {"temperature": 0.0}}
        described = {
            "default_generation_settings": settings,
            "total_slots": 1,
            "model_path": name,
            "model_alias": name,
            "build_info": "charwise",
            "modalities": {"vision": False, "audio": False},
        }
        return json_response(described)

    async def tokenize(_: Request, body: _TokenizeBody) -> Response:
        ids = await asyncio.to_thread(vocabulary.encode, body.content)  # may be long
        if body.add_special:
            ids = [*vocabulary.bos_ids, *ids]
        if not body.with_pieces:
            return json_response({"tokens": ids})
        pieces = [{"id": id, "piece": _piece(vocabulary.tokens[id] or b"")} for id in ids]
        return json_response({"tokens": pieces})

    async def detokenize(_: Request, body: _DetokenizeBody) -> Response:
        return json_response({"content": vocabulary.decode(body.tokens).decode("utf-8", "replace")})

    add_endpoint(routes, "/infill", _InfillBody, complete, "input_prefix")
    add_endpoint(routes, "/completion", _CompletionBody, complete)
    add_endpoint(routes, "/tokenize", _TokenizeBody, tokenize, "content")
    add_endpoint(routes, "/detokenize", _DetokenizeBody, detokenize, "tokens")
    return routes


def _piece(raw: bytes) -> str | list[int]:
    """Text, or bytes that are no part of one, as llama.cpp lists them."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


class _Completions(Writer):
    """A request for completions."""

    def __init__(self, name: str, body: _CompletionBody) -> None:
        self._name, self._body = name, body
        request = body.translated()
        files = body.files if isinstance(body, _InfillBody) else ()
        self.streamed = bool(body.stream)
        self.tasks = [Task.of(request, prompt, files=files) for prompt in request.prompts]

    def new_text(self, index: int, text: str) -> Message:
        return {"index": index, "content": text, "tokens": [], "stop": False}

    def whole(self, choices: list[Message], answers: Sequence[Answer]) -> Any:
        # A list, unless one choice was asked for.
        return choices[0] if len(self.tasks) == self.tasks[0].options.n == 1 else choices

    def choice(self, index: int, task: Task, answer: Answer, candidate: Candidate) -> Message:
        one, new = candidate, len(candidate.pieces)
        unknown = max(answer.prompt_tokens - answer.cached_tokens, 0)
        timings = {
            "cache_n": answer.cached_tokens,
            **_timings("prompt", unknown, answer.prompt_seconds),
            **_timings("predicted", new, max(answer.seconds - answer.prompt_seconds, 0.0)),
        }
        fields: Message = {
            "index": index,
            "content": "" if task.streamed else one.text,
            "tokens": [],
            "id_slot": 0,
            "stop": True,
            "model": self._name,
            "tokens_predicted": new,
            "tokens_evaluated": answer.prompt_tokens,
            "has_new_line": "\n" in one.text,
            "truncated": answer.truncated,
            "stop_type": end_words(one.finish)[1],
            "stopping_word": (one.stopped_by or b"").decode("utf-8", "replace"),
            "tokens_cached": answer.cached_tokens,
            "timings": timings,
            "probability": one.probability,
            "finish": one.finish,
        }
        if (names := self._body.response_fields) is None:
            return fields
        return {name: value for name in names for value in _nested(fields, name)}


def _nested(fields: Message, name: str) -> list[Any]:
    """The value of a field, `a/b` for field b of a; none where there is no such field."""
    value: Any = fields
    for part in name.split("/"):
        if not isinstance(value, dict) or part not in value:
            return []
        value = value[part]
    return [value]


def _timings(name: str, tokens: int, seconds: float) -> Message:
    """The time of so many tokens, of the prompt or predicted."""
    ms = 1000 * seconds
    return {
        f"{name}_n": tokens,
        f"{name}_ms": ms,
        f"{name}_per_token_ms": ms / max(tokens, 1),
        f"{name}_per_second": 1000 * tokens / max(ms, 1e-3),
    }
