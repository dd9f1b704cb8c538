"""The HTTP around a request: its body, its client that leaves, its error, the bytes of tokens."""

import asyncio
import math
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charwise.api import http
from charwise.api.errors import HTTPError, to_http_error
from charwise.api.request import CompletionRequest
from charwise.api.writer import _unspelled, finite, spelled
from charwise.errors import LimitError, SettingError
from listening import listening
from models import examples


def receiving(*messages: dict[str, Any]) -> Callable[[], Any]:
    """A `receive` with some messages, which then waits."""
    queue = iter(messages)

    async def receive() -> dict[str, Any]:
        for message in queue:
            return message
        return await asyncio.Event().wait()  # type: ignore[return-value]

    return receive


LEAVES = {"type": "http.disconnect"}


@given(st.lists(st.binary(max_size=6), min_size=1, max_size=6), st.integers(0, 20))
@examples(100)
def test_a_body_is_read_whole_or_refused(parts: list[bytes], most: int) -> None:
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages[-1]["more_body"] = False
    body = b"".join(parts)
    if len(body) <= most:
        assert asyncio.run(http.read_body(receiving(*messages), most)) == body
    else:
        with pytest.raises(HTTPError) as caught:
            asyncio.run(http.read_body(receiving(*messages), most))
        assert caught.value.status == 413
    if len(messages) > 1:  # a body that its client broke off is no request
        assert asyncio.run(http.read_body(receiving(*messages[:-1], LEAVES), 999)) is None


def test_a_body_that_does_not_arrive_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_BODY_SECONDS", 0.05)
    beginning = {"type": "http.request", "body": b"{", "more_body": True}

    async def trickling() -> dict[str, Any]:
        await asyncio.sleep(0.02)
        return beginning

    for receive in (receiving(beginning), trickling):
        with pytest.raises(HTTPError) as caught:
            asyncio.run(http.read_body(receive, 999))
        assert caught.value.status == 408


@pytest.mark.parametrize("leaves", [False, True])
def test_work_for_a_client_ends_with_it(leaves: bool) -> None:
    ended: list[str] = []

    async def work() -> str:
        try:
            await asyncio.sleep(3600 * leaves)
            return "done"
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    receive = receiving(LEAVES) if leaves else receiving()
    result = asyncio.run(http.while_connected(receive, work()))
    assert (result, ended) == ((None, ["cancelled"]) if leaves else ("done", []))


@pytest.mark.parametrize("version", ["2.0", "2.3", "2.4", "3.0"])
def test_a_stream_ends_with_its_client_in_every_version_of_asgi(version: str) -> None:
    async def endless() -> Any:
        while True:
            yield b"x"
            await asyncio.sleep(0)

    heard: list[Any] = []

    async def send(message: Any) -> None:
        heard.append(message)

    async def receive() -> Any:
        while not heard:
            await asyncio.sleep(0)
        return LEAVES

    headers = [(b"x-a", b"1"), (b"x-a", b"2"), (b"content-length", b"3")]
    response = http.stream_response(endless(), 200, headers)
    scope = {"type": "http", "asgi": {"spec_version": version}}
    asyncio.run(asyncio.wait_for(response(scope, receive, send), 60))
    assert heard[0]["headers"] == headers[:2]


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"yes"})


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    monkeypatch.setattr(http._PatientProtocol, "head_seconds", 0.5)
    with listening(app, http=http._PatientProtocol, lifespan="off") as url:
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        with socket.create_connection(address, timeout=60) as one:
            yield one


@pytest.mark.parametrize(
    ("before", "data"), [(0, b""), (0, b"GET / HTTP/1.1\r\nHost: a"), (3, b"GET /")]
)
def test_half_a_head_ends(connection: socket.socket, before: int, data: bytes) -> None:
    for _ in range(before):  # who asks in time is answered again and again
        connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = b""
        while b"yes" not in answer:
            answer += connection.recv(4096)
        time.sleep(0.4)
    connection.sendall(data)
    rest = b"".join(iter(lambda: connection.recv(4096), b""))  # ends where the server hangs up
    assert b"200 OK" not in rest


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (LimitError("too long."), 400, "invalid_request_error"),
        (SettingError("no."), 400, "invalid_request_error"),
        (HTTPError(502, "gone."), 502, "bad_gateway_error"),
        (HTTPError(504, "late."), 504, "timeout_error"),
        (HTTPError(429, "later."), 429, "rate_limit_error"),
        (RuntimeError("broken."), 500, "server_error"),
    ],
)
def test_an_error_has_a_status_and_openais_name(error: Exception, status: int, kind: str) -> None:
    body = to_http_error(error).body["error"]
    assert (body["code"], body["type"]) == (status, kind)


def test_a_prompt_has_each_form_of_openais() -> None:
    assert CompletionRequest(prompt=[[1], [2]]).prompts == [[1], [2]]
    assert CompletionRequest(prompt=[1, 2]).prompts == [[1, 2]]


@given(st.binary() | st.from_regex(rb"bytes:(\\x[0-9a-f]{2})+", fullmatch=True), st.floats())
@examples(200)
def test_bytes_and_numbers_of_an_answer_are_read_back(raw: bytes, number: float) -> None:
    """Only that of the impossible is 9999."""
    assert _unspelled(spelled(raw)) == raw
    impossible = math.copysign(9999, number)
    assert finite(number) == (number if math.isfinite(number) else impossible)
