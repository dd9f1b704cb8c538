"""Connections of a real server that send nothing, or half a head."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from listening import listening

uvicorn = pytest.importorskip("uvicorn")
connections = pytest.importorskip("charwise.api.http")


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"yes"})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(connections._PatientProtocol, "head_seconds", 0.5)
    with listening(app, http=connections._PatientProtocol, lifespan="off") as url:
        yield int(url.rpartition(":")[2])


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: a"])
def test_half_a_head_ends(port: int, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as one:
        one.sendall(sent)
        assert one.recv(1) == b""


def test_half_a_head_after_an_answer_ends(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as one:
        one.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = b""
        while b"yes" not in answer:
            answer += one.recv(4096)
        one.sendall(b"GET /")
        rest = b"".join(iter(lambda: one.recv(4096), b""))  # ends where the server hangs up
        assert b"200 OK" not in rest


def test_who_asks_in_time_is_answered_again_and_again(port: int) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        for _ in range(3):
            assert client.get("/").text == "yes"
            time.sleep(0.4)
