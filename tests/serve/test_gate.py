"""Who may ask, how much, and what is told about it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from charwise import CharLM
from charwise.errors import SettingError
from charwise.serve.app import Settings, application
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


def post(one: Running, path: str, content: Any = None, json: Any = None, **headers: Any) -> Any:
    """The answer to a body, by default the least of this path, with the key."""
    if content is None and json is None:
        json = OURS.get(path, {"prompt": "a", "max_tokens": 1, "n_predict": 1})
    headers = {"authorization": "Bearer sesame"} | headers
    return httpx.post(one.url + path, content=content, json=json, headers=headers, timeout=60)


@pytest.mark.parametrize("path", PATHS)
def test_a_wrong_key_is_refused_before_anything_is_read(locked: Running, path: str) -> None:
    calls = locked.engine.model.counts["model_calls"]
    for key in ("", "Bearer wrong", "sesame", "Basic sesame"):
        # Not even the body: what is too long, or no JSON, is refused alike.
        for answer in (
            post(locked, path, authorization=key),
            post(locked, path, b"{" * 9999, authorization=key),
        ):
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert "key" in answer.json()["error"]["message"]
    assert locked.engine.model.counts["model_calls"] == calls
    assert post(locked, path).is_success
    assert httpx.get(locked.url + "/health").is_success
    assert httpx.get(locked.url + "/metrics").status_code == 401


@pytest.mark.parametrize("path", PATHS)
def test_bodies_that_are_long_compressed_or_broken_off_are_refused(
    locked: Running, path: str
) -> None:
    for body in (b'{"prompt": "' + b"a" * 5000 + b'"}', (b" " * 100 for _ in range(100))):
        assert post(locked, path, body).status_code == 413
    answer = post(locked, path, **{"content-encoding": "gzip"})
    assert answer.status_code == 415
    assert "gzip" in answer.json()["error"]["message"]
    assert post(locked, path, **{"content-encoding": "identity"}).is_success
    with socket.create_connection(("127.0.0.1", locked.port)) as one:
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer sesame\r\n"
        one.sendall(head.encode() + b"content-length: 100\r\n\r\n{")
    assert httpx.get(locked.url + "/health").is_success


def test_pages_of_other_origins_may_not_ask(locked: Running) -> None:
    others = ["https://bad.example", "http://[", "null", "http://\xbc", "]", "http://[::1"]
    preflight = {"access-control-request-method": "POST"}
    preflight["access-control-request-headers"] = "authorization, x-stainless-os"
    for origin in (*others, "https://good.example", locked.url):
        headers = {"origin": origin.encode("latin-1")}
        answer = post(locked, "/v1/next", **headers)
        asks = httpx.options(locked.url + "/v1/next", headers=preflight | headers)
        if origin in others:
            assert answer.status_code == asks.status_code == 403
            assert "may not ask" in answer.json()["error"]["message"]
            assert "access-control-allow-origin" not in answer.headers
        else:
            assert answer.is_success
        if origin == "https://good.example":
            assert asks.is_success
            for one in (answer, asks):
                assert one.headers["access-control-allow-origin"] == origin
    for origin in ("example.com", "http://a/b", "http://a b", "//a"):  # that no page has
        with pytest.raises(SettingError, match="allow_origins"):
            Settings(allow_origins=("https://a", origin))


def test_it_answers_to_its_own_names_alone(locked: Running) -> None:
    for name in ("localhost", "127.0.0.1", "[::1]", "LOCALHOST"):
        for host in (name, f"{name}:{locked.port}"):
            assert post(locked, "/v1/next", host=host).is_success
    for name in ("evil.example:80", "evil.example", "[", "::1", "localhost@evil", "a:b:c"):
        answer = post(locked, "/v1/next", host=name)
        assert answer.status_code == 400
        assert "localhost" in answer.json()["error"]["message"]


def test_a_full_queue_says_when_to_come_again(
    locked: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locked.engine, "max_waiting", 0)
    for path, stream in (("/v1/completions", False), ("/infill", False), ("/v1/completions", True)):
        answer = post(locked, path, json={"prompt": "a", "stream": stream})
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) > 0
        assert "wait" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("required", "given_key", "client"),
    [
        (None, "ann", "Bearer ann"),
        (None, None, "10.0.0.7"),
        ("ann", "ann", "10.0.0.7"),  # everyone has this key
    ],
)
def test_a_client_is_its_key_or_its_address(
    lm: CharLM, required: str | None, given_key: str | None, client: str
) -> None:
    app, names = application(lm, Settings(api_key=required)), list[str]()
    call = app.state.engine.call

    async def noting(*arguments: Any, **more: Any) -> Any:
        names.append(CLIENT.get())
        return await call(*arguments, **more)

    app.state.engine.call = noting
    with TestClient(app, client=("10.0.0.7", 5), base_url="http://127.0.0.1") as one:
        headers = {"authorization": f"Bearer {given_key}"} if given_key else {}
        assert one.post("/v1/next", json={"prompt": "a"}, headers=headers).is_success
    assert names[-1] == client


def test_metrics_are_those_of_the_work_done(http: httpx.Client) -> None:
    http.post("/v1/completions", json={"prompt": "import nump"})
    lines = http.get("/metrics").text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    some = ("prompt_tokens_total", "generation_tokens_total", "model_seconds", "model_calls")
    for name in (*some, "states", "trees", "kept_bytes", "completion_seconds_count"):
        assert float(values[f"charwise_{name}"]) > 0
    assert float(values["charwise_requests_waiting"]) == 0
    assert {
        "# TYPE charwise_prompt_tokens_total counter",
        "# TYPE charwise_states gauge",
    } <= set(lines)
    assert float(values["process_resident_memory_bytes"]) > 2**20
    assert any(name.startswith('charwise_requests_total{path="/v1/completions"') for name in values)


def test_unknown_paths_are_404_and_wrong_methods_405(http: httpx.Client) -> None:
    for path in ("/nowhere", "/v1/nowhere"):
        answer = http.get(path)
        assert answer.status_code == 404
        assert "/v1/completions, " in answer.json()["error"]["message"]
    for method, path, allowed in (("GET", "/infill", "POST"), ("HEAD", "/health", "GET")):
        answer = http.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
