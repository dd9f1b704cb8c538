"""Clients that are slow, many, cut off, or in each other's way, and the process that serves them.

The server goes on for the rest, finishes what is under way, and ends.
"""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from commands import Command, run
from serving import running

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


# Requests that nobody would send on purpose: wrong types, odd values, broken bodies.

PATHS = (
    *("/v1/completions", "/infill", "/completion") * 3,  # which take most fields
    "/v1/next", "/v1/score", "/v1/covering", "/v1/steps", "/props", "/health", "/v1/models",
    "/metrics", "/tokenize", "/detokenize", "/v1/chat/completions", "/nowhere",
)  # fmt: skip
FIELDS = (
    "prompt", "suffix", "max_tokens", "n_predict", "n", "n_cmpl", "temperature", "top_p", "top_k",
    "stop", "seed", "stream", "stream_options", "echo", "logprobs", "best_of", "logit_bias",
    "input_prefix", "input_suffix", "input_extra", "n_indent", "t_max_predict_ms", "samplers",
    "response_fields", "options", "raw", "content", "tokens", "text", "context", "per", "end",
    "top", "coverage", "chars", "mode", "until", "threshold", "max_bytes", "n_probs", "model",
    "token_healing", "messages",
)  # fmt: skip
TEXTS = (
    "", "a", "import nump", "\x00", "é", "日本", "😀", "\n" * 40, " " * 50, "<fim_prefix>",
    "<fim_prefix>a<fim_suffix>b<fim_middle>", "[SUFFIX]a[PREFIX]b", "line", "block", "plain",
    "healed", "exact", "word", "x" * 300, "\ufeff", "\u2028",
)  # fmt: skip
NUMBERS = (0, 1, 2, 5, -1, -5, 10**6, 10**18, 10**30, 0.5, -0.5, 1e-300, 1e300, 1.0, 2.5)
#: JSON that Python's writer has no value for.
RAW = ("NaN", "Infinity", "-Infinity", '"\\ud800"', "1e999", "01", "'a'", "{", "]", "tru", '"\\x"')
#: What a page's browser says of it, and the name it asks under: most of them are no address.
ORIGINS = (b"null", b"http://[", b"]", b"http://\xbc", b"\xff", b"https://bad.example", b"*", b"//")
HOSTS = (b"", b"[", b"[::1", b"\xff", b"a:b:c", b":", b"localhost:x")


def value(rng: Random, depth: int = 0) -> Any:
    """A value of whatever type."""
    if depth < 3 and rng.random() < 0.3:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if depth < 3 and rng.random() < 0.1:
        return {rng.choice(FIELDS): value(rng, depth + 1) for _ in range(rng.randrange(3))}
    return rng.choice((rng.choice(TEXTS), rng.choice(NUMBERS), rng.choice((True, False, None))))


def body_at_random(rng: Random) -> bytes:
    """A body: an object, something else, or no JSON at all."""
    made = {rng.choice(FIELDS): value(rng) for _ in range(rng.randrange(6))}
    if rng.random() < 0.9:  # work is bounded in most of them, so that many can be sent
        made = {"prompt": rng.choice(TEXTS), "max_bytes": rng.choice((0, 1, 7))} | made
        made |= dict.fromkeys(("max_tokens", "n_predict"), rng.choice((0, 1, 2, 3)))
    text = json.dumps(made)
    others = (
        lambda: rng.randbytes(rng.randrange(60)),
        lambda: json.dumps(value(rng)).encode(),
        lambda: (rng.choice("[{") * rng.randrange(20_000)).encode(),
        lambda: text.replace("null", rng.choice(RAW)).encode(),
        lambda: text[: rng.randrange(len(text))].encode(),
    )
    return rng.choice(others)() if rng.random() < 0.4 else text.encode()


@pytest.mark.slow
def test_no_request_makes_the_server_fail() -> None:
    rng, statuses = Random(1), Counter[int]()
    with running(seconds=1.0) as one, httpx.Client(base_url=one.url, timeout=120) as client:
        for _ in range(1600):
            method = rng.choice(("POST",) * 12 + ("GET", "PUT", "DELETE", "PATCH", "HEAD"))
            headers = {"origin": rng.choice(ORIGINS)} if rng.random() < 0.03 else {}
            headers |= {"host": rng.choice(HOSTS)} if rng.random() < 0.01 else {}
            path, body = rng.choice(PATHS), body_at_random(rng)
            answer = client.request(method, path, content=body, headers=headers)
            statuses[answer.status_code] += 1
            said = f"{method} {path} {body[:300]!r}: {answer.text[:300]}"
            assert answer.status_code < 500 or answer.status_code == 503, said
            assert b"the server failed" not in answer.content, said
        assert min(statuses[200], statuses[400]) > 100
        assert not one.engine.waiting
        assert ask(one.url, "import nump").startswith("y")


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
    body = {"prompt": "import nump", "max_tokens": 4}
    with running() as one:
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
            answer = httpx.post(one.url + "/v1/completions", json=body | {"seed": 1})
            assert answer.status_code == (status if calls >= failing else 200)
            if calls >= failing:
                assert "\n" not in answer.json()["error"]["message"]
                answer = httpx.post(one.url + "/v1/completions", json=body | {"seed": 1})
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
