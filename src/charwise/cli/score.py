"""The command `charwise score`: texts and tables in, a table of their surprisals out."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from charwise.cli.options import (
    JsonOption,
    ModelOptions,
    PresetOption,
    ToleranceOption,
    check_preset,
    takes_model,
)
from charwise.cli.terminal import busy, console, print_json
from charwise.errors import InputError, OutputError, SettingError
from charwise.surprisal.spans import Convention
from charwise.tables.chunks import Measure, Per, Record, fields
from charwise.tables.rows import BadRow, Columns

if TYPE_CHECKING:
    from charwise.char_lm import CharLM
    from charwise.tables.jobs import Extent, Job, Scored
    from charwise.tables.output import Done, Output

#: The exit code where everything is done, except for rows that were left out.
LEFT_OUT = 3

#: Rows of input that are scored without --out, and rows of output that a terminal shows.
_MOST_ROWS = 1_000
_MOST_SHOWN = 200

#: Columns of characters that a table in a pipe has for each column of its own beyond the usual.
_WIDER = 12


@takes_model
def score(
    options: ModelOptions,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE…",
            help="Plain texts, .csv, .tsv, .jsonl or .parquet; '-' is a plain text from stdin.",
        ),
    ],
    per: Annotated[Per, typer.Option(help="What a row of the output is.")] = "word",
    convention: Annotated[
        Convention | None,
        typer.Option(help="Which whitespace belongs to a word; leading if not given."),
    ] = None,
    text_column: Annotated[
        str | None, typer.Option(help="Has the texts; 'text' if not given.")
    ] = None,
    item_column: Annotated[str | None, typer.Option(help="Has names, which are copied.")] = None,
    context_column: Annotated[
        str | None, typer.Option(help="Has what comes before a text, and is not scored.")
    ] = None,
    regions_column: Annotated[
        str | None, typer.Option(help="Has the text with | between regions, or [[start, end], …].")
    ] = None,
    keep_column: Annotated[
        list[str] | None, typer.Option(help="Is copied to the output; may be given several times.")
    ] = None,
    preset: PresetOption = None,
    tolerance: ToleranceOption = None,
    entropy: Annotated[
        Literal["byte", "char"] | None,
        typer.Option(help="Add the entropy of what may come, and the rank of what came."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A .csv, .tsv, .jsonl or .parquet file.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file if it is there.")
    ] = False,
    on_error: Annotated[
        Literal["stop", "skip"], typer.Option(help="What to do about a row that has no score.")
    ] = "stop",
    ray: Annotated[bool, typer.Option("--ray", help="Score on a Ray cluster.")] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Of Ray; one for each GPU or CPU if not given.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Surprisal of the words or regions of texts, as a table."""
    if convention is not None and per != "word":
        raise typer.BadParameter("--convention is about words: use it with --per word.")
    measure = Measure(per, convention or "leading", preset, entropy, tolerance)
    _check_output(files, out, overwrite, ray, workers)
    columns = Columns(
        text_column or "text", item_column, context_column, regions_column, tuple(keep_column or ())
    )
    job = _job(files, columns, measure, named=text_column is not None)
    skip = on_error == "skip"
    with busy("reading the input"):
        extent = job.survey(stop=not skip)
    if out is None and extent.rows > _MOST_ROWS:
        raise SettingError(f"{extent.rows:,} rows are too many to print: name a file with --out.")
    lm = options.load()
    if out is None:
        bad = len(_print(job, lm, extent, skip, options.model, as_json))
    else:
        from charwise.tables.output import Output

        identity = job.identity(lm, options.model)
        with Output(out, job.fields(), identity, extent.rows, overwrite=overwrite) as output:
            begun = output.done
            scored = _scored(job, lm, begun.chunks, ray, workers)
            with _progress(extent, begun) as advance:
                for chunk in _checked(scored, skip, output):
                    output.append(chunk.outcomes, chunk.size)
                    advance(chunk)
            output.finish()
        _summarise(output, begun.rows, as_json)
        bad = output.done.bad
    if bad:
        raise typer.Exit(LEFT_OUT)


def _check_output(
    files: list[str], out: Path | None, overwrite: bool, ray: bool, workers: int | None
) -> None:
    """Refuse options that do nothing, and an output that is there or is an input."""
    if workers is not None and not ray:
        raise typer.BadParameter("--workers are those of --ray.")
    if out is None:
        if overwrite or ray:
            raise typer.BadParameter(f"--{'ray' if ray else 'overwrite'} needs --out FILE.")
        return
    if any(name != "-" and Path(name).resolve() == out.resolve() for name in files):
        raise typer.BadParameter(f"{out} is one of the input files.")
    if out.is_dir():
        raise typer.BadParameter(f"--out {out} is a folder: name a file in it.")
    if not out.parent.is_dir():
        raise OutputError(f"{out} cannot be written: there is no folder {out.parent}. Make it.")
    if not os.access(out.parent, os.W_OK):
        raise OutputError(f"{out} cannot be written: {out.parent} is not yours to write in.")

    from charwise.tables.output import refuse_finished
    from charwise.tables.writers import FORMATS, format_of

    if out.suffix.lower() not in FORMATS:
        raise typer.BadParameter(f"--out {out}: its name ends in none of {', '.join(FORMATS)}.")
    format_of(out)
    if not overwrite:
        refuse_finished(out)


