"""The command line; torch and transformers load only when a command needs them.

Exit codes: 0, 1 for a failure (a sentence on stderr says which), 2 for bad usage, 3 where
`score` left rows out, 130 after Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import sys
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from charwise.cli import compare, inspect, lm_eval, output, rerun, score, serve, side_by_side
from charwise.errors import CharwiseError, MissingExtraError, lacks_memory, missing_extra


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        """Run a command; typer takes over a word of pydantic's, which is taken away."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise


app = typer.Typer(
    cls=_Commands,
    name="charwise",
    help="A character-level interface to tokenized language models.",
    epilog="`charwise COMMAND --help` has the options of a command, and an example.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

#: The example of each command, in the order of the help.
EXAMPLES = {
    line.split()[1]: line
    for line in """
charwise complete 'for i in rang' --n 3 --seed 7
charwise compare embedded gpt2 README.md
charwise demo
charwise infill --prefix 'for i in ra' --suffix 'e(3):'
charwise next 'raise ValueErr' --top 3
charwise cover 'raise ValueErr' --top 5
charwise vocab --prefix ' ret'
charwise score stimuli.csv --item-column item --out words.csv
charwise lm-eval --model charwise --model_args pretrained=gpt2 --tasks piqa
charwise serve --port 8000
charwise lsp --model Qwen/Qwen2.5-Coder-0.5B
charwise gateway http://localhost:8000
""".strip().splitlines()
}
_FUNCTIONS = (
    *(side_by_side.complete, side_by_side.demo, side_by_side.infill, compare.compare),
    *(inspect.next_, inspect.cover, inspect.vocab, score.score),
    *(lm_eval.lm_eval, serve.serve, serve.lsp, serve.gateway),
)
_COMMANDS = {each.__name__.strip("_").replace("_", "-"): each for each in _FUNCTIONS}

for _name, _example in EXAMPLES.items():
    # \b keeps the lines as they are.
    _settings = lm_eval.SETTINGS if _name == "lm-eval" else None
    _epilog = f"\b\nExample:\n  {_example}"
    app.command(_name, epilog=_epilog, context_settings=_settings)(_COMMANDS[_name])


def main() -> int:
    """Return the exit code: every failure is a sentence on stderr, without a traceback."""
    if sys.stdout is None:  # it is closed: what is printed fails, and does not vanish
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    output.accept_any_text()
    try:
        code = _run()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()  # a full disk is an error here, and not after the end
    except OSError as error:
        with contextlib.suppress(OSError):  # the rest of stdout goes nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # its reader has gone, as after `| head -1`
            return 1
        what = error.filename or "the output cannot be written"
        return _failed(f"{what}: {error.strerror}.")
    return code


def _run() -> int:
    try:
        app()
    except SystemExit as end:  # typer's, always
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except CharwiseError as error:
        return _failed(error)
    except ModuleNotFoundError as error:
        if (missing := missing_extra(error)) is None:
            raise
        return _failed(missing)
    except (MemoryError, RuntimeError) as error:  # the latter is torch's
        if not lacks_memory(error):
            raise
        return _failed(
            "there is not enough memory. Take a smaller model, or --dtype bfloat16, or a GGUF file."
        )
    except KeyboardInterrupt:
        return 130
    return 0


def _failed(why: str | CharwiseError) -> int:
    if isinstance(why, MissingExtraError) and (code := rerun.rerun_with(why.extra)) is not None:
        return code
    output.say(f"charwise: {' '.join(str(why).split())}", error=True)
    return 1


def _print_version(wanted: bool) -> None:
    if wanted:
        from charwise.tables.provenance import commit

        revision = commit()
        print(f"charwise {version('charwise')}" + (f" ({revision})" if revision else ""))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Options of every command."""
