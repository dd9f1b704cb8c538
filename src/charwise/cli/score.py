"""The command `charwise score`: texts and tables in, a table of their surprisals out."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer
from rich.progress import BarColumn, TextColumn, TransferSpeedColumn
from rich.text import Text

from charwise.cli.options import (
    JsonOption,
    ModelOptions,
    ScoringOptions,
    TableOptions,
    argument,
    bad_usage,
    check_output,
    option,
    takes_options,
)
from charwise.cli.output import VISIBLE, bars, console, print_json, safe, say, spinner, table
from charwise.errors import SettingError, check_share, quantity
from charwise.surprisal.score import Entropy
from charwise.tables.measure import Measure, Per, check_language
from charwise.tables.rows import BadRow, Columns
from charwise.tokens.words import Convention

if TYPE_CHECKING:
    from charwise.char_lm import CharLM
    from charwise.tables.job import Job
    from charwise.tables.output import Output, Progress, Record, ScoredChunk

#: Seconds between two lines of progress where there is no terminal.
_EVERY = 60.0

#: Warnings that are printed, before the rest is only counted.
_WARNINGS = 20

#: Rows that a terminal shows.
_ROWS = 200


@dataclass(frozen=True)
class _Settings(TableOptions):
    files: list[str] | None = argument(
        "Plain texts, .csv, .tsv, .jsonl, .json or .parquet; '-' is a text from stdin.",
        metavar="FILE…",
    )
    item_column: str | None = option(None, "Has names, which are copied.")
    context_column: str | None = option(
        None, "Has what comes before a text, which is conditioned on."
    )
    regions_column: str | None = option(
        None, "Has the text with | between regions, or [[start, end], …]."
    )
    keep_column: list[str] | None = option(
        None, "Is copied to the output; may be given several times."
    )
    per: Per = option("word", "What a row of the output is.")
    convention: Convention | None = option(
        None, "Which whitespace belongs to a word, or 'ending': that it ends. Default: leading."
    )
    entropy: Entropy | None = option(
        None, "Add the entropy of what may come, and the rank of what came. Of words it is slow."
    )
    coverage: float | None = option(
        None, "With --entropy word: the share of the words to find; 0.9 if not given."
    )
    covariates: str | None = option(
        None,
        "Add length and log frequency (wordfreq) of each word and the one before: en, …",
        metavar="LANGUAGE",
    )
    end: bool = option(False, "Add the end of each text, as a row.")
    strict: bool = option(False, "Refuse rows with a value that may be a mistake.")
    on_error: Literal["stop", "skip"] = option("stop", "What to do about a text without a score.")
    out: Path | None = option(None, "A .csv, .tsv, .jsonl or .parquet file.", "--out", "-o")
    overwrite: bool = option(False, "Replace the output if it is there.")
    ray: bool = option(False, "Score on a Ray cluster.")
    workers: int | None = option(None, "Of Ray; one for each GPU or CPU if not given.", min=1)
    methods: bool = option(
        False, "Print how outputs of it, FILE…, were made: for a methods section."
    )
    as_json: JsonOption = False

    def check(self) -> None:
        """Refuse options that do nothing, or that contradict each other."""
        if self.convention is not None and self.per != "word":
            raise typer.BadParameter("--convention is about words: use it with --per word.")
        if self.covariates is not None:
            if self.per != "word":
                raise typer.BadParameter("--covariates are of words: use it with --per word.")
            with bad_usage():
                check_language(self.covariates)
        if self.convention == "ending" and self.end:
            raise typer.BadParameter(
                "--convention ending has the end with the last word: omit --end."
            )
        if self.coverage is not None and self.entropy != "word":
            raise typer.BadParameter("--coverage is about words: use it with --entropy word.")
        if self.regions_column and self.per != "region":
            raise typer.BadParameter("--regions-column needs --per region.")
        if self.workers is not None and not self.ray:
            raise typer.BadParameter("--workers are those of --ray.")
        if self.out is None and (self.overwrite or self.ray):
            raise typer.BadParameter(f"--{'ray' if self.ray else 'overwrite'} needs --out FILE.")

    def check_output(self, files: list[str]) -> None:
        """Refuse an output that cannot be written, that is there, or that is an input."""
        from charwise.tables.output import WRITERS, Output

        if self.out is not None:
            check_output("--out", self.out, WRITERS, files)
            Output.check(self.out, overwrite=self.overwrite)

    def job(self, files: list[str], effort: ScoringOptions) -> Job:
        """Return the files, their columns, and the measure of their texts."""
        from charwise.tables.job import Job

        measure = Measure(
            self.per,
            self.convention or "leading",
            effort.preset,
            self.entropy,
            effort.tolerance,
            self.end,
            0.9 if self.coverage is None else self.coverage,
            self.covariates,
        )
        names = self.text_column or "text", self.item_column, self.context_column
        columns = Columns(*names, self.regions_column, tuple(self.keep_column or ()))
        with bad_usage():
            check_share("--coverage", measure.coverage)
            measure.fields(columns.copied)
        return Job(self.sources(files, columns), columns, measure, self.strict)


@takes_options
def score(options: ModelOptions, effort: ScoringOptions, settings: _Settings) -> None:
    """Surprisal of the words or regions of texts, as a table."""
    files = settings.files
    if not files:
        raise typer.BadParameter("give one or more files, FILE…, or '-' for a text from stdin.")
    if settings.methods:
        _print_methods(files, settings.as_json)
        return
    settings.check()
    settings.check_output(files)
    effort.check()
    job = settings.job(files, effort)
    total = _survey(job, stop=settings.on_error == "stop")
    if settings.out is None and total.rows > 1_000:
        raise SettingError(f"{total.rows:,} texts are too many to print: name a file with --out.")
    lm = options.load()
    if settings.out is None:
        left_out = _print_chunks(job, lm, total, settings, options.model)
    else:
        from charwise.tables.output import Output

        fields = job.measure.fields(job.columns.copied)
        identity, overwrite = job.identity(lm, options.model), settings.overwrite
        with Output(settings.out, fields, identity, total.rows, overwrite=overwrite) as output:
            left_out = _write_chunks(job, lm, output, total, settings, options)
    if left_out:
        raise typer.Exit(3)


def _survey(job: Job, *, stop: bool) -> Progress:
    """Read the input once, and print its possible mistakes."""
    mistakes = 0

    def warn(row: BadRow) -> None:
        nonlocal mistakes
        mistakes += 1
        if mistakes <= _WARNINGS:
            say(f"charwise: warning: {row}", error=True)

    with spinner("reading the input"):
        total = job.survey(stop=stop, warn=warn)
    if mistakes:
        more = mistakes - _WARNINGS
        rest = f"{more:,} more are not shown. " if more > 0 else ""
        say(f"charwise: {rest}--strict refuses such rows.", error=True)
    return total


def _chunks(
    job: Job, lm: CharLM, total: Progress, settings: _Settings, done: Progress
) -> Iterator[ScoredChunk]:
    """Yield the chunks that are not done; a bad row ends them if it is to stop.

    A terminal's stderr has a bar of bytes, since rows differ in length; others a line each minute.
    """
    from charwise.tables.on_ray import scored_by_ray

    rows = TextColumn("{task.fields[rows]:,} of {task.fields[all_rows]:,} texts")
    bar = bars(BarColumn(), rows, TransferSpeedColumn())
    start = last_line = time.monotonic()
    before = done.size
    chunks = job.scored(lm, done.chunks)
    if settings.ray:
        chunks = scored_by_ray(job, lm, done.chunks, settings.workers)
    with bar:
        task = bar.add_task(
            "", total=total.size, completed=done.size, rows=done.rows, all_rows=total.rows
        )
        for chunk in chunks:
            if chunk.bad and settings.on_error == "stop":
                texts_so_far = f"; {done.rows:,} texts are kept" if settings.out else ""
                bad = chunk.bad[0]
                raise SettingError(f"{bad} (--on-error skip leaves such rows out{texts_so_far}.)")
            yield chunk
            bar.update(task, completed=done.size, rows=done.rows)
            now = time.monotonic()
            if bar.disable and done.rows < total.rows and now - last_line >= _EVERY:
                last_line = now
                seconds = (now - start) * (total.size - done.size) / max(1, done.size - before)
                minutes = quantity(max(1, round(seconds / 60)), "minute")
                line = f"{done.rows:,} of {total.rows:,} texts, about {minutes} left"
                print(f"charwise: {line}", file=sys.stderr, flush=True)


def _write_chunks(
    job: Job,
    lm: CharLM,
    output: Output,
    total: Progress,
    settings: _Settings,
    options: ModelOptions,
) -> int:
    """Append all chunks that are not there yet, finish, and return how many rows were left out."""
    from charwise.tables.provenance import origin

    done = output.progress
    before = done.rows
    try:
        for chunk in _chunks(job, lm, total, settings, done):
            output.append(chunk)
    except KeyboardInterrupt:
        part = f"{done.rows:,} of {total.rows:,} texts are kept"
        say(f"charwise: stopped; {part}. The same command goes on there.", error=True)
        raise
    command = shlex.join(["charwise", *sys.argv[1:]])
    output.finish(origin(job, lm, output, options.revision, command))
    errors = str(output.errors) if done.bad else None
    if settings.as_json:
        print_json(
            out=str(output.out),
            origin=str(output.about),
            rows=done.rows,
            records=done.records,
            left_out=done.bad,
            errors=errors,
            largest_error=done.largest,
            continued_after=before,
        )
        return done.bad
    texts = f"{done.rows - done.bad:,} of {done.rows:,} texts"
    line = f"{output.out}: {done.records:,} rows for {texts}"
    line += f", continued after {before:,}" if before else ""
    line += f"; the {done.bad:,} left out are in {errors}" if errors else ""
    say(line)
    say(f"largest stated error of a row: {done.largest:.2g} bits")
    say(f"for your paper: charwise score --methods {shlex.quote(str(output.out))}")
    return done.bad


def _print_chunks(job: Job, lm: CharLM, total: Progress, settings: _Settings, model: str) -> int:
    """Print all records, and the rows left out on stderr; return how many these are."""
    from charwise.tables.output import Progress

    done, measure = Progress(), job.measure
    records: list[Record] = []
    bad: list[BadRow] = []
    for chunk in _chunks(job, lm, total, settings, done):
        done.add(chunk.counts())
        records += chunk.records
        bad += chunk.bad
    for row in bad:
        say(f"charwise: left out: {row}", error=True)
    if settings.as_json:
        print_json(
            model=model,
            per=measure.per,
            convention=measure.convention if measure.per == "word" else None,
            preset=measure.settings()["--preset"],
            tolerance=measure.tolerance,
            rows=records,
            left_out=[str(row) for row in bad],
        )
        return len(bad)
    screen = console()
    needed = {
        "file": len(job.sources) > 1,
        "row": total.rows > len(job.sources),
        "item": job.columns.item is not None,
    }
    kinds = measure.fields(job.columns.copied)
    kinds = {name: kind for name, kind in kinds.items() if needed.get(name, True)}
    # Text is folded where it must be; numbers have room.
    screen.width = max(screen.width, sum(max(12, len(name) + 2) for name in kinds))
    grid = table(*map(safe, kinds), right=[name for name in kinds if kinds[name] is not str])
    for record in records[:_ROWS]:
        grid.add_row(*(_cell(name, record[name]) for name in kinds))
    screen.print(grid)
    if len(records) > _ROWS:
        more = len(records) - _ROWS
        screen.print(f"… and {more:,} more; --out FILE writes all, --json prints all.")
    if screen.is_terminal:
        print(f"largest stated error of a row: {done.largest:.2g} bits")
        print("--out FILE keeps the rows, and says how they were made")
    return len(bad)


def _cell(name: str, value: Any) -> Text:
    """A cell of a record as text."""
    if isinstance(value, float):
        return Text(f"{value:.2g}" if name == "error" else f"{value:.3f}")
    text = "" if value is None else str(value)
    # Escapes are as wide as they look: a table clips a cell by its width.
    return Text(text.translate(VISIBLE) if name == "text" else safe(text))


def _print_methods(outputs: list[str], as_json: bool) -> None:
    """Print the sentences and citations that report finished outputs."""
    from charwise.tables.provenance import methods_of

    each, papers = methods_of(outputs)
    if as_json:
        print_json(outputs=each, citations=papers)
        return
    screen = console()
    for line in [*(one["sentence"] + "\n" for one in each), *papers]:
        # A terminal has whole words in its lines; elsewhere a sentence is one line.
        screen.print(Text(line), soft_wrap=not screen.is_terminal)
