"""Who may ask, how much, and what is told about it; clients and models that fail.

The server goes on for the rest, finishes what is under way, and ends.
"""

import json
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from charwise import CharLM
from charwise.errors import SettingError
from charwise.serve.app import Settings, application
from charwise.serve.engine import CLIENT
from commands import Command, run
from models import examples
from serving import Running, running

PATHS = ["/v1/completions", "/infill", "/completion", "/v1/next", "/v1/score"]
#: What our own endpoints take: they refuse the fields of others.
OURS = {"/v1/next": {"prompt": "a"}, "/v1/score": {"text": "a"}}
KEY = {"authorization": "Bearer sesame"}


@pytest.fixture(scope="module")
def locked(running_server: Running) -> Iterator[Running]:
    settings = {"api_key": "sesame", "max_body_bytes": 4096, "max_queue": 2, "seconds": 3.0}
    settings |= {"allow_origins": ("https://Good.example/",)}  # browsers write neither
    settings |= {"hosts": ("127.0.0.1", "localhost", "::1")}
    with running(lm=running_server.lm, **settings) as one:
        yield one


GOOD = b"https://good.example"
ORIGINS = (b"https://bad.example", b"http://[", b"null", b"http://\xbc", b"]", b"//", b"a://[::1")
HOSTS = (b"evil.example:80", b"evil.example", b"[", b"::1", b"localhost@evil", b"a:b:c")
#: What else a request has (its key is right, unless it says another), the status, and what is said.
DOOR: list[tuple[dict[str, Any], int, str]] = [
    *[({"authorization": key}, 401, "key") for key in ("", "Bearer wrong", "sesame", "Basic x")],
    ({"authorization": "", "content": b"{" * 9999}, 401, "key"),  # the body is not even read
    *[({"content": body}, 413, "4096") for body in (b" " * 5000, [b" " * 100] * 100)],
    ({"content-encoding": "gzip"}, 415, "gzip"),
    *[({"origin": origin}, 403, "may not ask") for origin in ORIGINS],
    *[({"host": name}, 400, "localhost") for name in HOSTS],
    *[({"host": name}, 200, "") for name in ("localhost", "127.0.0.1:80", "[::1]", "LOCALHOST:8")],
    ({"origin": GOOD}, 200, ""),
    ({"content-encoding": "identity"}, 200, ""),
]


@pytest.mark.parametrize("path", PATHS)
def test_the_door_refuses_before_the_model_works(locked: Running, path: str) -> None:
    counts, body = locked.engine.model.counts, OURS.get(path, {"prompt": "a", "max_tokens": 1})
    for more, status, said in DOOR:
        headers = KEY | more
        content = headers.pop("content", json.dumps(body).encode())
        calls = counts["model_calls"]
        answer = httpx.post(locked.url + path, content=content, headers=headers, timeout=60)
        assert (answer.status_code, said in answer.text) == (status, True), more
        assert status == 200 or counts["model_calls"] == calls
        assert (answer.headers.get("www-authenticate") == "Bearer") == (status == 401)
        allowed = answer.headers.get("access-control-allow-origin", "").encode()
        assert allowed == (GOOD if more.get("origin") == GOOD else b"")
    for origin, status in ((GOOD, 200), (b"https://bad.example", 403)):
        preflight = {"origin": origin, "access-control-request-method": "POST"}
        preflight |= {"access-control-request-headers": "authorization, x-stainless-os"}
        assert httpx.options(locked.url + path, headers=preflight).status_code == status
    with socket.create_connection(("127.0.0.1", locked.port)) as one:  # which breaks off
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer sesame\r\n"
        one.sendall(head.encode() + b"content-length: 100\r\n\r\n{")
    assert httpx.get(locked.url + "/health").is_success
    assert httpx.get(locked.url + "/metrics").status_code == 401


def test_an_origin_that_no_page_has_is_a_wrong_setting() -> None:
    for origin in ("example.com", "http://a/b", "http://a b", "//a"):
        with pytest.raises(SettingError, match="allow_origins"):
            Settings(allow_origins=("https://a", origin))


