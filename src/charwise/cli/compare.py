"""The commands `charwise compare`, bits a byte of several models, and `charwise lm-eval`."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from charwise.cli.options import (
    JsonOption,
    ModelOptions,
    ScoringOptions,
    TableOptions,
    check_output,
    option,
    takes_options,
)
from charwise.cli.output import VISIBLE, console, print_json, progress_bars, safe, table
from charwise.errors import SettingError, needs, quote

if TYPE_CHECKING:
    from charwise.evaluation.comparison import Comparison, Word


@dataclass(frozen=True)
class _Settings:
    resamples: int = option(10_000, "Draws of the bootstrap.", min=1, max=10_000_000)
    seed: int = option(0, "Of the bootstrap.", min=0)
    words: int = option(10, "Words that differ most, to list.", min=0)
    out: Path | None = option(None, "A .csv file, for the table.", "--out", "-o")
    figure: Path | None = option(None, "A .png, .svg or .pdf file: where the models differ.")
    as_json: JsonOption = False


@takes_options
def compare(
    model: Annotated[  # all of them, and the texts: the options of a model leave it out
        list[str],
        typer.Argument(
            metavar="MODEL… TEXT…",
            help="Folders, names on the hub, .gguf files or 'embedded'; then one or more files: "
            "plain texts, .csv, .tsv, .jsonl or .parquet, or '-' for stdin.",
        ),
    ],
    options: ModelOptions,
    tables: TableOptions,
    effort: ScoringOptions,
    settings: _Settings,
) -> None:
    """Bits a byte of several models on the same texts, with intervals for their differences."""
    names, files = _divided(model)
    _check_outputs(files, settings.out, settings.figure)
    effort.check()
    texts = _read(files, tables)

    from charwise.evaluation.compare import compare as compare_models

    loading = {name: value for name, value in asdict(options).items() if name != "model"}
    with progress_bars() as report:
        comparison = compare_models(
            names,
            texts,
            preset=effort.preset,
            tolerance=effort.tolerance,
            resamples=settings.resamples,
            seed=settings.seed,
            progress=report,
            **loading,
        )
    if settings.out is not None:
        settings.out.write_text(comparison.to_csv(), encoding="utf-8")
    if settings.figure is not None:
        comparison.plot().savefig(settings.figure, dpi=150)
    words = comparison.words(settings.words) if len(comparison.models) > 1 else []
    if settings.as_json:
        print_json(**comparison.to_dict(), words=[word._asdict() for word in words])
        return
    _print_comparison(comparison, words)
    for file in (settings.out, settings.figure):
        if file is not None:
            console().print(f"wrote {file}", soft_wrap=True, markup=False)


def _divided(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The models and the texts: texts begin at the first file that is no `.gguf`, or stdin."""
    for n, name in enumerate(arguments):
        if name == "-" or (Path(name).is_file() and not name.endswith(".gguf")):
            if n == 0:
                raise SettingError(f"{name} is a text: name one or more models before it.")
            return arguments[:n], arguments[n:]
    raise SettingError(
        f"no text is named: {quote(arguments[-1])}, the last argument, is no file with one. Name "
        "files, or '-' for stdin, after the models."
    )


def _check_outputs(files: list[str], out: Path | None, figure: Path | None) -> None:
    """Refuse files that cannot be written, before hours are spent."""
    if out is not None:
        check_output("--out", out, (".csv",), files)
        if out.exists():
            raise SettingError(f"{out} is there: remove it, or name another output.")
    if figure is not None:
        check_output("--figure", figure, (".png", ".svg", ".pdf"), files)
        with needs("plots", "the figure needs matplotlib"):
            import matplotlib  # noqa: F401


def _read(files: list[str], tables: TableOptions) -> dict[str, bytes]:
    """The texts of all files, by name."""
    from charwise.tables.rows import BadRow, Columns

    columns = Columns(tables.text_column or "text")
    sources = tables.sources(files, columns)
    texts: dict[str, bytes] = {}
    for source in sources:
        for row in source.rows(columns):
            if isinstance(row, BadRow):
                raise SettingError(str(row))
            if str(row.place) in texts:
                raise SettingError(f"{source.name} is given twice.")
            texts[str(row.place)] = row.text
    return texts


def _print_comparison(comparison: Comparison, words: list[Word]) -> None:
    """Print the table, the notes on texts and models, and the words."""
    screen = console()
    if not screen.is_terminal:
        # Columns of the table in a pipe; a terminal has its own.
        screen.width = 100
    numbers = ("bits/byte", "95 % interval", "error", "window")
    grid = table("model", *numbers, right=numbers)
    for row in comparison.rows:
        form = ".4f" if row.clear is None else "+.4f"
        interval = "" if math.isnan(row.low) else f"({row.low:{form}}, {row.high:{form}})"
        mark = " clear" if row.clear else ""
        cells = (f"{row.bits_per_byte:{form}}", interval + mark, f"{row.error:.1e}")
        grid.add_row(Text(safe(row.name)), *cells, row.window or "")
    screen.print(grid)
    for note in comparison.notes:
        screen.print(note, soft_wrap=True, markup=False)
    if words:
        a, b = comparison.models[:2]
        grid = table("word", "in", "at", a.name, b.name, "difference")
        for word in words:
            bits = (f"{word.first:.2f}", f"{word.second:.2f}", f"{word.difference:+.2f}")
            text = Text(word.text.translate(VISIBLE))
            grid.add_row(text, Text(safe(word.name)), str(word.start), *bits)
        screen.print(grid)


#: How the command is registered: every option is the harness's, `--help` too.
LM_EVAL_SETTINGS = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}


def lm_eval(context: typer.Context) -> None:
    """Run lm-evaluation-harness with the model `charwise`.

    Every option is the harness's own: `charwise lm-eval --help` shows those of `lm_eval`.
    """
    with needs("lm-eval", "lm-evaluation-harness is not installed, or not completely"):
        from lm_eval.__main__ import cli_evaluate

        import charwise.evaluation.lm_eval  # noqa: F401 - registers the model
    sys.argv = ["charwise lm-eval", *context.args]
    cli_evaluate()
