"""The client of a request: its body up to a limit, and work that ends when it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charwise.api.http import json_response, read_up_to, stream_response, while_connected
from models import examples


async def staying() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


def receiving(parts: list[bytes]) -> Callable[[], Any]:
    messages = iter(
        {"type": "http.request", "body": part, "more_body": n + 1 < len(parts)}
        for n, part in enumerate(parts)
    )

    async def receive() -> dict[str, Any]:
        return next(messages)

    return receive


@given(st.lists(st.binary(max_size=6), min_size=1, max_size=6), st.integers(0, 20))
@examples(100)
def test_a_body_is_read_whole_or_until_it_is_too_long(parts: list[bytes], most: int) -> None:
    found = asyncio.run(read_up_to(receiving(parts), most))
    assert found is not None
    body, whole = found
    everything = b"".join(parts)
    assert everything.startswith(body)
    assert whole == (len(body) == len(everything) and len(b"".join(parts[:-1])) <= most)
    assert whole or len(body) > most


def test_a_body_that_its_client_broke_off_is_no_request() -> None:
    messages = iter(
        [
            {"type": "http.request", "body": b'{"prompt": "a"}', "more_body": True},
            {"type": "http.disconnect"},
        ]
    )

    async def receive() -> dict[str, Any]:
        return next(messages)

    assert asyncio.run(read_up_to(receive, 2**20)) is None


@pytest.mark.parametrize("leaves", [False, True])
def test_work_for_a_client_ends_with_it(leaves: bool) -> None:
    ended: list[str] = []

    async def work() -> str:
        try:
            await asyncio.sleep(0 if not leaves else 3600)
            return "done"
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def leaving() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    receive: Callable[[], Any] = leaving if leaves else staying
    found = asyncio.run(while_connected(receive, work()))
    assert (found, ended) == ((None, ["cancelled"]) if leaves else ("done", []))


@pytest.mark.parametrize("version", ["2.0", "2.3", "2.4", "3.0"])
def test_a_stream_ends_with_its_client_in_every_version_of_asgi(version: str) -> None:
    async def endless() -> Any:
        while True:
            yield b"x"
            await asyncio.sleep(0)

    async def leaving() -> dict[str, Any]:
        await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}

    heard: list[Any] = []

    async def hear(message: Any) -> None:
        heard.append(message)

    headers = [(b"x-a", b"1"), (b"x-a", b"2"), (b"content-length", b"3")]
    response = stream_response(endless(), 200, headers)
    scope = {"type": "http", "asgi": {"spec_version": version}}
    asyncio.run(asyncio.wait_for(response(scope, leaving, hear), 60))
    assert heard[0]["headers"] == headers[:2]
    assert heard[-1]["more_body"]


def test_json_has_no_spaces() -> None:
    assert (
        json_response({"content": "naï", "n": [1, 2]}).body
        == '{"content":"naï","n":[1,2]}'.encode()
    )
