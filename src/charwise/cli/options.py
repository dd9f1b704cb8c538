"""The options that commands share: those of a model, of tables, and the prompt."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from charwise.cli.output import spinner
from charwise.errors import SettingError

if TYPE_CHECKING:
    from charwise.char_lm import CharLM
    from charwise.tables.readers import Source
    from charwise.tables.rows import Columns
    from charwise.tokens.index import SortedVocabulary

ModelOption = Annotated[
    str, typer.Option("--model", "-m", help="A folder, a name on the hub, or 'embedded'.")
]
TopOption = Annotated[int, typer.Option("--top", "-k", min=1, max=1_000_000, help="Rows to print.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
HostOption = Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 for every interface.")]


@dataclass(frozen=True)
class HubOptions:
    """Which files of a name on the hub."""

    revision: Annotated[
        str | None, typer.Option(help="A branch, tag or commit of a model on the hub.")
    ] = None
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run the code that comes with the model.")
    ] = False

    def index(self, tokenizer: str) -> SortedVocabulary:
        """Return the index of a tokenizer's vocabulary."""
        with spinner("reading the vocabulary"):
            from charwise.engines.pretrained import read_vocabulary
            from charwise.tokens.index import SortedVocabulary

            return SortedVocabulary(read_vocabulary(tokenizer, **_without_defaults(**asdict(self))))


@dataclass(frozen=True)
class EffortOptions:
    """How much to spend on the next bytes."""

    preset: Annotated[
        Literal["fast", "default", "accurate", "exact"] | None,
        typer.Option(help="How much to spend.", show_default="default"),
    ] = None
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="In place of a preset: the error to accept in the distribution of the next byte, "
            "as a total variation."
        ),
    ] = None

    def check(self) -> None:
        """Refuse a bad tolerance, or a preset beside it, before anything is loaded."""
        from charwise.scoring.effort import effort_of

        if self.tolerance is not None:
            with bad_usage():
                effort_of(self.preset, self.tolerance)


@dataclass(frozen=True)
class ScoringOptions(EffortOptions):
    """How much to spend on the score of a text."""

    tolerance: Annotated[
        float | None,
        typer.Option(help="In place of a preset: the mean error to accept, in bits a byte."),
    ] = None


@dataclass(frozen=True)
class ModelOptions(HubOptions):
    """Which model, and how it is loaded."""

    model: ModelOption = "embedded"
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, …; if not given, a GPU if there is one.")
    ] = None
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        typer.Option(help="Of the weights; if not given, float32 on a CPU, else theirs."),
    ] = None

    def load(self, effort: EffortOptions | None = None) -> CharLM:
        """Return the model."""
        effort = effort or EffortOptions()
        effort.check()
        options = _without_defaults(**asdict(self), **asdict(effort))
        if effort.tolerance is None:
            options.setdefault("preset", "default")
        with spinner("loading the model"):
            from charwise.char_lm import load

            return load(options.pop("model", ""), **options)


@dataclass(frozen=True)
class PromptOptions:
    """A prompt."""

    prompt: Annotated[str | None, typer.Argument(help="The text so far.")] = None
    stdin: Annotated[bool, typer.Option("--stdin", help="Read the prompt from stdin.")] = False

    def read(self) -> bytes:
        """Return the prompt from the argument or from stdin, where it may be any bytes."""
        if (self.prompt is not None) == self.stdin:
            raise typer.BadParameter("give a prompt, or --stdin, and not both.")
        if self.prompt is None:
            return _read_stdin("--stdin")
        # Arguments that are not UTF-8 arrive with surrogate escapes.
        return self.prompt.encode("utf-8", "surrogateescape")


@dataclass(frozen=True)
class TableOptions:
    """How tables are read."""

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
        """Return the files by their names."""
        from charwise.tables.readers import Dialect, Source, source_of

        if files.count("-") > 1:
            raise typer.BadParameter("stdin ('-') is one text, and can be given once.")
        with bad_usage():
            dialect = Dialect(self.delimiter, self.encoding)
        sources = tuple(
            Source("-", _read_stdin("-"), dialect) if name == "-" else source_of(name, dialect)
            for name in files
        )
        endings = {source.ending for source in sources}
        if self.delimiter is not None and not {".csv", ".tsv"} & endings:
            raise typer.BadParameter("--delimiter is of .csv and .tsv files: none is given.")
        if self.encoding is not None and endings == {".parquet"}:
            raise typer.BadParameter("--encoding is of text files, and Parquet is none.")
        names_columns = self.text_column is not None or len(columns.wanted()) > 1
        if names_columns and not any(source.is_table for source in sources):
            raise typer.BadParameter("a plain text has no columns: give a table.")
        return sources


@contextlib.contextmanager
def bad_usage() -> Iterator[None]:
    """Turn a `SettingError` into the error of an option, whose exit code is 2."""
    try:
        yield
    except SettingError as error:
        raise typer.BadParameter(str(error)) from error


def check_output(option: str, out: Path, endings: Collection[str], files: Sequence[str]) -> None:
    """Refuse an output that is an input, or that cannot be written, before hours are spent."""
    if out.suffix.lower() not in endings or out.is_dir():
        raise typer.BadParameter(f"{option} {out}: name a file that ends in {', '.join(endings)}.")
    if any(name != "-" and Path(name).resolve() == out.resolve() for name in files):
        raise typer.BadParameter(f"{out} is one of the input files.")
    if not out.parent.is_dir():
        raise SettingError(f"{out} cannot be written: there is no folder {out.parent}. Make it.")
    if not os.access(out.parent, os.W_OK):
        raise SettingError(f"{out} cannot be written: {out.parent} is not yours to write in.")


def _without_defaults(**options: Any) -> dict[str, Any]:
    """The options that have a value: the others are for the library to choose."""
    return {name: value for name, value in options.items() if value}


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the fields of each dataclass that is a parameter of it as options.

    Fields that the command has itself, as other parameters, keep their defaults.
    """
    own = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[Any, list[str]]] = {}  # parameter → its dataclass, the options in it
    for name, parameter in own.parameters.items():
        kind = parameter.annotation
        if not (isinstance(kind, type) and is_dataclass(kind)):
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        hints = get_type_hints(kind, include_extras=True)
        fields = inspect.signature(kind).parameters
        groups[name] = kind, [field for field in fields if field not in own.parameters]
        parameters += [
            fields[field].replace(annotation=hints[field], kind=inspect.Parameter.KEYWORD_ONLY)
            for field in groups[name][1]
        ]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for name, (kind, fields) in groups.items():
            values[name] = kind(**{field: values.pop(field) for field in fields})
        command(**values)

    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _read_stdin(option: str) -> bytes:
    """Return all of stdin, which an option reads."""
    if sys.stdin is None:
        raise SettingError(f"stdin is closed, and {option} reads a text from it.")
    try:
        return sys.stdin.buffer.read()
    except OSError as error:
        raise SettingError(f"stdin cannot be read: {error.strerror}.") from error
