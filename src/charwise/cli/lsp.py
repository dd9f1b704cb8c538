"""The command `charwise lsp`: completions for editors that speak the language server protocol."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from charwise.cli.options import (
    EffortOptions,
    ModelOptions,
    takes_options,
    without_defaults,
)
from charwise.errors import SettingError, needs


@dataclass(frozen=True)
class _Settings:
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
def lsp(options: ModelOptions, effort: EffortOptions, speech: _Settings) -> None:
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
