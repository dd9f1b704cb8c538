"""Who may ask, how much, and what is told about it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter
from starlette.types import Receive, Scope, Send

from charwise.errors import SettingError
from charwise.serve.app import Settings, _Door
from charwise.serve.engine import CLIENT
from serving import Running, running

PATHS = ["/v1/completions", "/infill", "/completion", "/v1/next", "/v1/score"]

#: What our own endpoints take: they refuse the fields of others.
OURS = {"/v1/next": {"prompt": "a"}, "/v1/score": {"text": "a"}}


@pytest.fixture(scope="module")
def locked(running_server: Running) -> Iterator[Running]:
    settings = {"api_key": "sesame", "max_body_bytes": 4096, "max_queue": 2, "seconds": 3.0}
    settings |= {"allow_origins": ("https://Good.example/",)}  # browsers write neither
    settings |= {"hosts": ("127.0.0.1", "localhost", "::1")}
    with running(lm=running_server.lm, **settings) as one:
        yield one


def post(one: Running, path: str, **arguments: object) -> httpx.Response:
    arguments.setdefault("json", OURS.get(path, {"prompt": "a", "max_tokens": 1, "n_predict": 1}))
    headers = {"authorization": "Bearer sesame", **arguments.pop("headers", {})}  # type: ignore[dict-item]
    return httpx.post(one.url + path, headers=headers, timeout=60, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("key", ["", "Bearer wrong", "sesame", "Basic sesame"])
def test_a_wrong_key_is_refused_before_anything_is_read(
    locked: Running, path: str, key: str
) -> None:
    calls = locked.engine.model.counts["model_calls"]
    answer = post(locked, path, headers={"authorization": key})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "key" in answer.json()["error"]["message"]
    assert locked.engine.model.counts["model_calls"] == calls
    # Not even the body: what is too long, or no JSON, is refused alike.
    assert (
        post(
            locked, path, headers={"authorization": key}, content=b"{" * 9999, json=None
        ).status_code
        == 401
    )


@pytest.mark.parametrize("path", PATHS)
def test_the_right_key_is_let_in(locked: Running, path: str) -> None:
    assert post(locked, path).is_success


def test_health_needs_no_key_and_metrics_do(locked: Running) -> None:
    assert httpx.get(locked.url + "/health").is_success
    assert httpx.get(locked.url + "/metrics").status_code == 401


@pytest.mark.parametrize("path", PATHS)
def test_long_bodies_are_refused(locked: Running, path: str) -> None:
    body = json.dumps({"prompt": "a" * 5000}).encode()
    answer = post(locked, path, content=body, json=None)
    assert answer.status_code == 413

    def parts() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 100

    assert post(locked, path, content=parts(), json=None).status_code == 413


def test_pages_of_other_origins_may_not_ask(locked: Running) -> None:
    bad = post(locked, "/v1/next", headers={"origin": "https://bad.example"})
    assert bad.status_code == 403
    assert "access-control-allow-origin" not in bad.headers
    good = post(locked, "/v1/next", headers={"origin": "https://good.example"})
    assert good.is_success
    assert good.headers["access-control-allow-origin"] == "https://good.example"
    own = post(locked, "/v1/next", headers={"origin": locked.url})
    assert own.is_success
    preflight = httpx.options(
        locked.url + "/v1/next",
        headers={"origin": "https://good.example", "access-control-request-method": "POST"},
    )
    assert preflight.is_success
    assert preflight.headers["access-control-allow-origin"] == "https://good.example"
    refused = httpx.options(locked.url + "/v1/next", headers={"origin": "https://bad.example"})
    assert refused.status_code == 403


@pytest.mark.parametrize("origin", ["http://[", "null", "http://\xbc", "]", "http://[::1"])
def test_an_origin_that_is_no_address_is_of_another_page(locked: Running, origin: str) -> None:
    answer = post(locked, "/v1/next", headers={"origin": origin.encode("latin-1")})
    assert answer.status_code == 403
    assert "may not ask" in answer.json()["error"]["message"]


@pytest.mark.parametrize("name", ["evil.example:80", "evil.example", "[", "::1", "localhost@evil"])
def test_a_name_that_is_not_ours_is_refused(locked: Running, name: str) -> None:
    answer = post(locked, "/v1/next", headers={"host": name})
    assert answer.status_code == 400
    assert "localhost" in answer.json()["error"]["message"]


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST"])
def test_our_own_names_are_taken(locked: Running, name: str) -> None:
    for host in (name, f"{name}:{locked.port}"):
        assert post(locked, "/v1/next", headers={"host": host}).is_success


@pytest.mark.parametrize("origin", ["foo", "example.com", "http://a/b", "http://a b", "", "//a"])
def test_an_origin_that_no_page_has_is_a_wrong_setting(origin: str) -> None:
    with pytest.raises(SettingError, match="allow_origins"):
        Settings(allow_origins=("https://a", origin))


def test_a_full_queue_says_when_to_come_again(locked: Running) -> None:
    hold = threading.Event()

    async def ask() -> list[httpx.Response]:
        begun = threading.Event()

        def wait(_: object) -> None:
            begun.set()
            hold.wait(60)

        busy = [asyncio.create_task(locked.engine.call(wait))]
        await asyncio.to_thread(begun.wait)
        busy += [asyncio.create_task(locked.engine.call(lambda _: 1)) for _ in range(2)]
        while locked.engine.waiting < 2:
            await asyncio.sleep(0.01)
        found = [
            await asyncio.to_thread(post, locked, path) for path in ("/v1/completions", "/infill")
        ]
        stream = {"prompt": "a", "stream": True}
        found.append(await asyncio.to_thread(post, locked, "/v1/completions", json=stream))
        hold.set()
        await asyncio.gather(*busy)
        return found

    for answer in asyncio.run(ask()):
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) > 0
        assert "wait" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("required", "shown", "client"),
    [
        (None, "ann", "Bearer ann"),
        (None, "bob", "Bearer bob"),
        (None, None, "10.0.0.7"),
        ("ann", "ann", "10.0.0.7"),  # everyone has this key
    ],
)
def test_a_client_is_its_key_or_its_address(
    required: str | None, shown: str | None, client: str
) -> None:
    seen = list[str]()

    async def behind(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(CLIENT.get())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def ask() -> None:
        counter = Counter("requests", "", ["path", "status"], registry=CollectorRegistry())
        door = _Door(behind, Settings(api_key=required), counter)
        transport = httpx.ASGITransport(door, client=("10.0.0.7", 5))  # type: ignore[arg-type]
        headers = {"authorization": f"Bearer {shown}"} if shown else {}
        async with httpx.AsyncClient(transport=transport, base_url="http://a") as one:
            await one.get("/metrics", headers=headers)

    asyncio.run(ask())
    assert seen == [client]


def test_metrics(running_server: Running) -> None:
    httpx.post(running_server.url + "/v1/completions", json={"prompt": "import nump"}, timeout=60)
    text = httpx.get(running_server.url + "/metrics").text
    values = {
        line.split()[0]: float(line.split()[1])
        for line in text.splitlines()
        if not line.startswith("#")
    }
    for name in ("charwise_bytes_total", "charwise_model_seconds", "charwise_model_calls"):
        assert values[name] > 0
    for name in ("charwise_states", "charwise_trees", "charwise_kept_bytes"):
        assert values[name] > 0
    assert values["charwise_queue"] == 0
    assert values["process_resident_memory_bytes"] > 2**20
    assert values["charwise_completion_seconds_count"] > 0
    assert any(name.startswith('charwise_requests_total{path="/v1/completions"') for name in values)


@pytest.mark.parametrize("path", ["/nowhere", "/v1/nowhere"])
def test_paths_that_are_not_there(running_server: Running, path: str) -> None:
    assert httpx.get(running_server.url + path).status_code == 404
    told = str(httpx.get(running_server.url + path).json()["error"])
    assert "/v1/completions, " in told
    assert "/infill" in told
    assert httpx.get(running_server.url + "/infill").status_code == 405


def test_a_body_that_breaks_off_harms_nobody(running_server: Running) -> None:
    with socket.create_connection(("127.0.0.1", running_server.port)) as one:
        one.sendall(b"POST /v1/next HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\n{")
    assert httpx.get(running_server.url + "/health").is_success
