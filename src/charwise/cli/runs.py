"""What `score` and `export` share: an output that is written chunk by chunk, here or by Ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from charwise.cli.terminal import print_json
from charwise.errors import InputError, OutputError
from charwise.tables.rows import BadRow

if TYPE_CHECKING:
    from charwise.char_lm import CharLM
    from charwise.tables.jobs import Extent, Job, Scored
    from charwise.tables.output import Done, Output

#: The exit code where everything is done, except for rows that were left out.
LEFT_OUT = 3


def write(
    job: Job,
    lm: CharLM,
    output: Output,
    extent: Extent,
    *,
    skip: bool,
    ray: bool,
    workers: int | None,
) -> None:
    """Append all chunks that are not there yet, and finish.

    Raises:
        InputError: a bad row, unless those are skipped.
    """
    begun = output.done
    with progress(extent, begun) as advance:
        for chunk in checked(_scored(job, lm, begun.chunks, ray, workers), skip, output):
            output.append(chunk.outcomes, chunk.size)
            advance(chunk)
    output.finish()


def _scored(job: Job, lm: CharLM, skip: int, ray: bool, workers: int | None) -> Iterator[Scored]:
    """The chunks after the first `skip`, scored here or by Ray."""
    if ray:
        from charwise.tables.on_ray import scored_by_ray

        return scored_by_ray(job, lm, skip, workers)
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


def summarise(output: Output, begun: int, as_json: bool, what: str = "texts") -> None:
    """What is in the finished output, which began after so many rows of the input."""
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
    scored = f"{done.rows - done.bad:,} of {done.rows:,} {what}"
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
