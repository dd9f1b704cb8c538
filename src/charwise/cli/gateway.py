"""The command `charwise gateway`: token healing in front of a server."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated

import typer

from charwise.cli.options import HubOptions, takes_options
from charwise.cli.output import spinner
from charwise.errors import SettingError, needs


@dataclass(frozen=True)
class _Settings:
    """The options of `charwise gateway`."""

    server: Annotated[
        str, typer.Option("--server", help="auto, vllm, sglang, trtllm or llama.cpp.")
    ] = "auto"
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            help="Of its model: a GGUF file, a folder, a name on the hub; by default as it says.",
        ),
    ] = None
    host: Annotated[str, typer.Option("--host", help="Where to listen.")] = "127.0.0.1"
    port: Annotated[int, typer.Option("--port", min=0, max=65535)] = 8081
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            envvar="CHARWISE_GATEWAY_KEY",
            help="For the questions at the start. Clients give their own.",
        ),
    ] = None
    seconds: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Seconds that the server may say nothing.")
    ] = 600.0


@takes_options
def gateway(
    address: Annotated[str, typer.Argument(help="Of the server: http://HOST:PORT.")],
    settings: _Settings,
    hub: HubOptions,
) -> None:
    """Heal the prompts of completion requests on their way to a server.

    Clients call the gateway as they called the server. It needs `charwise[gateway]`.
    """
    with needs("gateway", "the gateway's parts are not installed"):
        import uvicorn

        from charwise.api.http import UVICORN
        from charwise.gateway.app import connect
        from charwise.gateway.servers import SERVERS
    if settings.server not in ("auto", *SERVERS):
        known = ", ".join(["auto", *SERVERS])
        raise SettingError(f"unknown server {settings.server!r}: use one of {known}.")
    headers = []
    if settings.api_key:
        headers.append((b"authorization", b"Bearer " + settings.api_key.encode()))
    with spinner("asking the server"):
        app = asyncio.run(
            connect(
                address,
                hub.index,
                server=settings.server,
                tokenizer=settings.tokenizer,
                headers=headers,
                seconds=settings.seconds,
            )
        )
    typer.echo(f"http://{settings.host}:{settings.port} heals completions for {address}", err=True)
    uvicorn.run(
        app,
        host=settings.host,
        port=settings.port,
        access_log=False,
        date_header=False,  # the server behind says who it is, and when
        **UVICORN,
    )
