"""The exchange between a client and the server behind: broken answers, errors, clients that leave.

The server behind is an ASGI app that says what a test wants; what is tested reads it.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from charwise import Vocabulary
from charwise.processors.healed_prompt import HealedPrompt
from charwise.processors.openai.answer import Answer, Call
from charwise.processors.openai.exchange import Exchange, OpenAIForm

VOCABULARY = Vocabulary.from_bytes([b"rang", b"e", b"range", b"(", b")"])
JSON, EVENTS = b"application/json", b"text/event-stream"


def answer_to(**fields: Any) -> Answer:
    healed = HealedPrompt([3], b"rang", 1)
    body = {"prompt": healed.kept}
    return Answer(VOCABULARY, fields, Call(body, "(rang", healed, 4))


def chunk(ids: list[int], finish: str | None = None, **top: Any) -> dict[str, Any]:
    return {**top, "choices": [{"index": 0, "token_ids": ids, "finish_reason": finish}]}


def event(told: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(told).encode() + b"\n\n"


async def staying() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


def exchanged(
    kind: bytes, *parts: bytes | Exception, form: Any = None, **fields: Any
) -> tuple[list[dict[str, Any]], Exception | None]:
    """What a client hears of a server that answers 200 so, and what was raised."""

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        headers = [(b"content-type", kind)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for part in parts:
            if isinstance(part, Exception):
                raise part
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    heard: list[dict[str, Any]] = []

    async def hear(message: dict[str, Any]) -> None:
        heard.append(message)

    async def run() -> None:
        answers = form or OpenAIForm([answer_to(**fields)])
        scope = {"type": "http", "headers": []}
        await Exchange(behind, answers).answer(scope, staying, hear)

    try:
        asyncio.run(run())
    except ConnectionError as error:
        return heard, error
    return heard, None


def text_of(heard: list[dict[str, Any]]) -> bytes:
    return b"".join(message.get("body", b"") for message in heard)


def test_a_stream_is_told_from_its_new_text_to_its_end_mark() -> None:
    parts = [event(chunk([0])), b": a comment\n\n", event(chunk([1, 3], "length"))]
    heard, raised = exchanged(EVENTS, *parts, stream=True)
    assert raised is None
    text = text_of(heard)
    assert b'"text":"e("' in text
    assert b": a comment\n\n" in text
    assert text.endswith(b"data: [DONE]\n\n")


def test_a_stream_that_breaks_off_has_no_end() -> None:
    """A client that counts on the end mark must not take half an answer for a whole one."""
    heard, raised = exchanged(EVENTS, event(chunk([2])), ConnectionError("lost"), stream=True)
    assert str(raised) == "lost"
    text = text_of(heard)
    assert b'"text":"e"' in text
    assert b"[DONE]" not in text
    assert all(message.get("more_body", True) for message in heard)


def test_a_response_that_breaks_off_is_no_answer() -> None:
    heard, raised = exchanged(JSON, b'{"choices": [', ConnectionError("lost"))
    assert (heard, str(raised)) == ([], "lost")


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"<html>", 502, "no JSON object"),
        (b"[]", 502, "no JSON object"),
        (b"{}", 502, "no choices"),
        (b'{"choices": null}', 502, "no choices"),
        (b'{"choices": []}', 502, "before it was finished"),
        (json.dumps(chunk([3])).encode(), 500, "rang"),  # not the forced text
        (b'{"error": {"code": null, "message": "a"}}', 500, '"a"'),
        (b'{"error": {"code": 404, "message": "a"}}', 404, '"a"'),
        (b'{"error": "all of it"}', 500, "all of it"),
    ],
)
def test_what_is_no_answer_becomes_an_error(body: bytes, status: int, says: str) -> None:
    heard, _ = exchanged(JSON, body)
    assert heard[0]["status"] == status
    assert "error" in json.loads(text_of(heard))
    assert says in text_of(heard).decode()
    streamed, _ = exchanged(EVENTS, b"data: " + body + b"\n\n", stream=True)
    assert b'data: {"error":' in text_of(streamed)
