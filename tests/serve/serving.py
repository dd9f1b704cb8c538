"""A real server for tests: uvicorn in a thread, on a port of its own, with the embedded model."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import charwise
from charwise import CharLM


@dataclass
class Running:
    """A server that runs.

    Attributes:
        url: where.
        server: what answers.
        lm: the same model, for comparison.
    """

    url: str
    server: Any
    lm: CharLM

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])


@contextmanager
def running(lm: CharLM | None = None, *, port: int = 0, **settings: Any) -> Iterator[Running]:
    """A server with these settings, until the end of the block."""
    import uvicorn

    from charwise.serve.app import application
    from charwise.serve.server import Settings

    lm = charwise.load() if lm is None else lm
    app = application(lm, Settings(**settings))
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", server_header=False))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Running(f"http://127.0.0.1:{port}", app.state.server, lm)
    finally:
        server.should_exit = True
        thread.join()
