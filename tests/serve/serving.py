"""A real server for tests: uvicorn in a thread, on a port of its own, with the embedded model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import charwise
from charwise import CharLM
from listening import listening


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
    from charwise.serve.app import application
    from charwise.serve.server import Settings

    lm = charwise.load() if lm is None else lm
    app = application(lm, Settings(**settings))
    with listening(app, port=port, server_header=False) as url:
        yield Running(url, app.state.server, lm)
