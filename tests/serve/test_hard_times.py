"""Clients that are slow, many, cut off, or in each other's way: the server goes on for the rest."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from requests_at_random import send
from serving import Running, running
from test_serve_command import process

CODE = "import os\n\n\ndef names(path):\n    return [n for n in os.listdir(path) if n]\n"


def ask(url: str, prompt: str, **more: Any) -> Any:
    body = {"prompt": prompt, "max_tokens": 3, "seed": 1, **more}
    answer = httpx.post(url + "/v1/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


@contextmanager
def streaming(port: int) -> Iterator[socket.socket]:
    """A client that asks for a long stream, and reads nothing of it."""
    body = json.dumps(
        {"prompt": "x = [", "max_tokens": 900, "temperature": 1.0, "seed": 3, "stream": True}
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        one.connect(("127.0.0.1", port))
        one.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        yield one


def wait_for(condition: Any, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
def test_no_request_makes_the_server_fail() -> None:
    with running(seconds=1.0) as one:
        statuses, failed = send(one.url, 1200, seed=1)  # some end at their headers
        assert not failed, "\n".join(failed)
        assert statuses[200] > 100
        assert statuses[400] > 100
        assert not one.engine.waiting
        assert ask(one.url, "import nump").startswith("y")


def test_who_does_not_read_a_stream_holds_up_nobody() -> None:
    with running(seconds=60.0) as one:
        worker = one.engine
        with streaming(one.port), streaming(one.port):
            wait_for(lambda: worker.under_way == 2)
            expected = one.lm.complete("import nump", max_new_bytes=1)[0].text
            assert ask(one.url, "import nump", max_bytes=1) == expected
        wait_for(lambda: worker.under_way == 0)  # they left
        assert ask(one.url, "import nump", max_bytes=1) == expected


@pytest.mark.slow
def test_a_server_that_is_killed_in_a_stream_leaves_nothing_that_is_missed(
    tmp_path: Path,
) -> None:
    """The next one on the same port answers whole texts as if nothing had been."""
    with process(tmp_path) as (started, url):
        port = int(url.rsplit(":", 1)[1])
        typed = [ask(url, CODE + "for na"[:size]) for size in range(1, 7)]
        with streaming(port) as one:
            assert one.recv(64)
            started.send_signal(signal.SIGKILL)
            started.wait()
            one.settimeout(60)
            with suppress(ConnectionError):
                while one.recv(2**16):
                    pass
    with process(tmp_path, port=port) as (_, again):
        # Straight from the last key: nobody tells the server what came before.
        assert again == url
        assert ask(again, CODE + "for na") == typed[-1]


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("serve --model /nowhere --port", "--port"),
        ("gateway http://127.0.0.1:1 --port", "--port"),
        ("lsp --model /nowhere --tcp", "--tcp"),
    ],
)
def test_a_port_that_is_taken_is_said_to_be_before_a_model_is_loaded(
    command: str, option: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = str(one.getsockname()[1])
        line = [sys.executable, "-m", "charwise", *command.split(), port]
        ended = subprocess.run(line, capture_output=True, timeout=120, env={**os.environ})
    said = ended.stderr.decode()
    assert ended.returncode == 1
    assert f"cannot listen at 127.0.0.1, port {port}" in said
    assert option in said
    assert said.count("\n") == 1


def test_long_documents(running_server: Running) -> None:
    """5 MB are too long a body; 3 MB are too long for the window."""
    url = running_server.url
    long = {"prompt": CODE * 70_000, "max_tokens": 1}
    assert len(long["prompt"]) > 5_000_000
    answer = httpx.post(url + "/v1/completions", json=long, timeout=120)
    assert answer.status_code == 413
    assert "4194304 bytes" in answer.json()["error"]["message"]
    window = running_server.lm.engine.window
    long = {"prompt": CODE * 40_000 + "for na", "max_tokens": 1}
    answer = httpx.post(url + "/v1/completions", json=long, timeout=120)
    assert answer.status_code == 400
    said = rf"the prompt has \d+ tokens, and the model's window is {window}:"
    assert re.match(said, answer.json()["error"]["message"])
    assert ask(url, "import nump", max_bytes=1)
