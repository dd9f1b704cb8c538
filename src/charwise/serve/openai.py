"""OpenAI's completions: `/v1/completions` and `/v1/models`."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from charwise.serve.asked import MOST_TOKENS, NOTHING, Answer, Asked, Candidate, Piece
from charwise.serve.bodies import Body, answered, event, events, gone, read, respond
from charwise.serve.prompts import sides_of
from charwise.serve.refusals import Refused, body_of, refusal_of
from charwise.serve.scored import prompt_pieces
from charwise.serve.server import Server
from charwise.tokens.prompt_parts import Prompt
from charwise.tokens.utf8 import decoder_after

Message = dict[str, Any]

#: Tokens of a completion that says nothing of its length, and prompts of one request at most.
_TOKENS, _PROMPTS = 16, 256

#: What of our ends are stops of theirs; the others are lengths.
_STOPS = {"end", "stop", "line", "block", "suffix"}


class StreamOptions(Body):
    """What a stream ends with."""

    include_usage: bool | None = None


class CompletionBody(Body):
    """`/v1/completions`. Fields that are not listed are ignored."""

    model: str | None = None
    prompt: str | list[str] | list[int] | list[list[int]] = ""
    suffix: str | None = None
    max_tokens: int | None = Field(_TOKENS, ge=0, le=MOST_TOKENS)
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = None
    top_k: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=100)
    best_of: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None

    def check(self) -> None:
        """Refuse what would be ignored, and change the answer.

        Raises:
            Refused: which field that is.
        """
        if self.best_of not in (None, 1, self.n or 1):
            raise Refused(400, "best_of is more than n: the n best are what n gives.", "best_of")
        for name in ("presence_penalty", "frequency_penalty", "logit_bias"):
            if getattr(self, name):
                raise Refused(400, f"{name} is not known here: leave it out.", name)
        if self.stream_options is not None and not self.stream:
            raise Refused(400, "stream_options are for streams: set stream.", "stream_options")

    def prompts(self) -> list[Prompt]:
        """Each prompt.

        Raises:
            Refused: there are none, or too many.
        """
        several = self.prompt
        if isinstance(several, str):
            return [several]
        if not several:
            raise Refused(400, "prompt is an empty list.", "prompt")
        found: list[Prompt] = [several] if isinstance(several[0], int) else list(several)
        if len(found) > _PROMPTS:
            raise Refused(400, f"{len(found)} prompts: {_PROMPTS} are the most.", "prompt")
        return found

    def asked(self, prompt: Prompt, server: Server) -> Asked:
        """The request for one prompt."""
        return Asked(
            prompt,
            self.suffix,
            n=1 if self.n is None else self.n,
            max_tokens=_TOKENS if self.max_tokens is None else self.max_tokens,
            temperature=self.temperature or 0.0,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=max(0, self.top_k or 0),
            seed=self.seed,
            stop=tuple([self.stop] if isinstance(self.stop, str) else self.stop or ()),
            top=self.logprobs,
            **self.common(server),
        )


def router(server: Server) -> APIRouter:
    """The routes of a server."""
    routes = APIRouter()

    @routes.post("/v1/completions")
    async def completions(request: Request) -> Response:
        body = await read(request, server, CompletionBody)
        body.check()
        every = [body.asked(prompt, server) for prompt in body.prompts()]
        for asked in every:
            sides_of(asked, server.lm.vocabulary)
        if body.stream:
            return await events(request, _streamed(server, body, every))
        found = await answered(request, _answers(server, body, every))
        if found is False:
            return gone()
        choices = [
            one
            for number, (asked, answer, echoed) in enumerate(found)
            for one in _choices(server, body, asked, answer, echoed, number)
        ]
        return respond(_top(server) | {"choices": choices, "usage": _usage(found)})

    @routes.get("/v1/models")
    async def models() -> Response:
        return respond({"object": "list", "data": [_model(server)], "models": [_model(server)]})

    @routes.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        if name != server.settings.name:
            raise Refused(404, f"there is no model {name[:80]!r} here.", "model")
        return respond(_model(server))

    return routes


def _model(server: Server) -> Message:
    return {
        "id": server.settings.name,
        "object": "model",
        "created": server.started,
        "owned_by": "charwise",
    }


def _top(server: Server) -> Message:
    return {
        "id": f"cmpl-{secrets.token_hex(12)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": server.settings.name,
    }


Found = tuple[Asked, Answer, Sequence[Piece]]


async def _answers(server: Server, body: CompletionBody, every: list[Asked]) -> list[Found]:
    """Each request's answer, and the pieces of its prompt where they are wanted."""
    found = []
    for asked in every:
        echoed: Sequence[Piece] = ()
        if body.echo:
            with_logprobs = body.logprobs is not None
            if with_logprobs:
                echoed = await server.run(
                    lambda lm, asked=asked: prompt_pieces(lm, asked)  # type: ignore[misc]
                )
        found.append((asked, await server.answer(asked), echoed))
    return found


