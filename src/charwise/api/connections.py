"""HTTP connections that end where a client sends nothing, for uvicorn."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class PatientProtocol(H11Protocol):
    """uvicorn's own protocol, which waits for the head of a request only so long.

    uvicorn ends connections that are idle after an answer (`timeout_keep_alive`), and no others.

    Attributes:
        head_seconds: in which the head of a request is there, from its first byte or the
            connection's begin.
    """

    head_seconds = 10.0
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a head."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Read on, and wait for the rest of a head, if one has begun."""
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        super().connection_lost(exc)
        self._stop()

    def _wait(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()  # the head was whole
        elif self._late is None:
            self._late = self.loop.call_later(self.head_seconds, self._end)

    def _stop(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _end(self) -> None:
        self._late = None
        self.transport.close()


#: What our servers tell uvicorn alike.
UVICORN: dict[str, Any] = {
    "http": PatientProtocol,
    "timeout_keep_alive": 75,
    "log_level": "warning",
    "server_header": False,
}