def _job(files: list[str], columns: Columns, measure: Measure, *, named: bool) -> Job:
    """The job that the options describe; `named` if they name the column of texts."""
    from charwise.tables.jobs import Job
    from charwise.tables.sources import find

    if columns.regions is not None and measure.per != "region":
        raise typer.BadParameter("--regions-column needs --per region.")
    if files.count("-") > 1:
        raise typer.BadParameter("stdin ('-') is one text, and can be given once.")
    check_preset(measure.preset, measure.tolerance)
    try:
        fields(measure, columns.kept)
    except SettingError as error:
        raise typer.BadParameter(str(error)) from error
    sources = tuple(find(name) for name in files)
    if (named or len(columns.wanted()) > 1) and not any(source.is_table for source in sources):
        raise typer.BadParameter("a plain text has no columns: give a table.")
    return Job(sources, columns, measure)


def _scored(job: Job, lm: CharLM, skip: int, ray: bool, workers: int | None) -> Iterator[Scored]:
    """The chunks after the first `skip`, scored here or by Ray."""
    if not ray:
        return job.scored(lm, skip)
    from charwise.tables.on_ray import scored_by_ray

    return scored_by_ray(job, lm, skip, workers)


def _checked(
    chunks: Iterator[Scored], skip: bool, output: Output | None = None
) -> Iterator[Scored]:
    """The chunks; a bad row ends them, unless those are skipped."""
    for chunk in chunks:
        bad = next((o for o in chunk.outcomes if isinstance(o, BadRow)), None)
        if bad is not None and not skip:
            kept = f"; {output.done.rows:,} rows are kept" if output is not None else ""
            raise InputError(f"{bad} (--on-error skip leaves such rows out{kept}.)")
        yield chunk


def _print(
    job: Job, lm: CharLM, extent: Extent, skip: bool, model: str, as_json: bool
) -> list[BadRow]:
    """Score everything, print the records on stdout, and what was left out on stderr."""
    records: list[Record] = []
    bad: list[BadRow] = []
    with _progress(extent) as advance:
        for chunk in _checked(job.scored(lm), skip):
            for outcome in chunk.outcomes:
                if isinstance(outcome, BadRow):
                    bad.append(outcome)
                else:
                    records += outcome
            advance(chunk)
    for row in bad:
        print(f"charwise: left out: {row}", file=sys.stderr)
    if as_json:
        print_json(
            model=model,
            per=job.measure.per,
            convention=job.measure.convention if job.measure.per == "word" else None,
            preset=job.measure.preset or ("default" if job.measure.tolerance is None else None),
            tolerance=job.measure.tolerance,
            rows=records,
            left_out=[str(row) for row in bad],
        )
        return bad
    screen = console()
    if not screen.is_terminal:  # which has a width of its own
        screen.width += _WIDER * (len(job.fields()) - len(fields(Measure())))
    kept = (*job.columns.kept, *(["item"] if job.columns.item is not None else []))
    screen.print(_table(records[:_MOST_SHOWN], job.fields(), kept))
    if len(records) > _MOST_SHOWN:
        more = len(records) - _MOST_SHOWN
        screen.print(f"… and {more:,} more; --out FILE writes all, --json prints all.")
    return bad


def _table(records: list[Record], kinds: dict[str, type], kept: Container[str] = ()) -> Table:
    """The records, without the names and numbers that nobody asked for and all have in common."""
    from charwise.cli.display import VISIBLE

    names = [
        name
        for name in kinds
        if name in kept
        or name not in ("file", "row", "item")
        or len({record[name] for record in records}) > 1
    ]
    bits = "{:.3f}".format
    shown: dict[str, Callable[[Any], str]] = {
        "text": lambda text: text.translate(VISIBLE),
        **dict.fromkeys(("surprisal", "cumulative", "entropy", "reduction"), bits),
        **dict.fromkeys(("missing", "error"), "{:.2g}".format),
    }
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for name in names:
        if kinds[name] is not str:
            table.add_column(name, justify="right", no_wrap=True)
        else:
            table.add_column(name, overflow="fold", min_width=8)
    for record in records:
        cells = [_shown(record.get(name), shown.get(name, str)) for name in names]
        table.add_row(*map(Text, cells))
    return table


def _shown(value: Any, form: Callable[[Any], str]) -> str:
    return "" if value is None else form(value)


def _summarise(output: Output, begun: int, as_json: bool) -> None:
    """What is in the finished output, which began after so many rows."""
    done = output.done
    errors = str(output.errors) if done.bad else None
    if as_json:
        print_json(
            out=str(output.out),
            rows=done.rows,
            records=done.records,
            left_out=done.bad,
            errors=errors,
            continued_after=begun,
        )
        return
    scored = f"{done.rows - done.bad:,} of {done.rows:,} texts"
    line = f"{output.out}: {done.records:,} rows for {scored}"
    line += f", continued after {begun:,}" if begun else ""
    line += f"; the {done.bad:,} left out are in {errors}" if errors else ""
    print(line)


@contextmanager
def _progress(extent: Extent, done: Done | None = None) -> Iterator[Callable[[Scored], None]]:
    """A bar on a terminal's stderr, by bytes of text, since rows differ in length."""
    screen = Console(stderr=True)
    bar = Progress(
        BarColumn(),
        TextColumn("{task.fields[rows]:,} of {task.fields[all_rows]:,} rows"),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=screen,
        disable=not screen.is_terminal,
    )
    rows, size = (0, 0) if done is None else (done.rows, done.size)
    with bar:
        task = bar.add_task("", total=extent.size, completed=size, rows=rows, all_rows=extent.rows)

        def advance(chunk: Scored) -> None:
            nonlocal rows
            rows += len(chunk.outcomes)
            bar.update(task, advance=chunk.size, rows=rows)

        yield advance