def _choices(
    server: Server,
    body: CompletionBody,
    asked: Asked,
    answer: Answer,
    echoed: Sequence[Piece],
    number: int,
) -> list[Message]:
    """The choices of one prompt."""
    candidates = answer.candidates or (NOTHING,)
    before = _prompt_text(server, asked) if body.echo else ""
    return [
        {
            "index": number * asked.n + at,
            "text": before + one.text,
            "logprobs": None if asked.top is None else _logprobs([*echoed, *one.pieces], asked.top),
            "finish_reason": _reason(one),
            "charwise": _details(one)
            | {"from_memory": answer.from_memory, "forced": _text(answer.forced)},
        }
        for at, one in enumerate(candidates)
    ]


def _details(one: Candidate) -> Message:
    """All that is known of a candidate, beside what OpenAI's form has."""
    return {
        "text": one.text,
        "finish": one.finish,
        "probability": one.probability,
        "accept_word": one.accept_word,
        "accept_line": one.accept_line,
        "tokens": [piece.raw.decode("utf-8", "backslashreplace") for piece in one.pieces],
    }


def _reason(one: Candidate) -> str:
    return "stop" if one.finish in _STOPS else "length"


def _prompt_text(server: Server, asked: Asked) -> str:
    if isinstance(asked.prompt, str):
        return asked.prompt
    return _text(sides_of(asked, server.lm.vocabulary).before)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _logprobs(pieces: Sequence[Piece], top: int) -> Message:
    """Tokens with their log-probabilities, and where in the text they begin."""
    decoder, at, offsets = decoder_after(b""), 0, []
    for piece in pieces:
        offsets.append(at)
        at += len(decoder.decode(piece.raw))
    return {
        "tokens": [_text(piece.raw) for piece in pieces],
        "token_logprobs": [_finite(piece.logprob) for piece in pieces],
        "top_logprobs": [_alternatives(piece) for piece in pieces] if top else None,
        "text_offset": offsets,
    }


def _finite(logprob: float) -> float:
    return max(logprob, -9999.0)


def _alternatives(piece: Piece) -> Message:
    found: Message = {}
    for raw, logprob in (*piece.top, (piece.raw, piece.logprob)):
        text = _text(raw)
        found[text] = max(found.get(text, -9999.0), logprob)
    return found


def _usage(found: Sequence[Found]) -> Message:
    prompt = sum(answer.prompt_tokens for _, answer, _ in found)
    written = sum(answer.written for _, answer, _ in found)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": sum(answer.cached for _, answer, _ in found)},
    }


async def _streamed(
    server: Server, body: CompletionBody, every: list[Asked]
) -> AsyncGenerator[bytes]:
    """Chunks, as the candidates of each prompt are drawn, one prompt after the other.

    What is echoed, or has log-probabilities, comes in one chunk when it is whole.
    """
    top = _top(server)
    tells = body.stream_options is not None and bool(body.stream_options.include_usage)
    empty: Message = {"usage": None} if tells else {}
    found: list[Found] = []
    begun = False  # from then on errors are told in the stream
    try:
        for number, asked in enumerate(every):
            if body.echo or body.logprobs is not None:
                [one] = await _answers(server, body, [asked])
                found.append(one)
                begun = True
                for choice in _choices(server, body, *one, number):
                    yield event(top | {"choices": [choice]} | empty)
                continue
            async for piece in server.stream(asked):
                begun = True
                if isinstance(piece, Answer):
                    found.append((asked, piece, ()))
                    for choice in _choices(server, body, asked, piece, (), number):
                        yield event(top | {"choices": [choice | {"text": ""}]} | empty)
                else:
                    choice = {"index": number * asked.n + piece[0], "text": piece[1]}
                    choice |= {"logprobs": None, "finish_reason": None}
                    yield event(top | {"choices": [choice]} | empty)
    except Exception as error:
        if not begun:
            raise
        yield event(body_of("/v1/completions", refusal_of(error)))
    else:
        if tells:
            yield event(top | {"choices": [], "usage": _usage(found)})
    yield b"data: [DONE]\n\n"
