"""An ASGI application behind a real socket: uvicorn in a thread, on a port of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
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
