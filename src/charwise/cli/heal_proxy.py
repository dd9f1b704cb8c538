"""The command `charwise heal-proxy`: token healing in front of somebody else's server."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from charwise.cli.options import HubOptions, takes_options
from charwise.cli.terminal import busy
from charwise.errors import SettingError, needs

if TYPE_CHECKING:
    from charwise.tokens.vocabulary import Vocabulary


@dataclass(frozen=True)
class _Settings:
    """The options of `charwise heal-proxy`."""

    upstream: Annotated[
        str, typer.Option("--upstream", help="Address of the server behind: http://HOST:PORT.")
    ]
    tokenizer: Annotated[
        str,
        typer.Option("--tokenizer", help="Of its model: a GGUF file, a folder, a name on the hub."),
    ]
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Heal only requests that name this model."),
    ] = None
    server: Annotated[
        str,
        typer.Option("--server", help="auto, llama.cpp or llama-cpp-python: what is behind."),
    ] = "auto"
    host: Annotated[str, typer.Option("--host", help="Where to listen.")] = "127.0.0.1"
    port: Annotated[int, typer.Option("--port", min=0, max=65535)] = 8081
    on_request: Annotated[
        bool, typer.Option("--on-request", help="Heal only what asks for it (charwise_heal).")
    ] = False
    seconds: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Seconds that the server may say nothing.")
    ] = 600.0
    verbose: Annotated[
        bool, typer.Option("--verbose", help="A line for each request, with its times.")
    ] = False


@takes_options
def heal_proxy(settings: _Settings, hub: HubOptions) -> None:
    """Heal the prompts of completion requests on their way to a server.

    Clients call the proxy as they called the server. It needs `charwise[proxy]`.
    """
    with needs("proxy", "the proxy's parts are not installed"):
        import uvicorn

        from charwise.api.http import UVICORN
        from charwise.processors.proxy.app import HealingProxy
        from charwise.processors.proxy.plan import SERVERS
        from charwise.processors.proxy.relay import Relay
    if settings.server != "auto" and settings.server not in SERVERS:
        known = ", ".join(["auto", *SERVERS])
        raise SettingError(f"unknown server {settings.server!r}: use one of {known}.")
    relay = Relay(settings.upstream, settings.seconds)
    index = hub.index(settings.tokenizer)
    logging.basicConfig(format="%(name)s: %(message)s")
    logging.getLogger("charwise.proxy").setLevel(
        logging.DEBUG if settings.verbose else logging.INFO
    )
    kind = None if settings.server == "auto" else SERVERS[settings.server]
    with busy("comparing tokenizers"):
        compared = asyncio.run(_compared(settings.upstream, index.vocabulary))
    app = HealingProxy(
        index,
        relay,
        server=kind,
        model=settings.model,
        asked_only=settings.on_request,
        compared=compared,
    )
    logging.getLogger("charwise.proxy").info(
        "http://%s:%d heals %s for %s with %s, %s; keys are checked there",
        settings.host,
        settings.port,
        "completions that ask for it" if settings.on_request else "completions",
        relay.address,
        settings.tokenizer,
        "the server's own tokenizer" if compared else "which the server could not be asked about",
    )
    uvicorn.run(
        app,
        host=settings.host,
        port=settings.port,
        access_log=False,  # the proxy has a line of its own
        date_header=False,  # the server behind says who it is, and when
        **UVICORN,
    )


async def _compared(upstream: str, vocabulary: Vocabulary) -> bool:
    """Whether the server has this tokenizer; False if it could not be asked.

    Raises:
        SettingError: it has another.
    """
    from charwise.processors.proxy.relay import Relay, has_tokenizer

    relay = Relay(upstream, seconds=10.0)
    try:
        return await has_tokenizer(relay, vocabulary)
    finally:
        await relay.close()
