"""The command `charwise bounds`: bounds by the best next tokens that a server tells."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from charwise.cli.options import (
    HubOptions,
    JsonOption,
    PromptArgument,
    StdinOption,
    TopOption,
    given,
    read_prompt,
    takes_options,
)
from charwise.cli.terminal import VISIBLE, busy, console, print_json, spelling, table

if TYPE_CHECKING:
    from charwise.bounded.lm import BoundedLM


@dataclass(frozen=True)
class _Settings:
    """The options of `charwise bounds`."""

    url: Annotated[str, typer.Option("--url", help="Of the server: http://HOST:PORT/v1.")]
    tokenizer: Annotated[
        str, typer.Option("--tokenizer", help="Of its model: a folder, or a name on the hub.")
    ]
    prompt: PromptArgument = None
    stdin: StdinOption = False
    score: Annotated[
        bool, typer.Option("--score", help="Bits a byte of the text, instead of what is next.")
    ] = False
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Which of its models, if there are several.")
    ] = None
    top_logprobs: Annotated[
        int, typer.Option("--top-logprobs", min=1, help="How many next tokens to ask for.")
    ] = 20
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", envvar="CHARWISE_API_KEY", help="Its key, if it wants one."),
    ] = None
    seconds: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Seconds that it may say nothing.")
    ] = 60.0
    top: TopOption = 10
    as_json: JsonOption = False


@takes_options
def bounds(settings: _Settings, hub: HubOptions) -> None:
    """Print bounds of the next byte, from a server's best next tokens.

    It needs `charwise[completions]`.
    """
    text = read_prompt(settings.prompt, settings.stdin)
    with busy("asking the server"):
        from charwise.model import connect

        lm = connect(
            settings.url,
            settings.tokenizer,
            model=settings.model,
            top_logprobs=settings.top_logprobs,
            api_key=settings.api_key,
            seconds=settings.seconds,
            **given(**asdict(hub)),
        )
    (_print_score if settings.score else _print_next)(lm, text, settings)


def _print_score(lm: BoundedLM, text: bytes, settings: _Settings) -> None:
    with busy("summing over tokenizations"):
        scored = lm.score(text)
    least, most = scored.bits_per_byte
    if settings.as_json:
        print_json(
            url=settings.url,
            bytes=len(text),
            bits_per_byte={"least": least, "most": most},
            contexts=scored.contexts,
        )
        return
    line = f"{least:.4f} to {most:.4f} bits a byte; {scored.contexts:,} contexts asked about"
    console().print(line, soft_wrap=True)


def _print_next(lm: BoundedLM, text: bytes, settings: _Settings) -> None:
    with busy("summing over tokenizations"):
        nxt = lm.next(text)
    rows = [
        {"text": name, "lower": float(nxt.lower[code]), "upper": float(nxt.upper[code])}
        for (name, _), code in zip(
            nxt.top(settings.top), (-nxt.probs).argsort(kind="stable"), strict=False
        )
    ]
    if settings.as_json:
        print_json(
            url=settings.url,
            prompt=spelling(text),
            exact_from=nxt.exact_from,
            missing=nxt.missing,
            error=nxt.error,
            contexts=nxt.contexts,
            next=rows,
        )
        return
    found = table("next byte", "at least", "at most", right=("at least", "at most"))
    for row in rows:
        shown = str(row["text"]).translate(VISIBLE)
        found.add_row(Text(shown), f"{row['lower']:.4f}", f"{row['upper']:.4f}")
    out = console()
    out.print(found)
    out.print(
        f"not told or not visited: at most {nxt.missing:.2g}; {nxt.contexts:,} contexts asked "
        f"about; exact from byte {nxt.exact_from}",
        soft_wrap=True,
    )
