"""Servers behind real sockets: an ASGI application in a thread, and a program that one starts."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def listening(app: Any, **options: Any) -> Iterator[str]:
    """The address of an application, until the end of the block; options are uvicorn's."""
    import uvicorn

    # Clients drop an idle connection first, as with our own servers: a request never meets that.
    usual = {"port": 0, "log_level": "error", "ws": "none", "timeout_keep_alive": 75}
    config = uvicorn.Config(app, **usual | options)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def started(command: Sequence[str], health: str = "/health", **environment: str) -> Iterator[str]:
    """The address of a server program, once it is healthy; PORT in its command is a free port."""
    import httpx

    port = str(free_port())
    address = f"http://127.0.0.1:{port}"
    command = [part.replace("PORT", port) for part in command]
    process = subprocess.Popen(command, env={**os.environ, **environment})
    try:
        until = time.monotonic() + 300
        while time.monotonic() < until:
            assert process.poll() is None, "the server did not start"
            try:
                if httpx.get(address + health).status_code == 200:
                    break
            except httpx.HTTPError:
                time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        process.wait()
