"""The common part of `score` and `export`: an output written chunk by chunk, here or by Ray."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from charwise.cli.options import JsonOption, ModelOptions
from charwise.cli.terminal import busy, print_json
from charwise.errors import SettingError
from charwise.tables.measure import Measure
from charwise.tables.readers import Dialect
from charwise.tables.rows import BadRow, Columns

if TYPE_CHECKING:
    from charwise.char_lm import CharLM
    from charwise.tables.jobs import Extent, Job
    from charwise.tables.output import Done, Output, Scored
    from charwise.tables.sources import Source

#: Seconds between two lines of progress where there is no terminal.
_EVERY = 60.0

#: Warnings that are printed, before the rest is only counted.
_WARNINGS = 20


@dataclass(frozen=True)
class TableOptions:
    """How tables are read: a command that `takes_options` has these."""

    text_column: Annotated[str | None, typer.Option(help="Has the texts; 'text' if not given.")] = (
        None
    )
    delimiter: Annotated[
        str | None, typer.Option(help="Between the cells of CSV: a character, or 'tab'.")
    ] = None
    encoding: Annotated[
        str | None, typer.Option(help="Of text files; UTF-8 if not given. Excel's may be cp1252.")
    ] = None

    def sources(self, files: Sequence[str], columns: Columns) -> tuple[Source, ...]:
        """Return the files by their names.

        Raises:
            SettingError: a file that is not there.
        """
        from charwise.tables.sources import find

        if files.count("-") > 1:
            raise typer.BadParameter("stdin ('-') is one text, and can be given once.")
        try:
            dialect = Dialect(self.delimiter, self.encoding)
        except SettingError as error:
            raise typer.BadParameter(str(error)) from error
        endings = [Path(name).suffix.lower() for name in files]
        if self.delimiter is not None and not {".csv", ".tsv"} & {*endings}:
            raise typer.BadParameter("--delimiter is of .csv and .tsv files: none is given.")
        if self.encoding is not None and {*endings} == {".parquet"}:
            raise typer.BadParameter("--encoding is of text files, and Parquet is none.")
        sources = tuple(find(name, dialect) for name in files)
        named = self.text_column is not None or len(columns.wanted()) > 1
        if named and not any(source.is_table for source in sources):
            raise typer.BadParameter("a plain text has no columns: give a table.")
        return sources


@dataclass(frozen=True)
class RunOptions(TableOptions):
    """How tables are read and an output is made: a command that `takes_options` has these."""

    item_column: Annotated[str | None, typer.Option(help="Has names, which are copied.")] = None
    context_column: Annotated[
        str | None, typer.Option(help="Has what comes before a text, which is conditioned on.")
    ] = None
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse rows with a value that may be a mistake.")
    ] = False

    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the output if it is there.")
    ] = False
    on_error: Annotated[
        Literal["stop", "skip"], typer.Option(help="What to do about a text that has no score.")
    ] = "stop"
    ray: Annotated[bool, typer.Option("--ray", help="Score on a Ray cluster.")] = False
    workers: Annotated[
        int | None, typer.Option(min=1, help="Of Ray; one for each GPU or CPU if not given.")
    ] = None
    as_json: JsonOption = False

    def columns(
        self,
        regions: str | None = None,
        kept: Sequence[str] = (),
        searched: Sequence[str] = (),
        alternatives: str | None = None,
    ) -> Columns:
        """Return the names of all columns."""
        names = self.text_column or "text", self.item_column, self.context_column
        return Columns(*names, regions, tuple(kept), tuple(searched), alternatives)

    @property
    def skip(self) -> bool:
        """Whether texts that have no score are left out."""
        return self.on_error == "skip"

    def survey(self, job: Job) -> Extent:
        """Read the input once, and print its possible mistakes.

        Raises:
            SettingError: a file that cannot be used; a bad row, unless those are skipped.
        """
        first: list[BadRow] = []
        more = 0

        def warn(row: BadRow) -> None:
            nonlocal more
            if len(first) < _WARNINGS:
                first.append(row)
            else:
                more += 1

        with busy("reading the input"):
            extent = job.survey(stop=not self.skip, warn=warn)
        for row in first:
            print(f"charwise: warning: {row}", file=sys.stderr)
        if first:
            rest = f"{more:,} more are not shown. " if more else ""
            print(f"charwise: {rest}--strict refuses such rows.", file=sys.stderr)
        return extent

    def check(self) -> None:
        """Refuse options that do nothing."""
        if self.workers is not None and not self.ray:
            raise typer.BadParameter("--workers are those of --ray.")


def write(
    job: Job, lm: CharLM, output: Output, extent: Extent, run: RunOptions, options: ModelOptions
) -> None:
    """Append all chunks that are not there yet, finish, and describe the output.

    Raises:
        SettingError: a bad row, unless those are skipped.
        typer.Exit: with 3, rows were left out.
    """
    from charwise.tables.provenance import origin

    begun = output.done
    command = shlex.join(["charwise", *sys.argv[1:]])
    with output:
        try:
            with progress(extent, begun) as advance:
                for chunk in checked(_scored(job, lm, begun.chunks, run), run.skip, output):
                    output.append(chunk)
                    advance(chunk)
        except KeyboardInterrupt:
            kept = f"{output.done.rows:,} of {extent.rows:,} rows are kept"
            print(f"charwise: stopped; {kept}. The same command goes on there.", file=sys.stderr)
            raise
        output.finish(origin(job, lm, output.identity, output.done, options.revision, command))
    _summarise(output, begun.rows, job, run.as_json)
    leave_out(output.done.bad)


def leave_out(rows: int) -> None:
    """End with the exit code 3 if rows were left out: all else is done.

    Raises:
        typer.Exit: they were.

    >>> leave_out(0)
    """
    if rows:
        raise typer.Exit(3)


def _scored(job: Job, lm: CharLM, skip: int, run: RunOptions) -> Iterator[Scored]:
    """The chunks after the first `skip`, scored here or by Ray."""
    if run.ray:
        from charwise.tables.on_ray import scored_by_ray

        return scored_by_ray(job, lm, skip, run.workers)
    return job.scored(lm, skip)


def checked(chunks: Iterator[Scored], skip: bool, output: Output | None = None) -> Iterator[Scored]:
    """The chunks; a bad row ends them, unless those are skipped."""
    for chunk in chunks:
        bad = next((o for o in chunk.outcomes if isinstance(o, BadRow)), None)
        if bad is not None and not skip:
            kept = f"; {output.done.rows:,} rows are kept" if output is not None else ""
            raise SettingError(f"{bad} (--on-error skip leaves such rows out{kept}.)")
        yield chunk


def check_place(out: Path, files: Iterable[str]) -> None:
    """Refuse an output that is an input, or where none can be written."""
    if any(name != "-" and Path(name).resolve() == out.resolve() for name in files):
        raise typer.BadParameter(f"{out} is one of the input files.")
    if not out.parent.is_dir():
        raise SettingError(f"{out} cannot be written: there is no folder {out.parent}. Make it.")
    if not os.access(out.parent, os.W_OK):
        raise SettingError(f"{out} cannot be written: {out.parent} is not yours to write in.")


def _summarise(output: Output, begun: int, job: Job, as_json: bool) -> None:
    """Describe the finished output, which began after so many rows of the input."""
    done = output.done
    errors = str(output.errors) if done.bad else None
    if as_json:
        print_json(
            out=str(output.out),
            origin=str(output.about),
            rows=done.rows,
            records=done.records,
            left_out=done.bad,
            errors=errors,
            largest_error=done.largest,
            continued_after=begun,
        )
        return
    scored = f"{done.rows - done.bad:,} of {done.rows:,} {job.measure.noun}"
    line = f"{output.out}: {done.records:,} rows for {scored}"
    line += f", continued after {begun:,}" if begun else ""
    line += f"; the {done.bad:,} left out are in {errors}" if errors else ""
    print(line)
    if isinstance(job.measure, Measure):
        print(stated(done.largest))
        print(f"for your paper: charwise score --methods {shlex.quote(str(output.out))}")


def stated(largest: float) -> str:
    """How far a table may be off, for its summary."""
    return f"largest stated error of a row: {largest:.2g} bits"


@contextmanager
def progress(extent: Extent, done: Done | None = None) -> Iterator[Callable[[Scored], None]]:
    """A bar on a terminal's stderr, by bytes of text, since rows differ in length.

    Elsewhere it is a line every minute.
    """
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
    begun = said = time.monotonic()
    before = size
    with bar:
        task = bar.add_task("", total=extent.size, completed=size, rows=rows, all_rows=extent.rows)

        def advance(chunk: Scored) -> None:
            nonlocal rows, size, said
            rows, size = rows + len(chunk.outcomes), size + chunk.size
            bar.update(task, advance=chunk.size, rows=rows)
            now = time.monotonic()
            if bar.disable and now - said >= _EVERY:
                said = now
                left = (extent.size - size) / max(1, size - before) * (now - begun) / 60
                minutes = "a minute" if left < 1.5 else f"{left:.0f} minutes"
                line = f"{rows:,} of {extent.rows:,} rows, about {minutes} left"
                print(f"charwise: {line}", file=sys.stderr, flush=True)

        yield advance