def test_a_full_queue_says_when_to_come_again(
    locked: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locked.engine, "max_waiting", 0)
    for path, stream in (("/v1/completions", False), ("/infill", False), ("/v1/completions", True)):
        body = {"prompt": "a", "stream": stream}
        answer = httpx.post(locked.url + path, json=body, headers=KEY)
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) > 0
        assert "wait" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("required", "clients"), [(None, ["Bearer ann", "10.0.0.7"]), ("ann", ["10.0.0.7"])]
)
def test_a_client_is_its_key_unless_everyone_has_it_or_its_address(
    lm: CharLM, required: str | None, clients: list[str]
) -> None:
    app, names = application(lm, Settings(api_key=required)), list[str]()
    call = app.state.engine.call

    async def note(*arguments: Any, **more: Any) -> Any:
        names.append(CLIENT.get())
        return await call(*arguments, **more)

    app.state.engine.call = note
    with TestClient(app, client=("10.0.0.7", 5), base_url="http://127.0.0.1") as one:
        for headers in ({"authorization": "Bearer ann"}, {}):
            one.post("/v1/next", json={"prompt": "a"}, headers=headers)
    assert names[-len(clients) :] == clients


def test_metrics_are_those_of_the_work_done(http: httpx.Client) -> None:
    http.post("/v1/completions", json={"prompt": "import nump"})
    lines = http.get("/metrics").text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    some = ("prompt_tokens_total", "generation_tokens_total", "model_seconds", "model_calls")
    for name in (*some, "states", "trees", "kept_bytes", "completion_seconds_count"):
        assert float(values[f"charwise_{name}"]) > 0
    assert float(values["charwise_requests_waiting"]) == 0
    for kind in ("prompt_tokens_total counter", "states gauge"):
        assert f"# TYPE charwise_{kind}" in lines
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


# Requests that nobody would send on purpose: wrong types, odd values, broken bodies.

