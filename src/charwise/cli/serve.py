"""The command `charwise serve`: completions over HTTP, for editors."""

from __future__ import annotations

import logging
from typing import Annotated, Literal

import typer

from charwise.cli.options import ModelOptions, PresetOption, ToleranceOption, takes_model
from charwise.errors import MissingExtraError

#: Names of the loopback interface: who listens there is asked under these.
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@takes_model
def serve(
    options: ModelOptions,
    host: Annotated[
        str, typer.Option("--host", help="Where to listen; 0.0.0.0 for every interface.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535)] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", envvar="CHARWISE_API_KEY", help="Which requests must show."),
    ] = None,
    mode: Annotated[
        Literal["exact", "healed", "plain"],
        typer.Option("--mode", help="What becomes of a prompt's end, unless a request says it."),
    ] = "exact",
    max_queue: Annotated[
        int, typer.Option("--max-queue", min=1, help="Requests that may wait; more get a 429.")
    ] = 64,
    seconds: Annotated[
        float,
        typer.Option("--seconds", min=0.1, help="In which a request is answered, with what is."),
    ] = 10.0,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option("--allow-origin", help="A web page's origin that may ask; * for all."),
    ] = None,
    preset: PresetOption = None,
    tolerance: ToleranceOption = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="A line for each request.")] = False,
) -> None:
    """Serve completions: OpenAI's API, llama.cpp's, Ollama's, and sessions for editors.

    It listens on this machine alone unless told otherwise, and needs `charwise[serve]`.
    """
    try:
        import uvicorn

        from charwise.serve.app import application
        from charwise.serve.server import Settings
    except ImportError as error:
        raise MissingExtraError(
            f"the server's parts are not installed: pip install 'charwise[serve]'. ({error})"
        ) from error
    lm = options.load(preset, tolerance)
    settings = Settings(
        name=options.model,
        mode=mode,
        api_key=api_key or None,
        max_queue=max_queue,
        seconds=seconds,
        allow_origins=tuple(allow_origin or ()),
        hosts=_LOOPBACK if host in _LOOPBACK else None,
    )
    logging.basicConfig(format="%(name)s: %(message)s")
    uvicorn.run(
        application(lm, settings),
        host=host,
        port=port,
        log_level="info" if verbose else "warning",
        server_header=False,
        timeout_graceful_shutdown=int(seconds) + 5,
    )
