"""The way of a request, in every dialect: read, made into tasks, answered whole or in a stream."""

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from charwise.api.errors import HTTPError, to_http_error
from charwise.api.http import json_response, read_body, while_connected
from charwise.api.request import unread
from charwise.api.writer import Message, event
from charwise.serve.engine import Engine
from charwise.serve.prompt import unread_tokens
from charwise.serve.task import NOTHING, Answer, Candidate, NewText, Task

logger = logging.getLogger("charwise.serve")

Result = TypeVar("Result")
Body = TypeVar("Body", bound=BaseModel)

_EMPTY: tuple[Any, ...] = (None, False, 0, "", [], {})

#: Fields that other servers read and that change an answer; and values of each that change nothing.
_CHANGING: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        (
            # what is generated has a form
            *("regex", "ebnf", "structural_tag", "tools", "functions", "format"),
            *("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
            *("guided_whitespace_pattern", "whitespace_pattern", "disable_any_whitespace"),
            # there is more to read
            *("messages", "system", "system_prompt", "template", "images", "image_data"),
            *("multimodal_data", "prompt_embeds", "input_extra", "lora", "control_vector"),
            *("chat_template", "parse_special", "documents"),
            # other tokens are drawn
            *("logit_bias", "presence_penalty", "frequency_penalty", "bad_words", "min_tokens"),
            *("allowed_token_ids", "ignore_eos", "stop_token_ids", "use_beam_search"),
            *("logits_processors", "mirostat", "mirostat_mode", "dry_multiplier"),
            *("no_repeat_ngram_size", "min_new_tokens", "banned_tokens", "banned_strings"),
            *("custom_token_bans", "stop_regex", "penalty_alpha", "stop_sequences"),
            *("suffix", "repetition_detection", "thinking_token_budget"),
            # the answer has other parts
            *("logprobs", "top_logprobs", "stream_options", "return_progress"),
            *("timings_per_token", "n_probs", "post_sampling_probs", "prompt_logprobs"),
            *("include_stop_str_in_output", "return_tokens", "return_token_ids", "no_stop_trim"),
            *("return_tokens_as_token_ids",),
        ),
        _EMPTY,
    ),
    **dict.fromkeys(("max_new_tokens", "max_completion_tokens"), (None,)),
    **dict.fromkeys(("best_of", "num_beams", "length_penalty"), (*_EMPTY, 1)),
    **dict.fromkeys(("repeat_penalty", "repetition_penalty"), (*_EMPTY, 1)),
    **dict.fromkeys(("tool_choice", "function_call"), (*_EMPTY, "none", "auto")),
    "mode": (*_EMPTY, "exact"),
    "reasoning_effort": (*_EMPTY, "none"),
    "modalities": (*_EMPTY, ["text"]),
    "skip_special_tokens": (None, True),
    "truncate_prompt_tokens": (*_EMPTY, -1),
}

#: The same, where tokens are drawn at random.
_SAMPLERS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("min_p", "epsilon_cutoff", "eta_cutoff", "skew", "nsigma", "top_a"), _EMPTY),
    **dict.fromkeys(("xtc_probability", "dynatemp_range", "smoothing_factor"), _EMPTY),
    **dict.fromkeys(("typical_p", "typical", "tfs_z"), (*_EMPTY, 1)),
    **dict.fromkeys(("top_n_sigma", "adaptive_target"), (*_EMPTY, -1)),
}


class Writer(Protocol):
    """One request of a dialect: its tasks, one for each prompt, and how answers are written.

    Attributes:
        end: the last part of a stream, after an error too.
        truncated: whether a prompt was cut, of the answers until now.
    """

    tasks: list[Task]
    streamed: bool
    end: bytes = b""
    truncated: bool = False

    def head(self) -> Sequence[Message]:
        """Return the chunks that begin a stream."""
        return ()

    def new_text(self, index: int, text: str) -> Message:
        """Return new text of a choice, for a stream."""

    def choice(self, index: int, task: Task, answer: Answer, candidate: Candidate) -> Message:
        """Return a choice with all of its text; without it, where the task is streamed."""

    def chunk(self, choice: Message) -> Message:
        """Return the chunk of a stream for a choice, or for new text of it."""
        return choice

    def tail(self, answers: Sequence[Answer]) -> Sequence[Message]:
        """Return the chunks that end a stream."""
        return ()

    def whole(self, choices: list[Message], answers: Sequence[Answer]) -> Any:
        """Return the JSON of all answers."""

    def choices(self, number: int, answer: Answer) -> list[Message]:
        """Return the choices of a prompt, the `number`th of the request."""
        task = self.tasks[number]
        candidates = answer.candidates or (NOTHING,)
        if self.streamed:  # each that was announced has an end
            candidates += (NOTHING,) * (task.options.n - len(candidates))
        numbered = enumerate(candidates, number * task.options.n)
        return [self.choice(index, task, answer, one) for index, one in numbered]


