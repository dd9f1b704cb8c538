"""The command `charwise heal-proxy`: what it refuses, and that it answers and ends."""

from __future__ import annotations

import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from charwise.cli.app import app
from charwise.errors import CharwiseError
from preloaded import Command

httpx = pytest.importorskip("httpx")
pytest.importorskip("uvicorn")


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["heal-proxy", *arguments])


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
        process.send_signal(signal.SIGINT)
        assert process.wait() in (0, 130, -signal.SIGINT)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
