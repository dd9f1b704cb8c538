"""The playground served by an app of its own, in this process: one thread has the model."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI

from charwise import CharLM
from charwise.serve.playground.routes import mount
from charwise.serve.states import States


def app_of(lm: CharLM) -> FastAPI:
    app, thread, states = FastAPI(), ThreadPoolExecutor(1), States(lm)

    async def run(work: Callable[[CharLM], dict[str, Any]]) -> dict[str, Any]:
        return await asyncio.get_running_loop().run_in_executor(thread, work, lm)

    mount(app, run, lambda _, raw: states.at(raw))
    return app


@contextmanager
def serving(lm: CharLM) -> Iterator[str]:
    """Its address, while it is served."""
    server = uvicorn.Server(uvicorn.Config(app_of(lm), port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not (server.started and server.servers):
        assert thread.is_alive()
        threading.Event().wait(0.02)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
