"""The endpoints that only this server has: next characters, scores, coverings, healing in steps.

Bytes that are no character, or a part of one, are shown as `\\xNN`.
"""

import math
from typing import ClassVar, Literal

import numpy as np
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from charwise.api.errors import HTTPError
from charwise.api.http import json_response
from charwise.api.request import Whole
from charwise.api.writer import Message, finite
from charwise.char_lm import CharLM
from charwise.cursor.distributions import show_byte
from charwise.cursor.expansion import next_chars
from charwise.cursor.generation import Generation
from charwise.cursor.options import GenerationOptions
from charwise.cursor.state import State
from charwise.healing import Rule, allowed_next, cut, prompt_ids
from charwise.serve.dialect import add_endpoint, while_wanted
from charwise.serve.engine import Engine
from charwise.serve.prompt import parse_prompt
from charwise.serve.task import BYTE_ORDER_MARK, Task
from charwise.side_by_side import Step, complete_by_tokens
from charwise.tokens.vocabulary import Vocabulary


class _Body(BaseModel):
    """A request. A field that does nothing is refused: no dialect asks it."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    typed: ClassVar[bool] = True  # whether it answers a keystroke

    model: str | None = None

    def answer(self, engine: Engine) -> Message:
        """Return the JSON of the answer; on the model's thread."""
        raise NotImplementedError


class _NextBody(_Body):
    """`/v1/next`."""

    prompt: str
    top: Whole = Field(10, ge=0, le=257)

    def answer(self, engine: Engine) -> Message:
        state = _state(engine, self.prompt)
        following = state.next()
        probs = following.probs
        order = np.argsort(-probs, kind="stable")[: self.top].tolist()
        least = max(1, self.top)  # or the end of text would go before what is not listed
        chars = next_chars(state, 0.9, least)
        return {
            "bytes": [{"byte": b, "text": show_byte(b), "prob": float(probs[b])} for b in order],
            "eos": following.eos,
            "entropy": following.entropy,
            "error": following.error,
            "exact_from": state.exact_from,
            "chars": [{"text": text, "prob": prob} for text, prob in chars.top(least)],
            "chars_missing": chars.missing,
        }


class _ScoreBody(_Body):
    """`/v1/score`."""

    typed = False

    text: str
    context: str = ""
    per: Literal["char", "word"] = "char"

    def answer(self, engine: Engine) -> Message:
        for field in ("text", "context"):
            # All windows of a text are planned before a model call.
            if len(getattr(self, field).encode()) > 2**20:
                why = f"{field}: {2**20} bytes at most. `charwise score` takes longer texts."
                raise HTTPError(400, why, field)
        text, context = self.text, self.context.removeprefix(BYTE_ORDER_MARK)
        text = text if context else text.removeprefix(BYTE_ORDER_MARK)
        score = engine.lm.score(text, context=context)
        spans = score.chars() if self.per == "char" else score.words("leading")
        return {
            "logprob": finite(float(score.logprobs.sum())),
            "bits_per_byte": finite(score.bits_per_byte) if text else 0.0,
            "error": float(score.error.sum()),
            "spans": [{"text": one.text, "surprisal": finite(one.surprisal)} for one in spans],
        }


class _CoveringBody(_Body):
    """`/v1/covering`."""

    prompt: str
    top: Whole = Field(10, ge=1, le=1000)

    def answer(self, engine: Engine) -> Message:
        state, options = _state(engine, self.prompt), GenerationOptions(n=self.top)
        drawn = Generation(state, options, options.limit()).partials
        members = {tuple(one.token_ids): one for one in drawn if one.token_ids}
        tokens = engine.lm.vocabulary.tokens
        return {
            "exact_from": state.exact_from,
            "logprob": finite(state.logprob),
            "error": state.error,
            "members": [
                {
                    "ids": list(ids),
                    "tokens": [_readable(tokens[id] or b"") for id in ids],
                    "within": _readable((tokens[ids[-1]] or b"").removesuffix(one.raw)),
                    "beyond": _readable(one.raw),
                    "text": _as_text(state.raw, one.raw),
                    "logprob": finite(one.logprob),
                    "prob": math.exp(min(0.0, one.logprob)),
                }
                for ids, one in members.items()
            ],
        }


