"""The command `charwise heal-proxy`: what it refuses, and that it answers and ends."""

from __future__ import annotations

import signal
import socket
import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import commands
from charwise.errors import CharwiseError, SettingError
from preloaded import Command

httpx = pytest.importorskip("httpx")
pytest.importorskip("uvicorn")


run = partial(commands.run, "heal-proxy")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--upstream", "localhost:8080"], "give http://HOST:PORT"),
        (["--upstream", "http://localhost:8080", "--server", "apache"], "use one of auto"),
    ],
)
def test_what_it_refuses(arguments: list[str], sentence: str) -> None:
    result = run(*arguments, "--tokenizer", "embedded")
    assert result.exit_code == 1
    assert isinstance(result.exception, CharwiseError)
    assert sentence in str(result.exception)


class OfAnotherModel(BaseHTTPRequestHandler):
    """Tells one token for every text."""

    def do_POST(self) -> None:
        said = b'{"tokens": [7]}'
        self.send_response(200)
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: Any) -> None:
        pass


def test_another_tokenizer_than_the_server_s_is_refused() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), OfAnotherModel) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        result = run("--upstream", url, "--tokenizer", "embedded")
        server.shutdown()
    assert result.exit_code == 1
    assert isinstance(result.exception, SettingError)
    assert f"the server at {url} has another tokenizer" in str(result.exception)


def test_it_needs_a_server_and_a_tokenizer() -> None:
    assert run("--upstream", "http://localhost:8080").exit_code == 2
    assert run("--tokenizer", "embedded").exit_code == 2


def test_it_answers_until_it_is_interrupted(tmp_path: Path) -> None:
    """Nobody is behind it, so what it answers is that."""
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    behind, ours = ports
    arguments = ["heal-proxy", "--tokenizer", "embedded"]
    arguments += ["--upstream", f"http://127.0.0.1:{behind}", "--port", str(ours)]
    process = Command(arguments, tmp_path)
    try:
        body = {"prompt": "raise ValueErr"}
        for _ in range(600):
            assert process.running, process.errors.read_text()
            try:
                answer = httpx.post(
                    f"http://127.0.0.1:{ours}/v1/completions", json=body, timeout=30
                )
                break
            except httpx.ConnectError:
                time.sleep(0.1)
        assert answer.status_code == 502
        assert answer.headers["x-charwise"] == "off; reason=unknown-server"
        assert f"http://127.0.0.1:{behind}" in answer.json()["error"]["message"]
        started = process.errors.read_text()
        assert f"http://127.0.0.1:{ours} heals completions for http://127.0.0.1:{behind}" in started
        assert "which the server could not be asked about" in started
        process.send_signal(signal.SIGINT)
        assert process.wait() in (0, 130, -signal.SIGINT)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
