"""The command `charwise score`: texts and tables in, a table of their surprisals out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from charwise.cli.options import (
    ModelOptions,
    ScoringOptions,
    takes_options,
)
from charwise.cli.runs import (
    RunOptions,
    check_place,
    checked,
    leave_out,
    progress,
    stated,
    write,
)
from charwise.cli.terminal import VISIBLE, console, print_json
from charwise.errors import SettingError, check_share
from charwise.surprisal.score import Entropy
from charwise.surprisal.spans import ENTROPIES
from charwise.tables.jobs import Job
from charwise.tables.measure import Measure, Per
from charwise.tables.rows import BadRow
from charwise.tables.writers import Record
from charwise.tokens.words import Convention

if TYPE_CHECKING:
    from charwise.char_lm import CharLM
    from charwise.tables.jobs import Extent


@dataclass(frozen=True)
class _Settings:
    """The options of `charwise score` itself."""

    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE…",
            help="Plain texts, .csv, .tsv, .jsonl or .parquet; '-' is a plain text from stdin.",
        ),
    ]
    per: Annotated[Per, typer.Option(help="What a row of the output is.")] = "word"
    convention: Annotated[
        Convention | None,
        typer.Option(
            help="Which whitespace belongs to a word, or 'ending': that it ends. Default: leading."
        ),
    ] = None
    regions_column: Annotated[
        str | None, typer.Option(help="Has the text with | between regions, or [[start, end], …].")
    ] = None
    region: Annotated[
        list[str] | None,
        typer.Option(help="A string that is a region wherever it occurs; may be repeated."),
    ] = None
    alternatives_column: Annotated[
        str | None, typer.Option(help="Has other strings for a region, river|sea or a JSON list.")
    ] = None
    keep_column: Annotated[
        list[str] | None, typer.Option(help="Is copied to the output; may be given several times.")
    ] = None
    entropy: Annotated[
        Entropy | None,
        typer.Option(
            help="Add the entropy of what may come, and the rank of what came. Of words it is slow."
        ),
    ] = None
    coverage: Annotated[
        float | None,
        typer.Option(help="With --entropy word: the share of the words to find; 0.9 if not given."),
    ] = None
    end: Annotated[bool, typer.Option("--end", help="Add the end of each text, as a row.")] = False
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A .csv, .tsv, .jsonl or .parquet file.")
    ] = None
    methods: Annotated[
        bool,
        typer.Option(
            "--methods",
            help="Print how outputs of it, FILE…, were made: for a methods section.",
        ),
    ] = False


@takes_options
def score(
    options: ModelOptions,
    run: RunOptions,
    effort: ScoringOptions,
    settings: _Settings,
) -> None:
    """Surprisal of the words or regions of texts, as a table."""
    if settings.methods:
        _describe(settings.files, run.as_json)
        return
    if settings.convention is not None and settings.per != "word":
        raise typer.BadParameter("--convention is about words: use it with --per word.")
    if settings.convention == "ending" and settings.end:
        raise typer.BadParameter("--convention ending has the end with the last word: omit --end.")
    measure = Measure(
        settings.per,
        settings.convention or "leading",
        effort.preset,
        settings.entropy,
        effort.tolerance,
        settings.end,
        0.9 if settings.coverage is None else settings.coverage,
        settings.alternatives_column is not None,
    )
    if settings.coverage is not None and settings.entropy != "word":
        raise typer.BadParameter("--coverage is about words: use it with --entropy word.")
    try:
        check_share("--coverage", measure.coverage)
    except SettingError as error:
        raise typer.BadParameter(str(error)) from error
    run.check()
    _check_output(settings.files, settings.out, run)
    columns = run.columns(
        settings.regions_column,
        settings.keep_column or (),
        settings.region or (),
        settings.alternatives_column,
    )
    for option in ("regions_column", "region", "alternatives_column"):
        if getattr(settings, option) and settings.per != "region":
            raise typer.BadParameter(f"--{option.replace('_', '-')} needs --per region.")
    if settings.regions_column and settings.region:
        raise typer.BadParameter("give --regions-column or --region, and not both.")
    effort.check()
    try:
        kinds = measure.fields(columns.kept)
    except SettingError as error:
        raise typer.BadParameter(str(error)) from error
    job = Job(run.sources(settings.files, columns), columns, measure, run.strict)
    extent = run.survey(job)
    if settings.out is None and extent.rows > 1_000:
        raise SettingError(f"{extent.rows:,} rows are too many to print: name a file with --out.")
    lm = options.load()
    if settings.out is None:
        leave_out(len(_print(job, lm, extent, run.skip, options.model, run.as_json)))
        return
    from charwise.tables.output import Output

    identity = job.identity(lm, options.model)
    output = Output(settings.out, kinds, identity, extent.rows, overwrite=run.overwrite)
    write(job, lm, output, extent, run, options)


def _describe(outputs: list[str], as_json: bool) -> None:
    """Print the sentences and citations that report finished outputs."""
    from charwise.tables.provenance import citations, read_origin, sentence

    found = [(out, read_origin(Path(out))) for out in outputs]
    papers = citations(facts for _, facts in found)
    if as_json:
        each = [{"out": out, "sentence": sentence(facts), "origin": facts} for out, facts in found]
        print_json(outputs=each, citations=papers)
        return
    for _, facts in found:
        print(sentence(facts), end="\n\n")
    print(*papers, sep="\n")


def _check_output(files: list[str], out: Path | None, run: RunOptions) -> None:
    """Refuse options that need an output, and an output that is there or is an input."""
    if out is None:
        if run.overwrite or run.ray:
            raise typer.BadParameter(f"--{'ray' if run.ray else 'overwrite'} needs --out FILE.")
        return
    if out.is_dir():
        raise typer.BadParameter(f"--out {out} is a folder: name a file in it.")
    check_place(out, files)

    from charwise.tables.output import refuse_finished
    from charwise.tables.writers import FORMATS, format_of

    if out.suffix.lower() not in FORMATS:
        raise typer.BadParameter(f"--out {out}: its name ends in none of {', '.join(FORMATS)}.")
    format_of(out)
    if not run.overwrite:
        refuse_finished(out)


def _print(
    job: Job, lm: CharLM, extent: Extent, skip: bool, model: str, as_json: bool
) -> list[BadRow]:
    """Score everything, print the records on stdout, and the rows left out on stderr."""
    measure = job.measure
    assert isinstance(measure, Measure)
    records: list[Record] = []
    bad: list[BadRow] = []
    largest = 0.0
    with progress(extent) as advance:
        for chunk in checked(job.scored(lm), skip):
            for outcome in chunk.outcomes:
                if isinstance(outcome, BadRow):
                    bad.append(outcome)
                else:
                    records += outcome
            largest = max(largest, chunk.largest)
            advance(chunk)
    for row in bad:
        print(f"charwise: left out: {row}", file=sys.stderr)
    if as_json:
        print_json(
            model=model,
            per=measure.per,
            convention=measure.convention if measure.per == "word" else None,
            preset=measure.preset or ("default" if measure.tolerance is None else None),
            tolerance=measure.tolerance,
            rows=records,
            left_out=[str(row) for row in bad],
        )
        return bad
    screen = console()
    fields = measure.fields(job.columns.kept)
    if not screen.is_terminal:
        # A column beyond the usual ones has so many characters.
        screen.width += 12 * (len(fields) - len(Measure().fields()))
    kept = (*job.columns.kept, *(["item"] if job.columns.item is not None else []))
    most = 200  # rows that a terminal shows
    table = _table(records[:most], fields, kept)
    screen.width = max(screen.width, table.min_width or 0)  # half a number is another number
    screen.print(table)
    if len(records) > most:
        more = len(records) - most
        screen.print(f"… and {more:,} more; --out FILE writes all, --json prints all.")
    if screen.is_terminal:
        print(stated(largest))
        print("--out FILE keeps the rows, and says how they were made")
    return bad


def _table(records: list[Record], kinds: dict[str, type], kept: Container[str] = ()) -> Table:
    """The records, without the names and numbers that nobody asked for and all have in common.

    At its least width the numbers are whole.
    """
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
        **dict.fromkeys(("surprisal", "cumulative", *ENTROPIES), bits),
        "rank": str,
        "error": "{:.2g}".format,
    }
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    forms = [(name, shown.get(name, str)) for name in names]
    rows = [[_shown(record.get(name), form) for name, form in forms] for record in records]
    table.min_width = -1  # nothing is between the last column and the edge but a blank
    for n, name in enumerate(names):
        widest = max(map(cell_len, [name, *(row[n] for row in rows)]))
        if kinds[name] is not str:
            table.add_column(name, justify="right", no_wrap=True)
        else:
            # Text in a table is folded where it must be, to no fewer columns of characters.
            widest = min(8, widest)
            table.add_column(name, overflow="fold", min_width=widest)
        table.min_width += widest + 2
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _shown(value: Any, form: Callable[[Any], str]) -> str:
    return "" if value is None else form(value)
