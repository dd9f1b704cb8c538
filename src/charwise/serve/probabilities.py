"""The endpoints that only this server has: next bytes and characters, scores, coverings."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal

import numpy as np
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from charwise.api.http import json_response
from charwise.api.writer import Message, finite
from charwise.char_lm import CharLM
from charwise.cursor.distributions import show_byte
from charwise.cursor.expansion import next_chars
from charwise.cursor.generation import Generation
from charwise.cursor.options import GenerationOptions
from charwise.cursor.state import State
from charwise.serve.http import answered, read
from charwise.serve.playground.views import shown
from charwise.serve.prompts import sides_of
from charwise.serve.server import Server
from charwise.serve.task import CompletionTask


class _Prompted(BaseModel):
    """A prompt: text, or token ids. A field that does nothing is refused: no dialect asks it."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    prompt: str | list[int] = ""
    model: str | None = None


class _NextBody(_Prompted):
    """`/v1/next`."""

    top: int = Field(10, ge=0, le=257)
    coverage: float = Field(0.9, gt=0, le=0.999)
    chars: bool = True


class _ScoreBody(BaseModel):
    """`/v1/score`."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    text: str
    context: str = ""
    per: Literal["byte", "char", "word", "token"] = "char"
    end: bool = False
    model: str | None = None


class _CoveringBody(_Prompted):
    """`/v1/covering`."""

    top: int = Field(10, ge=1, le=1000)


def router(server: Server) -> APIRouter:
    """The routes of a server."""
    routes = APIRouter()

    @routes.post("/v1/next")
    async def next_(request: Request) -> Response:
        body = await read(request, server, _NextBody)
        found = server.run(lambda _: _next(server, body), typed=True)
        return json_response(await answered(request, found))

    @routes.post("/v1/score")
    async def score(request: Request) -> Response:
        body = await read(request, server, _ScoreBody)
        return json_response(await answered(request, server.run(lambda lm: _score(lm, body))))

    @routes.post("/v1/covering")
    async def covering(request: Request) -> Response:
        body = await read(request, server, _CoveringBody)
        found = server.run(lambda _: _covering(server, body), typed=True)
        return json_response(await answered(request, found))

    return routes


def _state(server: Server, body: _Prompted) -> State:
    """The state after a prompt."""
    vocabulary = server.lm.vocabulary
    sides = sides_of(CompletionTask(body.prompt), vocabulary)
    return server.completions.memory.after(*vocabulary.split_prompt(sides.prompt)).state


def _next(server: Server, body: _NextBody) -> Message:
    state = _state(server, body)
    nxt = state.next()
    order = np.argsort(-nxt.probs, kind="stable")[: body.top].tolist()
    found: Message = {
        "bytes": [{"byte": b, "text": show_byte(b), "prob": float(nxt.probs[b])} for b in order],
        "eos": nxt.eos,
        "entropy": nxt.entropy,
        "error": nxt.error,
        "exact_from": state.exact_from,
    }
    if body.chars:
        least = max(1, body.top)  # or the end of text would go before what is not listed
        chars = next_chars(state, body.coverage, least)
        top = chars.top(least)
        found["chars"] = [{"text": text, "prob": prob} for text, prob in top]
        found["chars_missing"] = chars.missing
    return found


def _score(lm: CharLM, body: _ScoreBody) -> Message:
    score = lm.score(body.text, context=body.context, end=body.end)
    found: Message = {
        "logprob": finite(float(score.logprobs.sum())),
        "bits_per_byte": score.bits_per_byte if body.text else 0.0,
        "error": float(score.error.sum()),
    }
    if body.end and score.end_logprob is not None:
        found["end_logprob"] = finite(score.end_logprob)
    if body.per == "byte":
        found["logprobs"] = [finite(one) for one in score.logprobs.tolist()]
    elif body.per == "token":
        ends = [0, *(score.token_ends.tolist() if score.token_ends is not None else [])]
        found["spans"] = [
            {"text": shown(score.raw[a:b]), "surprisal": _bits(score.logprobs[a:b].sum())}
            for a, b in pairwise(ends)
        ]
    else:
        spans = score.chars() if body.per == "char" else score.words("leading")
        found["spans"] = [{"text": one.text, "surprisal": finite(one.surprisal)} for one in spans]
    return found


def _covering(server: Server, body: _CoveringBody) -> Message:
    state = _state(server, body)
    options = GenerationOptions(n=body.top)
    drawn = Generation(state, options, options.limit()).partials
    members = {tuple(one.token_ids): one for one in drawn if one.token_ids}
    tokens = server.lm.vocabulary.tokens
    return {
        "exact_from": state.exact_from,
        "logprob": finite(state.logprob),
        "error": state.error,
        "members": [
            {
                "ids": list(ids),
                "tokens": [shown(tokens[id_] or b"") for id_ in ids],
                "beyond": shown(one.raw),
                "logprob": finite(one.logprob),
                "prob": math.exp(min(0.0, one.logprob)),
            }
            for ids, one in members.items()
        ],
    }


def _bits(logprob: float) -> float:
    return finite(-float(logprob) / math.log(2)) if math.isfinite(logprob) else 9999.0
