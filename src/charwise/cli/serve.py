"""The commands `charwise serve`, `lsp` and `gateway`: completions for editors, and for servers."""

import asyncio
import os
import socket
import sys
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import typer

from charwise.cli.options import (
    EffortOptions,
    HubOptions,
    ModelOptions,
    option,
    takes_options,
)
from charwise.cli.output import safe, spinner
from charwise.errors import SettingError, needs

_HOST = "Where to listen; 0.0.0.0 for every interface."

#: Names of the loopback interface: who listens there is asked under these.
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class _ServeSettings:
    host: str = option("127.0.0.1", _HOST)
    port: int = option(8000, None, min=0, max=65535)
    api_key: str | None = option(None, "Which requests must show.", envvar="CHARWISE_API_KEY")
    max_queue: int = option(64, "Requests that may wait; more get a 429.", min=1)
    seconds: float = option(10.0, "For an answer, once its prompt is read.", min=0.1)
    allow_origin: list[str] | None = option(None, "A web page's origin that may ask; * for all.")
    verbose: bool = option(False, "A line for each request.")


@takes_options
def serve(options: ModelOptions, effort: EffortOptions, server: _ServeSettings) -> None:
    """Serve completions: OpenAI's API and llama.cpp's.

    It listens on this machine alone unless told otherwise, and needs `charwise[serve]`.
    """
    with needs("serve", "the server's parts are not installed"):
        from charwise.serve.app import Settings, application
    settings = Settings(
        name=options.model,
        api_key=server.api_key or None,
        max_queue=server.max_queue,
        seconds=server.seconds,
        allow_origins=tuple(server.allow_origin or ()),
        hosts=_LOOPBACK if server.host in _LOOPBACK else None,
    )
    bound = _bound_socket(server.host, server.port, "--port")  # before a model is loaded in vain
    lm = options.load(effort)
    window = lm.engine.window
    length = "no window" if window is None else f"window {window:,} tokens"
    key = "a key is required" if settings.api_key else "no key"
    _answer(
        application(lm, settings),
        bound,
        f"serves {settings.name}: {length}, {key}.",
        timeout_graceful_shutdown=int(server.seconds) + 5,
        log_level="info" if server.verbose else "warning",
    )


def _bound_socket(host: str, port: int, option: str) -> socket.socket:
    """Return a socket that has the port which an option names, and does not listen yet."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        raise SettingError(
            f"cannot listen at {host}, port {port}: {error.strerror}. Another server may run "
            f"there: stop it, or choose with --host and {option}."
        ) from None
    return bound


def _answer(app: Any, bound: socket.socket, what: str, **options: Any) -> None:
    """Answer requests at a socket until Ctrl-C; says where on stderr."""
    import uvicorn

    from charwise.api.http import UVICORN

    host, port = bound.getsockname()[:2]
    bound.listen(2048)  # who reads the line may connect at once
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    print(f"{url} {safe(what)}", file=sys.stderr, flush=True)
    uvicorn.Server(uvicorn.Config(app, **UVICORN | options)).run([bound])


@dataclass(frozen=True)
class _SpeechSettings:
    tcp: int | None = option(None, "Listen on this port instead of stdin.", min=0, max=65535)
    stdio: bool = option(False, "Speak over stdin and stdout, as it does anyway.")
    host: str = option("127.0.0.1", "Where to listen, with --tcp.")


@takes_options
def lsp(options: ModelOptions, effort: EffortOptions, speech: _SpeechSettings) -> None:
    """Inline completions for an editor, over stdin and stdout. It needs `charwise[lsp]`.

    Editors set the rest in their initializationOptions: see docs/editors.md.
    """
    effort.check()
    if speech.stdio and speech.tcp is not None:
        raise SettingError("--stdio and --tcp are two ways to speak: give one of them.")
    with needs("lsp", "the language server's parts are not installed"):
        from charwise.serve.lsp import Model, serve_stdin, serve_tcp

    model = Model(partial(options.load, effort))
    if speech.tcp is not None:
        asyncio.run(serve_tcp(model, _bound_socket(speech.host, speech.tcp, "--tcp")))
        return
    if sys.stdin is None:
        raise SettingError("stdin is closed: an editor starts `charwise lsp`, or --tcp.")
    # What else prints to stdout would be read as a message.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(2, sys.stdout.fileno())
    serve_stdin(model, sys.stdin.buffer, out)


@dataclass(frozen=True)
class _GatewaySettings:
    server: Literal["auto", "vllm", "sglang", "trtllm", "llama.cpp"] = option(
        "auto", "Which kind it is."
    )
    tokenizer: str | None = option(
        None, "Of its model: a GGUF file, a folder, a name on the hub; by default as it says."
    )
    host: str = option("127.0.0.1", _HOST)
    port: int = option(8081, None, min=0, max=65535)
    api_key: str | None = option(
        None,
        "For the questions at the start. Clients give their own.",
        envvar="CHARWISE_GATEWAY_KEY",
    )
    seconds: float = option(600.0, "Seconds that the server may say nothing.", "--timeout", min=0.1)


@takes_options
def gateway(
    address: Annotated[str, typer.Argument(help="Of the server: http://HOST:PORT.")],
    settings: _GatewaySettings,
    hub: HubOptions,
) -> None:
    """Heal the prompts of completion requests on their way to a server.

    Clients call the gateway as they called the server. It needs `charwise[gateway]`.
    """
    with needs("gateway", "the gateway's parts are not installed"):
        from charwise.gateway.app import connect
    bound = _bound_socket(settings.host, settings.port, "--port")
    key = [(b"authorization", b"Bearer " + settings.api_key.encode())] if settings.api_key else []
    with spinner("asking the server"):
        app = asyncio.run(
            connect(
                address,
                hub.index,
                server=settings.server,
                tokenizer=settings.tokenizer,
                headers=key,
                seconds=settings.seconds,
            )
        )
    _answer(
        app,
        bound,
        f"heals completions for {address}",
        access_log=False,
        date_header=False,  # the server behind says who it is, and when
    )
