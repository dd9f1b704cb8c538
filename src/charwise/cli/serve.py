"""The command `charwise serve`: completions over HTTP, for editors."""

from __future__ import annotations

import logging
import os
import socket
import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from charwise.cli.options import EffortOptions, ModelOptions, takes_options
from charwise.errors import SettingError, needs

#: Names of the loopback interface: who listens there is asked under these.
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class _Settings:
    """The options of `charwise serve` itself."""

    host: Annotated[
        str, typer.Option("--host", help="Where to listen; 0.0.0.0 for every interface.")
    ] = "127.0.0.1"
    port: Annotated[int, typer.Option("--port", min=0, max=65535)] = 8000
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", envvar="CHARWISE_API_KEY", help="Which requests must show."),
    ] = None
    max_queue: Annotated[
        int, typer.Option("--max-queue", min=1, help="Requests that may wait; more get a 429.")
    ] = 64
    seconds: Annotated[
        float,
        typer.Option("--seconds", min=0.1, help="In which a request is answered, with what is."),
    ] = 10.0
    allow_origin: Annotated[
        list[str] | None,
        typer.Option("--allow-origin", help="A web page's origin that may ask; * for all."),
    ] = None
    verbose: Annotated[bool, typer.Option("--verbose", help="A line for each request.")] = False


@takes_options
def serve(options: ModelOptions, effort: EffortOptions, server: _Settings) -> None:
    """Serve completions: OpenAI's API and llama.cpp's.

    It listens on this machine alone unless told otherwise, and needs `charwise[serve]`.
    """
    with needs("serve", "the server's parts are not installed"):
        import uvicorn

        from charwise.api.http import UVICORN
        from charwise.serve.app import application
        from charwise.serve.server import Settings, started
    listening = _listen(server.host, server.port)  # before a model is loaded in vain
    lm = options.load(effort)
    settings = Settings(
        name=options.model,
        api_key=server.api_key or None,
        max_queue=server.max_queue,
        seconds=server.seconds,
        allow_origins=tuple(server.allow_origin or ()),
        hosts=_LOOPBACK if server.host in _LOOPBACK else None,
    )
    logging.basicConfig(format="%(name)s: %(message)s")
    logging.getLogger("charwise.access").setLevel(logging.INFO if server.verbose else logging.ERROR)
    app = application(lm, settings)
    patience = int(server.seconds) + 5
    config = uvicorn.Config(app, timeout_graceful_shutdown=patience, **UVICORN)
    name, bound = listening.getsockname()[:2]
    url = f"http://{f'[{name}]' if ':' in name else name}:{bound}"
    listening.listen(config.backlog)  # who reads the line may connect at once
    print(f"{url} serves {started(lm, settings)}", file=sys.stderr, flush=True)
    uvicorn.Server(config).run([listening])


def _listen(host: str, port: int) -> socket.socket:
    """A socket at a host and port, to which nobody can connect before the server runs.

    Raises:
        SettingError: it cannot be had.
    """
    try:
        found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        if os.name == "posix":  # a port whose last connections are not quite over can be had
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        return found
    except OSError as error:
        raise SettingError(
            f"cannot listen at {host}, port {port}: {error.strerror or error}. Another server may "
            "run there: stop it, or choose with --host and --port."
        ) from error
