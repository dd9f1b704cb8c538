"""Requests read, and answers sent, for all dialects."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from charwise.api.errors import Refused, refusal_of
from charwise.api.http import json_response, read_up_to, while_connected
from charwise.api.writer import Message, event
from charwise.serve.server import Server

#: Fields that other servers read and that change an answer; and the values of each that change
#: nothing, beside those that are empty.
_CHANGING: dict[str, tuple[Any, ...]] = dict.fromkeys(
    (
        # what is generated has a form
        *("regex", "ebnf", "structural_tag", "tools", "functions", "format"),
        # there is more to read
        *("messages", "system", "system_prompt", "template", "images", "image_data"),
        *("multimodal_data", "prompt_embeds", "input_extra", "lora", "control_vector"),
        # other tokens are drawn
        *("logit_bias", "presence_penalty", "frequency_penalty", "bad_words", "allowed_token_ids"),
        *("min_tokens", "ignore_eos", "stop_token_ids", "use_beam_search", "logits_processors"),
        *("mirostat", "mirostat_mode", "dry_multiplier"),
        # it is told otherwise
        *("post_sampling_probs", "include_stop_str_in_output"),
    ),
    (),
) | {
    "mode": ("exact",),
    "repeat_penalty": (1,),
    "repetition_penalty": (1,),
    "truncate_prompt_tokens": (-1,),
}

#: The same, where tokens are drawn at random.
_SAMPLERS: dict[str, tuple[Any, ...]] = {
    "min_p": (),
    "typical_p": (1,),
    "tfs_z": (1,),
    "top_n_sigma": (-1,),
    "xtc_probability": (),
    "dynatemp_range": (),
}

_EMPTY: tuple[Any, ...] = (None, False, 0, "", [], {})


def _check_unread(body: BaseModel) -> None:
    """Refuse a field that a request has, that its model does not know, and that means something.

    Raises:
        Refused: the field.

    >>> from charwise.api.request import CompletionRequest
    >>> _check_unread(CompletionRequest(user="me", min_p=0.1, ebnf=""))
    >>> _check_unread(CompletionRequest(ebnf='root ::= "a"'))
    Traceback (most recent call last):
    charwise.api.errors.Refused: ebnf is not read here, and changes the answer: leave it out.
    """
    known = _CHANGING | (_SAMPLERS if getattr(body, "temperature", None) else {})
    for name, value in (body.model_extra or {}).items():
        if name in known and value not in (*_EMPTY, *known[name]):
            why = f"{name} is not read here, and changes the answer: leave it out."
            raise Refused(400, why, name)


Result = TypeVar("Result")
_Kind = TypeVar("_Kind", bound=BaseModel)

#: Paths of llama.cpp's dialect, whose errors have a form of their own.
_LLAMA_CPP = frozenset({"/infill", "/completion", "/props", "/tokenize", "/detokenize", "/health"})


async def read(request: Request, server: Server, kind: type[_Kind]) -> _Kind:
    """Return the body of a request.

    Raises:
        Refused: it is too long, breaks off, or has a field that is not read and not without effect.
        ValidationError: it is no such request.
    """
    most = server.settings.most_body
    found = await read_up_to(request.receive, most)
    if found is None:
        raise Refused(400, "the body of this request broke off.")
    body, whole = found
    if not whole or len(body) > most:
        raise Refused(413, f"the body of this request has more than {most} bytes.")
    checked = kind.model_validate_json(body or b"{}")
    _check_unread(checked)
    return checked


async def answered(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of some work, which is not None.

    Raises:
        Refused: the client left, and the work was ended.
    """
    found = await while_connected(request.receive, work)
    if found is None:
        raise Refused(499, "the client left before its answer.")
    return found


def refused(path: str, refusal: Refused) -> Response:
    """Return a refusal in the form of the dialect that a path belongs to."""
    headers = [(name.encode(), value.encode()) for name, value in refusal.headers.items()]
    return json_response(_error_body(path, refusal), refusal.status, headers)


def _error_body(path: str, refusal: Refused) -> Message:
    """Return the JSON of a refusal: llama.cpp's, or OpenAI's.

    >>> _error_body("/infill", Refused(400, "no."))
    {'error': {'message': 'no.', 'type': 'invalid_request_error', 'code': 400}}
    """
    error = dict(refusal.body["error"])
    if path in _LLAMA_CPP:
        del error["param"]
    return {"error": error}


async def stream(
    request: Request,
    chunks: AsyncGenerator[bytes],
    *,
    end: bytes = b"",
) -> Response:
    """Return a stream of chunks, which ends with its client.

    An error before the first chunk is an answer with a status; a later one is told in the stream.

    Args:
        request: of the client.
        chunks: parts of the stream.
        end: last part, after an error too.
    """
    try:
        first = await answered(request, anext(chunks, b""))
    except BaseException:
        await chunks.aclose()
        raise

    async def every() -> AsyncIterator[bytes]:
        try:
            yield first
            async for chunk in chunks:
                yield chunk
        except Exception as error:
            yield event(_error_body(request.url.path, refusal_of(error)))
        finally:
            await chunks.aclose()
        yield end

    return StreamingResponse(
        every(), media_type="text/event-stream", headers={"cache-control": "no-cache"}
    )
