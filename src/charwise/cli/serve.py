"""The commands `charwise serve` and `charwise lsp`: completions for editors."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from charwise.cli.options import EffortOptions, ModelOptions, takes_options, without_defaults
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
        typer.Option(
            "--seconds",
            min=0.1,
            help="After which no more is drawn; a prompt is read to its end.",
        ),
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
        from charwise.serve.app import Settings, application, started
    log = {"log_level": "info"} if server.verbose else {}
    patience = int(server.seconds) + 5
    config = uvicorn.Config(
        "",
        host=server.host,
        port=server.port,
        timeout_graceful_shutdown=patience,
        **UVICORN | log,
    )
    try:
        listening = config.bind_socket()  # before a model is loaded in vain
    except SystemExit:  # it has said why
        raise SettingError(
            f"cannot listen at {server.host}, port {server.port}. Another server may run there: "
            "stop it, or choose with --host and --port."
        ) from None
    lm = options.load(effort)
    settings = Settings(
        name=options.model,
        api_key=server.api_key or None,
        max_queue=server.max_queue,
        seconds=server.seconds,
        allow_origins=tuple(server.allow_origin or ()),
        hosts=_LOOPBACK if server.host in _LOOPBACK else None,
    )
    config.app = application(lm, settings)
    name, bound = listening.getsockname()[:2]
    url = f"http://{f'[{name}]' if ':' in name else name}:{bound}"
    listening.listen(config.backlog)  # who reads the line may connect at once
    print(f"{url} serves {started(lm, settings)}", file=sys.stderr, flush=True)
    uvicorn.Server(config).run([listening])


@dataclass(frozen=True)
class _Speech:
    """The options of `charwise lsp` itself."""

    tcp: Annotated[
        int | None,
        typer.Option("--tcp", min=0, max=65535, help="Listen on this port instead of stdin."),
    ] = None
    stdio: Annotated[
        bool, typer.Option("--stdio", help="Speak over stdin and stdout, as it does anyway.")
    ] = False
    host: Annotated[str, typer.Option("--host", help="Where to listen, with --tcp.")] = "127.0.0.1"


@takes_options
def lsp(options: ModelOptions, effort: EffortOptions, speech: _Speech) -> None:
    """Inline completions for an editor, over stdin and stdout. It needs `charwise[lsp]`.

    Editors set the rest in their initializationOptions: see docs/editors.md.
    """
    effort.check()
    if speech.stdio and speech.tcp is not None:
        raise SettingError("--stdio and --tcp are two ways to speak: give one of them.")
    with needs("lsp", "the language server's parts are not installed"):
        from charwise.serve.lsp import Models, serve_stdin, serve_tcp
    from charwise.serve.lsp_settings import Settings

    def load(**chosen: Any) -> Any:
        from charwise.char_lm import load

        arguments = without_defaults(**asdict(options), **asdict(effort)) | chosen
        return load(arguments.pop("model"), **arguments)

    if speech.tcp is not None:
        try:
            asyncio.run(serve_tcp(Models(load), Settings(), speech.host, speech.tcp))
        except OSError as error:
            raise SettingError(
                f"cannot listen on {speech.host}:{speech.tcp}: {error.strerror}."
            ) from error
        return
    if sys.stdin is None or sys.stdout is None:
        raise SettingError("stdin or stdout is closed: an editor starts `charwise lsp`, or --tcp.")
    # What else prints to stdout would be read as a message.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(2, sys.stdout.fileno())
    serve_stdin(Models(load), Settings(), sys.stdin.buffer, out)
