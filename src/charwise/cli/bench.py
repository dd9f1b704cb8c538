"""The command `charwise bench`: error, surprisal and speed of every method, on any text."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from typer.core import TyperCommand

from charwise.cli.options import JsonOption, ModelOptions, takes_model
from charwise.cli.terminal import console, print_json
from charwise.errors import SettingError

if TYPE_CHECKING:
    from charwise.evaluation.bench import Report

Number = TypeVar("Number", int, float)

#: Options that take several values.
_LISTS = ("--K", "--theta", "--preset")


class ListsCommand(TyperCommand):
    """A command whose list options may be given as `--K 2 4 8`, besides `--K 2,4,8`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Click's own, after joining."""
        return super().parse_args(ctx, _joined(args))


def _joined(arguments: list[str]) -> list[str]:
    """The values that follow a list option, as one.

    >>> _joined(["--K", "2", "4", "--text", "F", "--theta", "0", "1e-3"])
    ['--K', '2,4', '--text', 'F', '--theta', '0,1e-3']
    """
    out: list[str] = []
    at = 0
    while at < len(arguments):
        out.append(arguments[at])
        at += 1
        if out[-1] in _LISTS:
            first = at
            while at < len(arguments) and not arguments[at].startswith("--"):
                at += 1
            out += [",".join(arguments[first:at])] if at > first else []
    return out


@takes_model
def bench(
    options: ModelOptions,
    text: Annotated[
        Path, typer.Option("--text", help="The file to walk, any bytes.", metavar="FILE")
    ],
    k: Annotated[
        list[str], typer.Option("--K", help="Widths of beams: 2,4,8 or 2 4 8.", metavar="N,…")
    ] = ["2,4,8,16"],  # noqa: B006 - typer copies it
    theta: Annotated[
        list[str],
        typer.Option("--theta", help="Thresholds of beams, each with every K.", metavar="P,…"),
    ] = ["0"],  # noqa: B006
    preset: Annotated[
        list[str], typer.Option("--preset", help="Presets of the rounds.", metavar="NAME,…")
    ] = ["fast,default,accurate"],  # noqa: B006
    reference_k: Annotated[
        int, typer.Option("--reference-K", min=1, help="Width of the reference beam.")
    ] = 128,
    size: Annotated[
        int, typer.Option("--bytes", min=1, max=2**40, help="Walk no more than so many bytes.")
    ] = 1000,
    repeat: Annotated[int, typer.Option(min=1, help="Timed walks of each method.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Of the bootstrap.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="A folder for bench.json, .csv, .md and the two figures (SVG, PNG)."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare all methods on a text: error and speed."""
    ks = _numbers("--K", k, int, least=1)
    thetas = _numbers("--theta", theta, float, least=0.0, most=1.0)
    if max(ks) > reference_k:
        raise typer.BadParameter(
            f"--K {max(ks)} is wider than the reference, --reference-K {reference_k}: errors are "
            "measured against the widest beam."
        )
    data = _read_text(text, size)
    if out is not None:
        _check_folder(out)
    from charwise.evaluation import bench as benches

    try:
        candidates = benches.methods(ks, thetas, _names(preset))
    except SettingError as error:
        raise typer.BadParameter(str(error)) from error
    lm, reference = options.load(), benches.beam(reference_k)
    candidates = [method for method in candidates if method.name != reference.name]
    walks = _Walks((1 + repeat) * (1 + len(candidates)))
    try:
        with walks:
            report = benches.bench(
                lm, data, candidates, reference, repeat=repeat, seed=seed, progress=walks.begin
            )
    except KeyboardInterrupt:
        print(f"charwise: interrupted {walks.where()}; nothing was written.", file=sys.stderr)
        raise
    report = replace(report, model=Path(options.model).name or options.model, source=text.name)
    files = _write(report, out) if out is not None else []
    if as_json:
        print_json(**report.to_dict())
        return
    _show(report, files)


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
    from charwise.evaluation.bench import whole_characters

    try:
        with file.open("rb") as stream:
            data = stream.read(size + 1)
    except OSError as error:
        raise typer.BadParameter(f"--text {file}: {error.strerror}.") from error
    data = whole_characters(data, size)
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


class _Walks(Progress):
    """The progress of the walks, on stderr: which method it is at, how many are done."""

    def __init__(self, total: int) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._total = total
        self._task = self.add_task("loading", total=total)
        self._begun = 0

    def begin(self, name: str) -> None:
        """The next walk begins."""
        self.update(self._task, description=name, completed=self._begun)
        self._begun += 1

    def where(self) -> str:
        """Which walk it is at.

        >>> walks = _Walks(8)
        >>> walks.begin("beam K=2")
        >>> walks.where()
        'in walk 1 of 8, beam K=2'
        """
        return f"in walk {self._begun} of {self._total}, {self.tasks[0].description}"


def _write(report: Report, folder: Path) -> list[Path]:
    """All files of a report; those that exist are overwritten."""
    from charwise.evaluation import figures, tables

    texts = {
        "bench.json": json.dumps(report.to_dict(), ensure_ascii=False, indent=1) + "\n",
        "bench.csv": tables.to_csv(report),
        "bench.md": tables.to_markdown(report) + "\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [*(folder / name for name in texts), *figures.save(report, folder)]


def _show(report: Report, files: list[Path]) -> None:
    """The table, what it was measured on, and where the files are."""
    from charwise.evaluation import tables

    screen = console()
    if not screen.is_terminal:
        # Columns of the table in a pipe; a terminal has its own.
        screen.width = 110
    screen.print(tables.to_table(report))
    line = (
        f"{report.model}, {report.source}: {report.bytes:,} bytes, {report.tokens:,} canonical "
        f"tokens; errors against {report.reference}; walks timed: {report.repeat}; in brackets "
        "95 % intervals"
    )
    screen.print(line, soft_wrap=True)
    for sentence in tables.failures(report):
        screen.print(f"no numbers for {sentence}", soft_wrap=True, markup=False)
    for file in files:
        screen.print(f"wrote {file}", soft_wrap=True, markup=False)