def add_endpoint(
    routes: APIRouter,
    path: str,
    kind: type[Body],
    answer: Callable[[Request, Body], Awaitable[Response]],
    field: str = "prompt",
) -> None:
    """Answer what is posted to a path; a refusal that names no other field is of this one."""

    async def handle(request: Request) -> Response:
        body = await _read(request, kind)
        try:
            return await answer(request, body)
        except Exception as error:
            refused = to_http_error(error)
            if refused.status == 400 and refused.param is None:
                refused.param = field
            raise refused from error

    schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    routes.add_api_route(
        path,
        handle,
        methods=["POST"],
        name=path.rpartition("/")[2],
        description=inspect.getdoc(kind),
        openapi_extra={"requestBody": body},
    )


async def _read(request: Request, kind: type[Body]) -> Body:
    """The body of a request, without a field that changes the answer and is not read."""
    coding = request.headers.get("content-encoding", "identity")
    if coding.lower() not in ("", "identity"):
        raise HTTPError(
            415, f"the body has Content-Encoding {coding[:80]!r}: send it uncompressed."
        )
    raw = await read_body(request.receive, request.app.state.max_body_bytes)
    if raw is None:
        raise HTTPError(400, "the body of this request broke off.")
    body = kind.model_validate_json(raw.removeprefix(b"\xef\xbb\xbf") or b"{}")
    unsupported = _CHANGING | (_SAMPLERS if getattr(body, "temperature", None) else {})
    for name, value in (body.model_extra or {}).items():
        # A chat's template has its own start token.
        bare = name == "add_special_tokens" and value is False and not hasattr(body, "messages")
        neutral = unsupported.get(name)  # Python's True is 1
        same = (value == one and (value is True) == (one is True) for one in neutral or ())
        if bare or (neutral and not any(same)):
            raise HTTPError(400, f"{unread(name)}.", name)
    return body


async def respond(request: Request, engine: Engine, make: Callable[[], Writer]) -> Response:
    """Return the answer to a request, whole or as a stream. A header and the log have warnings."""

    def prepare() -> tuple[Writer, set[str]]:
        writer, vocabulary = make(), engine.lm.vocabulary
        return writer, {name for task in writer.tasks for name in unread_tokens(task, vocabulary)}

    # A form, a chat or a long prompt may take long.
    writer, unread_names = await asyncio.to_thread(prepare)
    if writer.streamed:
        response = await _stream(request, engine, writer)
    else:

        async def all_answers() -> list[Answer]:
            return [await engine.answer(task) for task in writer.tasks]

        answers = await while_wanted(request, all_answers())
        writer.truncated = any(one.truncated for one in answers)
        choices = [one for each in enumerate(answers) for one in writer.choices(*each)]
        response = json_response(writer.whole(choices, answers))
    warnings = ["a prompt is cut, to fit the model's window"] if writer.truncated else []
    if unread_names:
        names, more = sorted(unread_names), len(unread_names) - 8  # clients limit headers
        listed = ", ".join(map(ascii, names[:8])) + (f" and {more} more" if more > 0 else "")
        warnings.append(f"control tokens in no order that is known here are read as text: {listed}")
    if warnings:
        response.headers["x-charwise-warning"] = "; ".join(warnings)
        for warning in warnings:
            _log_once(warning)
    return response


@lru_cache(256)
def _log_once(warning: str) -> None:
    logger.warning("%s", warning)


async def while_wanted(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of some work, not None; an `HTTPError` ends it if the client leaves."""
    result = await while_connected(request.receive, work)
    if result is None:
        raise HTTPError(499, "the client left before its answer.")
    return result


async def _chunks(engine: Engine, writer: Writer) -> AsyncGenerator[bytes]:
    """The parts of a stream: the candidates of each prompt, one prompt after the other."""
    answers = list[Answer]()
    first = writer.head()
    for number, task in enumerate(writer.tasks):
        async with aclosing(engine.stream(task)) as events:
            async for one in events:
                writer.truncated |= one.truncated
                if isinstance(one, NewText):
                    index = number * task.options.n + one.number
                    choices = [writer.new_text(index, one.text)]
                else:
                    answers.append(one)
                    choices = writer.choices(number, one)
                for chunk in [*first, *map(writer.chunk, choices)]:
                    yield event(chunk)
                first = ()
    for chunk in writer.tail(answers):
        yield event(chunk)


async def _stream(request: Request, engine: Engine, writer: Writer) -> Response:
    """A stream. An error before its first chunk is an answer with a status; a later one a chunk."""
    chunks = _chunks(engine, writer)
    try:
        first = await while_wanted(request, anext(chunks, b""))
    except BaseException:
        await chunks.aclose()
        raise

    async def parts() -> AsyncIterator[bytes]:
        try:
            async with aclosing(chunks):
                yield first
                async for chunk in chunks:
                    yield chunk
        except Exception as error:
            yield event(to_http_error(error).body)
        yield writer.end

    headers = {"cache-control": "no-cache"}
    return StreamingResponse(parts(), media_type="text/event-stream", headers=headers)