class _StepsBody(_Body):
    """`/v1/steps`."""

    prompt: str = Field(max_length=8_000)
    rule: Literal["auto", "off"] = "auto"
    max_bytes: Whole = Field(32, ge=0, le=256)

    def answer(self, engine: Engine) -> Message:
        return healing_steps(engine.lm, self.prompt.encode(), self.rule, self.max_bytes)


def router(engine: Engine) -> APIRouter:
    """Return the routes of a server."""
    routes = APIRouter()

    async def answer(request: Request, body: _Body) -> Response:
        work = engine.call(lambda _: body.answer(engine), typed=body.typed)
        return json_response(await while_wanted(request, work))

    add_endpoint(routes, "/v1/next", _NextBody, answer)
    add_endpoint(routes, "/v1/score", _ScoreBody, answer, "text")
    add_endpoint(routes, "/v1/covering", _CoveringBody, answer)
    add_endpoint(routes, "/v1/steps", _StepsBody, answer)
    return routes


def _state(engine: Engine, prompt: str) -> State:
    """The state after a prompt, or between both sides of a template that is written out in it."""
    task, lm = Task(prompt.removeprefix(BYTE_ORDER_MARK)), engine.lm
    context = parse_prompt(task, lm.vocabulary, lm.engine.window)
    return engine.cache.at(*context.place(task, lm.vocabulary, engine.template is not None)).state


def healing_steps(lm: CharLM, text: bytes, rule: Rule = "auto", max_bytes: int = 32) -> Message:
    """Return how a text is healed, and the greedy completion of it, step by step.

    The completion has `max_bytes` at most, and also ends at an empty line. Each of its first steps
    has what is `left` of the forced text, what was `written`, how many tokens may come (`allowed`),
    the first `candidates`, of which the first is taken, and the `mass` of all that may come.
    """
    vocabulary, index = lm.vocabulary, lm.index
    ids = prompt_ids(text, vocabulary)
    prefix, forced = cut(text, index, rule)
    names = [_readable(vocabulary.tokens[id] or b"") for id in ids]
    steps, completion = list[Step](), ""

    def observe(step: Step) -> None:
        if len(steps) < 8 and sum(not one.missing for one in steps) < 2:
            steps.append(step)

    if max_bytes:
        options = GenerationOptions(max_new_bytes=max_bytes, stop="\n\n")
        [completion] = complete_by_tokens(lm, text, rule, options, observe)
    return {
        "kept": names[: len(prefix)][-40:],
        "removed": names[len(prefix) :],
        "left_out": max(0, len(prefix) - 40),
        "forced": _readable(forced),
        "allowed": len(allowed_next(forced, index)),
        "vocabulary": int(vocabulary.counted.sum()),
        "text": completion,
        "steps": [_step(one, vocabulary) for one in steps],
    }


def _step(step: Step, vocabulary: Vocabulary) -> Message:
    probs, candidates, left = np.exp(step.logprobs), list[Message](), step.missing
    mass = float(probs.sum())
    for at in np.argsort(-probs, kind="stable")[:6].tolist():
        id, p = int(step.allowed[at]), float(probs[at])
        token = vocabulary.tokens[id] or b""
        candidates.append(
            {
                "id": id,
                "text": _readable(token),
                "end": vocabulary.tokens[id] is None,
                "p": p,
                "share": p / mass if mass else 0.0,
                "within": _readable(token[: len(left)]),  # its part that is asked for
                "beyond": _readable(token[len(left) :]),
                "then_left": _readable(left[len(token) :]),
            }
        )
    return {
        "left": _readable(left),
        "written": _readable(step.text),
        "allowed": len(step.allowed),
        "mass": mass,
        "candidates": candidates,
    }


def _readable(raw: bytes) -> str:
    """Bytes as a page can show them."""
    return raw.decode("utf-8", "backslashreplace")


def _as_text(text: bytes, beyond: bytes) -> str | None:
    """The text that some bytes add to another; None where they are no whole characters."""
    try:
        return (text + beyond).decode()[len(text.decode()) :]
    except UnicodeDecodeError:
        return None
