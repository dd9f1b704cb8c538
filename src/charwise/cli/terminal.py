"""What the commands share: options, reading the prompt, printing."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console

ModelOption = Annotated[
    str, typer.Option("--model", "-m", help="A folder, a name on the hub, or 'embedded'.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
StdinOption = Annotated[bool, typer.Option("--stdin", help="Read the prompt from stdin.")]


def read_prompt(prompt: str | None, stdin: bool) -> str | bytes:
    """The prompt from the argument or from stdin, where it may be any bytes."""
    if (prompt is not None) == stdin:
        raise typer.BadParameter("give a prompt, or --stdin, and not both.")
    if prompt is None:
        return sys.stdin.buffer.read()
    # Arguments that are not UTF-8 arrive with surrogate escapes.
    return prompt.encode("utf-8", "surrogateescape")


def console() -> Console:
    """Plain text in a pipe, colours on a terminal."""
    return Console(highlight=False)


def print_json(**fields: Any) -> None:
    """One JSON object on stdout."""
    print(json.dumps(fields, ensure_ascii=False, indent=2))


def quiet() -> None:
    """Switch off, for this process, the notices and progress bars of the models' libraries."""
    import logging

    import transformers

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
