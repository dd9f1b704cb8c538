"""The command line; torch and transformers load only when a command needs them.

Exit codes: 0, 1 for a failure (a sentence on stderr says which), 2 for bad usage, 3 where
`score` left rows out, 130 after Ctrl-C.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
from importlib.metadata import distribution, version
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from charwise.cli import compare, inspect, output, score, serve, side_by_side
from charwise.errors import EXTRAS, CharwiseError, MissingExtraError, lacks_memory, missing_extra


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
    *(compare.lm_eval, serve.serve, serve.lsp, serve.gateway),
)
_COMMANDS = {each.__name__.strip("_").replace("_", "-"): each for each in _FUNCTIONS}

for _name, _example in EXAMPLES.items():
    # \b keeps the lines as they are.
    _settings = compare.LM_EVAL_SETTINGS if _name == "lm-eval" else None
    _epilog = f"\b\nExample:\n  {_example}"
    app.command(_name, epilog=_epilog, context_settings=_settings)(_COMMANDS[_name])


def main() -> int:
    """Return the exit code: every failure is a sentence on stderr, without a traceback."""
    if sys.stdout is None:  # it is closed: what is printed fails, and does not vanish
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what it cannot encode becomes an escape
            stream.reconfigure(errors="backslashreplace")
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
    if isinstance(why, MissingExtraError) and (code := _rerun_with(why.extra)) is not None:
        return code
    output.say(f"charwise: {' '.join(str(why).split())}", error=True)
    return 1


def _rerun_with(extra: str) -> int | None:
    """Run this command again with an extra, in a throw-away environment of `uvx` or `pipx run`.

    It returns None where that does not help.
    """
    prefix, added = Path(sys.prefix), os.environ.get("CHARWISE_ADDED_EXTRAS", "").split()
    if prefix.parent.name in ("archive-v0", "environments-v2"):  # parts of uv's cache
        tool, command = os.environ.get("UV"), ["tool", "run", "--from"]
    elif (prefix / "pipx_metadata.json").exists() and prefix.parent.name != "venvs":
        tool, command = which("pipx"), ["run", "--spec"]
        os.environ["PIPX_DEFAULT_BACKEND"] = "pip"  # which made this one: with uv, it is uv's
    else:
        return None
    once = {"-", "--stdin"} & {*sys.argv}  # stdin has been read
    if not tool or not extra or extra in added or once:
        return None
    present = {name for name, modules in EXTRAS.items() if all(map(find_spec, modules))}
    package, extras = distribution("charwise"), ",".join(sorted({*present, extra}))
    origin = json.loads(package.read_text("direct_url.json") or "{}")  # of a folder or a wheel
    place = f" @ {origin['url']}" if "url" in origin else f"=={package.version}"
    torch = extra in ("transformers", "serve", "lsp", "lm-eval")
    size = "1 GB, or 3 GB with CUDA" if torch else "less than 400 MB"
    line = f"charwise: goes on with charwise[{extra}], which is installed once: {size}."
    print(line, file=sys.stderr, flush=True)
    os.environ["CHARWISE_ADDED_EXTRAS"] = " ".join([*added, extra])
    command = [tool, *command, f"charwise[{extras}]{place}", "charwise", *sys.argv[1:]]
    # On Windows a process that is replaced has ended for its parent.
    return subprocess.call(command) if os.name == "nt" else os.execvp(tool, command)


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
