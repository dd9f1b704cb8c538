"""A stop that finishes what sessions have asked for, before it closes them."""

from __future__ import annotations

import asyncio
import socket
import time

import uvicorn

from charwise.serve.server import Server


class Stopping(uvicorn.Server):
    """uvicorn, which finishes HTTP requests when it is stopped, and closes sessions at once.

    What a session asks for after the stop is not waited for, and nothing for longer than
    `timeout_graceful_shutdown`.

    Args:
        config: of uvicorn.
        server: which knows what sessions have asked for.
    """

    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self._server = server

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, answer, and end."""
        for one in self.servers:
            one.close()
        for listening in sockets or ():
            listening.close()
        asked = set(self._server.asked)
        end = time.monotonic() + (self.config.timeout_graceful_shutdown or 0)
        while asked and not self.force_exit and time.monotonic() < end:
            _, asked = await asyncio.wait(asked, timeout=0.1)
        await super().shutdown(sockets)
