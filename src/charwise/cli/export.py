"""The command `charwise export`: next-byte distributions along texts, for students."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from charwise.cli.options import (
    JsonOption,
    ModelOptions,
    PresetOption,
    ToleranceOption,
    check_preset,
    takes_model,
)
from charwise.cli.runs import LEFT_OUT, check_place, summarise, write
from charwise.cli.terminal import busy
from charwise.errors import SettingError
from charwise.tables.rows import Columns

if TYPE_CHECKING:
    from charwise.tables.jobs import Job
    from charwise.tables.teacher import Teacher


@takes_model
def export(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A folder, a name on the hub, or 'embedded'."),
    ],
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="TEXT…",
            help="Plain texts, .csv, .tsv, .jsonl or .parquet; '-' is a plain text from stdin.",
        ),
    ],
    options: ModelOptions,
    out: Annotated[Path, typer.Option("--out", "-o", help="A folder, for Parquet files.")],
    top: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="So many of the 257, and the rest; all if not given."),
    ] = None,
    floats: Annotated[
        Literal["float16", "float32"], typer.Option(help="Of the log-probabilities.")
    ] = "float16",
    text_column: Annotated[
        str | None, typer.Option(help="Has the texts; 'text' if not given.")
    ] = None,
    item_column: Annotated[str | None, typer.Option(help="Has names, which are copied.")] = None,
    context_column: Annotated[
        str | None, typer.Option(help="Has what comes before a text, and is not written.")
    ] = None,
    preset: PresetOption = None,
    tolerance: ToleranceOption = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the folder if it is there.")
    ] = False,
    on_error: Annotated[
        Literal["stop", "skip"], typer.Option(help="What to do about a text that has no score.")
    ] = "stop",
    ray: Annotated[bool, typer.Option("--ray", help="On a Ray cluster.")] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Of Ray; one for each GPU or CPU if not given.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Distributions over the next byte along texts, as Parquet: a teacher for a student."""
    if workers is not None and not ray:
        raise typer.BadParameter("--workers are those of --ray.")
    check_place(out, files)
    check_preset(preset, tolerance)

    from charwise.tables.output import Output, refuse_finished
    from charwise.tables.teacher import Teacher
    from charwise.tables.writers import check_folder, shards

    check_folder(out)
    try:
        teacher = Teacher(top, floats, preset, tolerance)
    except SettingError as error:
        raise typer.BadParameter(str(error)) from error
    shards({})  # pyarrow is there
    if not overwrite:
        refuse_finished(out)
    job = _job(files, Columns(text_column or "text", item_column, context_column), teacher)
    with busy("reading the input"):
        extent = job.survey(stop=on_error == "stop")
    lm = replace(options, model=model).load()
    format = shards(teacher.metadata(lm, model, options.revision))
    with Output(
        out,
        teacher.fields(),
        job.identity(lm, model),
        extent.rows,
        overwrite=overwrite,
        format=format,
    ) as output:
        begun = output.done.rows
        write(job, lm, output, extent, skip=on_error == "skip", ray=ray, workers=workers)
    summarise(output, begun, as_json, "pieces of texts")
    if output.done.bad:
        raise typer.Exit(LEFT_OUT)


def _job(files: list[str], columns: Columns, teacher: Teacher) -> Job:
    from charwise.tables.jobs import Job
    from charwise.tables.sources import find

    if files.count("-") > 1:
        raise typer.BadParameter("stdin ('-') is one text, and can be given once.")
    sources = tuple(find(name) for name in files)
    named = columns != Columns()
    if named and not any(source.is_table for source in sources):
        raise typer.BadParameter("a plain text has no columns: give a table.")
    return Job(sources, columns, teacher)
