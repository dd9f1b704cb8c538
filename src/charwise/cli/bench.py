"""The command `charwise bench`: error, surprisal and speed of every method, on any text."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.table import Table
from rich.text import Text

from charwise.cli.options import JsonOption, ModelOptions, takes_options
from charwise.cli.output import console, print_json, progress_bars, table
from charwise.errors import SettingError

if TYPE_CHECKING:
    from charwise.char_lm import CharLM
    from charwise.evaluation.bench import Report, Result

Number = TypeVar("Number", int, float)

#: Column → attribute of `Result`, and format of a number.
_COLUMNS = {
    "JS distance": ("js_distance", ".2e"),
    "|ΔS| bits": ("surprisal_error", ".2e"),
    "bits/byte": ("bits_per_byte", ".4f"),
    "bytes/s": ("bytes_per_second", ",.0f"),
    "contexts/byte": ("contexts_per_byte", ".2f"),
}


@dataclass(frozen=True)
class _Settings:
    """The options of `charwise bench` itself."""

    text: Annotated[
        Path, typer.Option("--text", help="The file to walk, any bytes.", metavar="FILE")
    ]
    reference_k: Annotated[
        int, typer.Option("--reference-K", min=1, help="Width of the reference beam.")
    ] = 128
    size: Annotated[
        int, typer.Option("--bytes", min=1, max=2**40, help="Walk no more than so many bytes.")
    ] = 1000
    repeat: Annotated[int, typer.Option(min=1, help="Timed walks of each method.")] = 3
    seed: Annotated[int, typer.Option(min=0, help="Of the bootstrap.")] = 0
    out: Annotated[
        Path | None,
        typer.Option(help="A folder for bench.json, .csv, .md and the two figures (SVG, PNG)."),
    ] = None
    as_json: JsonOption = False


@takes_options
def bench(
    options: ModelOptions,
    settings: _Settings,
    k: Annotated[
        list[str], typer.Option("--K", help="Widths of beams, as in 2,4,8.", metavar="N,…")
    ] = ["2,4,8,16"],  # noqa: B006
    theta: Annotated[
        list[str],
        typer.Option("--theta", help="Thresholds of beams, each with every K.", metavar="P,…"),
    ] = ["0"],  # noqa: B006
    preset: Annotated[
        list[str], typer.Option("--preset", help="Presets of the rounds.", metavar="NAME,…")
    ] = ["fast,default,accurate"],  # noqa: B006
) -> None:
    """Compare all methods on a text: error and speed."""
    ks = _numbers("--K", k, int, least=1)
    thetas = _numbers("--theta", theta, float, least=0.0, most=1.0)
    if max(ks) > settings.reference_k:
        raise typer.BadParameter(
            f"--K {max(ks)} is wider than the reference, --reference-K {settings.reference_k}: "
            "errors are measured against the widest beam."
        )
    data = _read_text(settings.text, settings.size)
    if settings.out is not None:
        _check_folder(settings.out)
    from charwise.evaluation import bench as benches

    try:
        candidates = benches.methods(ks, thetas, _names(preset))
    except SettingError as error:
        raise typer.BadParameter(str(error)) from error
    report = _walked(options.load(), data, candidates, settings)
    report = replace(
        report, model=Path(options.model).name or options.model, source=settings.text.name
    )
    files = _write(report, settings.out) if settings.out is not None else []
    if settings.as_json:
        print_json(**report.to_dict())
        return
    _show(report, files)


def _walked(lm: CharLM, data: bytes, candidates: list[Any], settings: _Settings) -> Report:
    """The report of all walks, by the methods; an interrupt says in which it came."""
    from charwise.evaluation import bench as benches

    reference = benches.beam(settings.reference_k)
    candidates = [method for method in candidates if method.name != reference.name]
    total, begun = (1 + settings.repeat) * (1 + len(candidates)), list[str]()

    def progress(name: str) -> None:
        advance(len(begun), total)
        begun.append(name)

    try:
        with progress_bars() as bar:
            advance = bar("walking")
            return benches.bench(
                lm,
                data,
                candidates,
                reference,
                repeat=settings.repeat,
                seed=settings.seed,
                progress=progress,
            )
    except KeyboardInterrupt:
        where = (
            f"in walk {len(begun)} of {total}, {begun[-1]}" if begun else "before the first walk"
        )
        print(f"charwise: interrupted {where}; nothing was written.", file=sys.stderr)
        raise


def _numbers(
    option: str,
    given: list[str],
    kind: Callable[[str], Number],
    *,
    least: Number,
    most: Number | None = None,
) -> list[Number]:
    """The values of a list option, without repetitions.

    >>> _numbers("--K", ["4,2", "4"], int, least=1)
    [4, 2]
    """
    found: list[Number] = []
    for part in _names(given):
        try:
            value = kind(part)
        except ValueError as error:
            raise typer.BadParameter(f"{option} {part}: {part!r} is not a number.") from error
        if not math.isfinite(value) or value < least or (most is not None and value > most):
            bounds = f"at least {least}" if most is None else f"in [{least:g}, {most:g}]"
            raise typer.BadParameter(f"{option} {part}: it must be {bounds}.")
        found.append(value)
    if not found:
        raise typer.BadParameter(f"{option} has no value: give one or more, as in {option} 2,4.")
    return list(dict.fromkeys(found))


def _names(given: list[str]) -> list[str]:
    """The values of a list option, which may be given once or several times.

    >>> _names(["fast, default,", "exact"])
    ['fast', 'default', 'exact']
    """
    return [part.strip() for part in ",".join(given).split(",") if part.strip()]


def _read_text(file: Path, size: int) -> bytes:
    """The first bytes of a file, whole characters of them."""
    from charwise.cursor.generation import whole_characters

    try:
        with file.open("rb") as stream:
            data = stream.read(size + 1)
    except OSError as error:
        raise typer.BadParameter(f"--text {file}: {error.strerror}.") from error
    if len(data) > size:
        data = whole_characters(b"", data[:size])
    if not data:
        raise typer.BadParameter(f"--text {file}: there is no text in it.")
    return data


def _check_folder(folder: Path) -> None:
    """Make the folder, and see that figures can be drawn, before hours are spent."""
    from charwise.evaluation.figures import need_matplotlib

    need_matplotlib()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"--out {folder}: {error.strerror}.") from error


def _write(report: Report, folder: Path) -> list[Path]:
    """All files of a report; those that exist are overwritten."""
    from charwise.evaluation import figures

    texts = {
        "bench.json": json.dumps(report.to_dict(), ensure_ascii=False, indent=1) + "\n",
        "bench.csv": _to_csv(report),
        "bench.md": _to_markdown(report) + "\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [*(folder / name for name in texts), *figures.save(report, folder)]


def _show(report: Report, files: list[Path]) -> None:
    """Print the table, its conditions, and the place of the files."""
    screen = console()
    if not screen.is_terminal:
        # Columns of the table in a pipe; a terminal has its own.
        screen.width = 110
    screen.print(_to_table(report))
    line = (
        f"{report.model}, {report.source}: {report.bytes:,} bytes, {report.tokens:,} canonical "
        f"tokens; errors against {report.reference}; walks timed: {report.repeat}; in brackets "
        "95 % intervals"
    )
    screen.print(line, soft_wrap=True)
    for result in report.results:
        if result.failed:
            line = f"no numbers for {result.method}: {result.failed}"
            screen.print(line, soft_wrap=True, markup=False)
    for file in files:
        screen.print(f"wrote {file}", soft_wrap=True, markup=False)


def _to_table(report: Report) -> Table:
    """For the terminal: each interval under its mean.

    >>> from charwise.evaluation.bench import Mean, Report, Result
    >>> result = Result("beam K=2", "beam", bits_per_byte=Mean(2.0, 1.5, 2.5))
    >>> table = _to_table(Report("m", "f", {}, 9, 2, "beam K=128", 1, (result,)))
    >>> print(*(str(column.header) for column in table.columns), sep=", ")
    method, JS distance, |ΔS| bits, bits/byte, bytes/s, contexts/byte
    """
    shown = table("method", *_COLUMNS, right=_COLUMNS)
    for result in report.results:
        cells = []
        for value, interval in _cells(result):
            cells.append(Text(value).append(f"\n{interval}" if interval else "", style="dim"))
        shown.add_row(_name(report, result), *cells)
    return shown


def _to_markdown(report: Report) -> str:
    r"""A Markdown table; intervals in brackets.

    >>> from charwise.evaluation.bench import Mean, Report, Result
    >>> result = Result("beam K=2", "beam", bits_per_byte=Mean(2.0, 1.5, 2.5))
    >>> print(_to_markdown(Report("m", "f", {}, 9, 2, "beam K=128", 1, (result,))))
    | method | JS distance | \|ΔS\| bits | bits/byte | bytes/s | contexts/byte |
    |---|---|---|---|---|---|
    | beam K=2 |  |  | 2.0000 (1.5000, 2.5000) |  |  |
    """
    lines = [["method", *(column.replace("|", r"\|") for column in _COLUMNS)]]
    for result in report.results:
        cells = [f"{value} {interval}".strip() for value, interval in _cells(result)]
        lines.append([_name(report, result), *cells])
    head, *rows = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([head, "|---" * (1 + len(_COLUMNS)) + "|", *rows])


def _to_csv(report: Report) -> str:
    """Full precision, a row a method; `Result.row` has the columns, empty where there is nothing.

    >>> from charwise.evaluation.bench import Mean, Report, Result
    >>> result = Result("beam K=2", "beam", bits_per_byte=Mean(2.0, 1.5, 2.5))
    >>> print(_to_csv(Report("m", "f", {}, 9, 2, "beam K=128", 1, (result,))).splitlines()[1])
    beam K=2,beam,,,,,,,2.0,1.5,2.5,,,,,
    """
    rows = [result.row() for result in report.results]
    file = io.StringIO()
    writer = csv.DictWriter(file, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _name(report: Report, result: Result) -> str:
    return result.method + (" (reference)" if result.method == report.reference else "")


def _cells(result: Result) -> Iterator[tuple[str, str]]:
    """Each number and its interval, as text; empty where there is none."""
    for attribute, form in _COLUMNS.values():
        value = getattr(result, attribute)
        if value is None or isinstance(value, float):
            yield ("" if value is None else format(value, form)), ""
            continue
        low, high = format(value.low, form), format(value.high, form)
        # Of one timed walk there is no interval.
        yield format(value.value, form), f"({low}, {high})" if value.low < value.high else ""
