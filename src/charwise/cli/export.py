"""The command `charwise export`: next-byte distributions along texts, for students."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from charwise.cli.options import (
    ModelOptions,
    ScoringOptions,
    takes_options,
)
from charwise.cli.runs import RunOptions, check_place, write
from charwise.errors import SettingError


@dataclass(frozen=True)
class _Settings:
    """The options of `charwise export` itself."""

    files: Annotated[
        list[str],
        typer.Argument(
            metavar="TEXT…",
            help="Plain texts, .csv, .tsv, .jsonl or .parquet; '-' is a plain text from stdin.",
        ),
    ]
    out: Annotated[Path, typer.Option("--out", "-o", help="A folder, for Parquet files.")]
    top: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="So many of the 257, and the rest; all if not given."),
    ] = None
    floats: Annotated[
        Literal["float16", "float32"], typer.Option(help="Of the log-probabilities.")
    ] = "float16"


@takes_options
def export(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A folder, a name on the hub, or 'embedded'."),
    ],
    options: ModelOptions,
    run: RunOptions,
    effort: ScoringOptions,
    settings: _Settings,
) -> None:
    """Distributions over the next byte along texts, as Parquet: a teacher for a student."""
    run.check()
    check_place(settings.out, settings.files)
    effort.check()

    from charwise.tables.jobs import Job
    from charwise.tables.output import Output, refuse_finished
    from charwise.tables.teacher import Teacher
    from charwise.tables.writers import check_folder, shards

    check_folder(settings.out)
    try:
        teacher = Teacher(settings.top, settings.floats, effort.preset, effort.tolerance)
    except SettingError as error:
        raise typer.BadParameter(str(error)) from error
    shards({})  # pyarrow is there
    if not run.overwrite:
        refuse_finished(settings.out)
    columns = run.columns()
    job = Job(run.sources(settings.files, columns), columns, teacher, run.strict)
    extent = run.survey(job)
    options = replace(options, model=model)
    lm = options.load()
    output = Output(
        settings.out,
        teacher.fields(),
        job.identity(lm, model),
        extent.rows,
        overwrite=run.overwrite,
        format=shards(teacher.metadata(lm, model, options.revision)),
    )
    write(job, lm, output, extent, run, options)
