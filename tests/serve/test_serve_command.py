"""`charwise serve` as a process: it starts, answers, finishes what is under way, and ends."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from preloaded import Command


@contextmanager
def process(folder: Path, *options: str, port: int = 0) -> Iterator[tuple[Command, str]]:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", port))
        port = one.getsockname()[1]
    started = Command(["serve", "--port", str(port), *options], folder)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(1200):
            try:
                httpx.get(url + "/health", timeout=5)
                break
            except httpx.TransportError:
                assert started.running, started.errors.read_text()
                time.sleep(0.1)
        yield started, url
    finally:
        started.send_signal(signal.SIGKILL)
        started.wait()


@pytest.mark.slow
def test_a_stop_finishes_what_is_under_way_and_a_restart_loses_nothing(tmp_path: Path) -> None:
    ask = {"prompt": "import nump", "max_tokens": 1, "seed": 1}
    with process(tmp_path, "--seconds", "3") as (started, url):
        first = httpx.post(url + "/v1/completions", json=ask, timeout=60).json()
        assert first["choices"][0]["text"] == "y"
        answers = list[httpx.Response]()
        long = {"prompt": "x = [", "max_tokens": 900, "temperature": 1.0, "seed": 1}
        asking = threading.Thread(
            target=lambda: answers.append(
                httpx.post(url + "/v1/completions", json=long, timeout=60)
            )
        )
        asking.start()
        time.sleep(0.7)
        started.send_signal(signal.SIGTERM)
        asking.join()
        assert answers[0].status_code == 200
        assert answers[0].json()["usage"]["completion_tokens"] > 0
        assert started.wait() in (0, -signal.SIGTERM)
    with process(tmp_path) as (_, url):
        again = httpx.post(url + "/v1/completions", json=ask, timeout=60).json()
    assert again["choices"] == first["choices"]