TEXTS = st.text(max_size=40) | st.sampled_from(
    ["import nump", "<fim_prefix>a<fim_suffix>b<fim_middle>", "[SUFFIX]a[PREFIX]b", "x" * 300]
)
NAMES = st.deferred(lambda: st.sampled_from(sorted(FIELDS)))
FIELDS: set[str] = {"logit_bias", "min_p", "tools"}  # and those of each request
VALUES = st.recursive(
    TEXTS | st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
SMALL = dict.fromkeys(("max_tokens", "n_predict", "max_bytes"), st.integers(0, 3))
OBJECTS = st.builds(
    lambda odd, bounded: json.dumps(odd | bounded).encode(),
    st.dictionaries(NAMES, VALUES, max_size=2),
    # Their work is bounded, so that many can be sent.
    st.fixed_dictionaries({"prompt": TEXTS} | SMALL) | st.just({}),
)
BROKEN = st.one_of(
    st.binary(max_size=60),
    VALUES.map(json.dumps).map(str.encode),
    st.integers(0, 20_000).map(lambda depth: b"[" * depth),
    st.sampled_from([rb'{"prompt": "\ud800"}', b'{"n": 1e999}', b'{"n": 01}', b"{'n': 1}"]),
    st.builds(lambda body, size: body[:size], OBJECTS, st.integers(0, 40)),
)


@pytest.mark.slow
def test_no_request_makes_the_server_fail() -> None:
    statuses = Counter[int]()
    with running(seconds=1.0) as one, httpx.Client(base_url=one.url, timeout=120) as client:
        paths = client.get("/openapi.json").json()["paths"]
        for body in (path["post"]["requestBody"] for path in paths.values() if "post" in path):
            FIELDS.update(body["content"]["application/json"]["schema"]["properties"])

        @given(
            st.sampled_from(["POST"] * 40 + ["GET", "PUT", "DELETE", "PATCH", "HEAD"]),
            st.sampled_from(sorted(paths) + PATHS[:3] * 8),  # which take most fields
            st.booleans().flatmap(lambda whole: OBJECTS if whole else BROKEN),
            st.sampled_from(
                [{}] * 90 + [{"origin": one} for one in ORIGINS] + [{"host": HOSTS[2]}]
            ),
        )
        @examples(1600)
        def send(method: str, path: str, body: bytes, headers: dict[str, bytes]) -> None:
            answer = client.request(method, path, content=body, headers=headers)
            statuses[answer.status_code] += 1
            assert answer.status_code < 500 or answer.status_code == 503
            assert b"the server failed" not in answer.content

        send()
        assert min(statuses[200], statuses[400]) > 100 or statuses.total() < 1600
        assert not one.engine.waiting
        assert ask(one.url, "import nump").startswith("y")


CODE = "import os\n\n\ndef names(path):\n    return [n for n in os.listdir(path) if n]\n"
LONG = {"prompt": "x = [", "max_tokens": 900, "temperature": 1.0, "seed": 1}


def ask(url: str, prompt: str, **more: Any) -> Any:
    body = {"prompt": prompt, "max_tokens": 3, "seed": 1, **more}
    answer = httpx.post(url + "/v1/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


@contextmanager
def process(folder: Path, port: int, *options: str) -> Iterator[Command]:
    """`charwise serve`, once it answers."""
    started = Command(["serve", "--port", str(port), *options], folder)
    try:
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            except httpx.TransportError:
                assert started.running, started.errors.read_text()
                time.sleep(0.1)
        yield started
    finally:
        started.send_signal(signal.SIGKILL)
        started.wait()


@contextmanager
def streaming(port: int) -> Iterator[socket.socket]:
    """A client that asks for a long stream, and reads nothing of it."""
    body = json.dumps(LONG | {"stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        one.connect(("127.0.0.1", port))
        one.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        yield one


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MemoryError(), 503),
        (RuntimeError("CUDA out of memory.\nTried to allocate 2 GiB."), 503),
        (RuntimeError("shapes differ:\n[1]\n[2]"), 500),
    ],
)
def test_a_model_that_fails_in_any_call_costs_one_answer(error: Exception, status: int) -> None:
    """The request has one line of an error; the next one has the answer of a fresh server."""
    body = {"prompt": "import nump", "max_tokens": 4, "seed": 1}
    with running() as one, httpx.Client(base_url=one.url) as client:
        expected = one.lm.complete("import nump", max_new_bytes=40)[0].text
        calls, failing = 0, 0

        def fail(*_: object) -> None:
            nonlocal calls
            calls += 1
            if calls == failing:
                raise error

        hook = one.lm.engine.model.register_forward_pre_hook(fail)
        while not 0 < calls < failing:
            calls, failing = 0, failing + 1
            answer = client.post("/v1/completions", json=body)
            assert answer.status_code == (status if calls >= failing else 200)
            if calls >= failing:
                assert "\n" not in answer.json()["error"]["message"]
                answer = client.post("/v1/completions", json=body)
            assert expected.startswith(answer.json()["choices"][0]["text"])
        hook.remove()
        assert failing > 3


def test_who_does_not_read_a_stream_holds_up_nobody() -> None:
    with running(seconds=60.0) as one:
        expected = one.lm.complete("import nump", max_new_bytes=1)[0].text
        with streaming(one.port), streaming(one.port):
            while one.engine.under_way < 2:
                time.sleep(0.02)
            assert ask(one.url, "import nump", max_bytes=1) == expected
        while one.engine.under_way:  # until they left
            time.sleep(0.02)
        assert ask(one.url, "import nump", max_bytes=1) == expected


@pytest.mark.slow
def test_a_server_that_is_killed_or_stopped_loses_nothing_that_is_missed(tmp_path: Path) -> None:
    """The next one on its port answers whole texts as it did, and finishes what is under way."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with process(tmp_path, port) as started:
        typed = [ask(url, CODE + "for na"[:size]) for size in range(1, 7)]
        with streaming(port) as one:
            assert one.recv(64)
            started.send_signal(signal.SIGKILL)
            started.wait()
            one.settimeout(60)
            with suppress(ConnectionError):
                while one.recv(2**16):
                    pass
    with process(tmp_path, port, "--seconds", "3") as started:
        # Straight from the last key: nobody tells the server what came before.
        assert ask(url, CODE + "for na") == typed[-1]
        texts = list[str]()
        asking = threading.Thread(target=lambda: texts.append(ask(url, **LONG)))
        asking.start()
        time.sleep(0.7)
        started.send_signal(signal.SIGTERM)
        asking.join()
        assert texts[0]
        assert started.wait() in (0, -signal.SIGTERM)


@pytest.mark.parametrize(
    "command", ["serve --port", "gateway http://127.0.0.1:1 --port", "lsp --tcp"]
)
def test_a_port_that_is_taken_is_said_to_be_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("charwise.engines.load.open_engine", lambda *_, **__: pytest.fail("loaded"))
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = str(one.getsockname()[1])
        result = run(*command.split(), port)
    assert result.exit_code == 1
    assert f"cannot listen at 127.0.0.1, port {port}" in str(result.exception)
    assert command.split()[-1] in str(result.exception)
