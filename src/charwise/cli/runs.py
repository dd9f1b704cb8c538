"""The common part of `score` and `export`: an output written chunk by chunk, here or by Ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from charwise.cli.options import JsonOption
from charwise.cli.terminal import print_json
from charwise.errors import InputError, OutputError
from charwise.tables.rows import BadRow, Columns

if TYPE_CHECKING:
    from charwise.char_lm import CharLM
    from charwise.tables.jobs import Extent, Job, Scored
    from charwise.tables.output import Done, Output
    from charwise.tables.sources import Source


@dataclass(frozen=True)
class RunOptions:
    """How tables are read and an output is made: a command that `takes_options` has these."""

    text_column: Annotated[str | None, typer.Option(help="Has the texts; 'text' if not given.")] = (
        None
    )
    item_column: Annotated[str | None, typer.Option(help="Has names, which are copied.")] = None
    context_column: Annotated[
        str | None, typer.Option(help="Has what comes before a text, which is conditioned on.")
    ] = None

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

    def columns(self, regions: str | None = None, kept: Sequence[str] = ()) -> Columns:
        """Return the names of all columns."""
        names = self.text_column or "text", self.item_column, self.context_column
        return Columns(*names, regions, tuple(kept))

    @property
    def skip(self) -> bool:
        """Whether texts that have no score are left out."""
        return self.on_error == "skip"

    def check(self) -> None:
        """Refuse options that do nothing."""
        if self.workers is not None and not self.ray:
            raise typer.BadParameter("--workers are those of --ray.")


def sources_of(files: Sequence[str], *, columns: bool) -> tuple[Source, ...]:
    """Return the files by their names; `columns` says whether options name columns of tables.

    Raises:
        InputError: a file that is not there.
    """
    from charwise.tables.sources import find

    if files.count("-") > 1:
        raise typer.BadParameter("stdin ('-') is one text, and can be given once.")
    sources = tuple(find(name) for name in files)
    if columns and not any(source.is_table for source in sources):
        raise typer.BadParameter("a plain text has no columns: give a table.")
    return sources


def write(job: Job, lm: CharLM, output: Output, extent: Extent, run: RunOptions) -> None:
    """Append all chunks that are not there yet, finish, and describe the output.

    Raises:
        InputError: a bad row, unless those are skipped.
        typer.Exit: with 3, rows were left out.
    """
    begun = output.done
    with output:
        with progress(extent, begun) as advance:
            for chunk in checked(_scored(job, lm, begun.chunks, run), run.skip, output):
                output.append(chunk.outcomes, chunk.size)
                advance(chunk)
        output.finish()
    _summarise(output, begun.rows, job.measure.noun, run.as_json)
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
            raise InputError(f"{bad} (--on-error skip leaves such rows out{kept}.)")
        yield chunk


def check_place(out: Path, files: Iterable[str]) -> None:
    """Refuse an output that is an input, or where none can be written."""
    if any(name != "-" and Path(name).resolve() == out.resolve() for name in files):
        raise typer.BadParameter(f"{out} is one of the input files.")
    if not out.parent.is_dir():
        raise OutputError(f"{out} cannot be written: there is no folder {out.parent}. Make it.")
    if not os.access(out.parent, os.W_OK):
        raise OutputError(f"{out} cannot be written: {out.parent} is not yours to write in.")


def _summarise(output: Output, begun: int, noun: str, as_json: bool) -> None:
    """Describe the finished output, which began after so many rows of the input."""
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
    scored = f"{done.rows - done.bad:,} of {done.rows:,} {noun}"
    line = f"{output.out}: {done.records:,} rows for {scored}"
    line += f", continued after {begun:,}" if begun else ""
    line += f"; the {done.bad:,} left out are in {errors}" if errors else ""
    print(line)


@contextmanager
def progress(extent: Extent, done: Done | None = None) -> Iterator[Callable[[Scored], None]]:
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
