"""The options that commands share: those of a model, of tables, and the prompt."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
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

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]


#: The help and the names of an option.
MODEL = "A folder, a name on the hub, or 'embedded'.", "--model", "-m"


def option(default: Any, help: str | None, *names: str, **settings: Any) -> Any:
    """Return a field that is an option, with what `typer.Option` takes; its name is the field's."""
    return field(default=default, metadata={"option": (names, {"help": help, **settings})})


def argument(help: str, **settings: Any) -> Any:
    """Return a field that is an argument, None if it is not given."""
    return field(default=None, metadata={"argument": typer.Argument(help=help, **settings)})


@dataclass(frozen=True)
class HubOptions:
    """Which files of a name on the hub."""

    revision: str | None = option(None, "A branch, tag or commit of a model on the hub.")
    trust_remote_code: bool = option(False, "Run the code that comes with the model.")

    def index(self, tokenizer: str) -> SortedVocabulary:
        """Return the index of a tokenizer's vocabulary."""
        with spinner("reading the vocabulary"):
            from charwise.engines.pretrained import read_vocabulary
            from charwise.tokens.index import SortedVocabulary

            return SortedVocabulary(read_vocabulary(tokenizer, **_without_defaults(**asdict(self))))


@dataclass(frozen=True)
class EffortOptions:
    """How much to spend on the next bytes."""

    preset: Literal["fast", "default", "accurate", "exact"] | None = option(
        None, "How much to spend.", show_default="default"
    )
    tolerance: float | None = option(
        None,
        "In place of a preset: the error to accept in the distribution of the next byte, "
        "as a total variation.",
    )

    def check(self) -> None:
        """Refuse a bad tolerance, or a preset beside it, before anything is loaded."""
        from charwise.scoring.effort import Effort

        if self.tolerance is not None:
            with bad_usage():
                Effort.of(self.preset, self.tolerance)


@dataclass(frozen=True)
class ScoringOptions(EffortOptions):
    """How much to spend on the score of a text."""

    tolerance: float | None = option(
        None, "In place of a preset: the mean error to accept, in bits a byte."
    )


@dataclass(frozen=True)
class ModelOptions(HubOptions):
    """Which model, and how it is loaded."""

    model: str = option("embedded", *MODEL)
    device: str | None = option(None, "cpu, cuda, …; if not given, a GPU if there is one.")
    dtype: Literal["float32", "bfloat16", "float16"] | None = option(
        None, "Of the weights; if not given, float32 on a CPU, else theirs."
    )

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

    prompt: str | None = argument("The text so far.")
    stdin: bool = option(False, "Read the prompt from stdin.")

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

    text_column: str | None = option(None, "Has the texts; 'text' if not given.")
    delimiter: str | None = option(None, "Between the cells of CSV: a character, or 'tab'.")
    encoding: str | None = option(None, "Of text files; UTF-8 if not given. Excel's may be cp1252.")

    def sources(self, files: Sequence[str], columns: Columns) -> tuple[Source, ...]:
        """Return the files by their names."""
        from charwise.tables.readers import Dialect, Source

        if files.count("-") > 1:
            raise typer.BadParameter("stdin ('-') is one text, and can be given once.")
        with bad_usage():
            dialect = Dialect(self.delimiter, self.encoding)
        sources = tuple(
            Source("-", _read_stdin("-"), dialect) if name == "-" else Source.of(name, dialect)
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

    def add(name: str, hint: Any, default: Any) -> None:
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, kind, default=default, annotation=hint))

    for name, parameter in own.parameters.items():
        kind = parameter.annotation
        if not (isinstance(kind, type) and is_dataclass(kind)):
            add(name, kind, parameter.default)
            continue
        options = [each for each in fields(kind) if each.name not in own.parameters]
        groups[name] = kind, [each.name for each in options]
        hints = get_type_hints(kind, include_extras=True)
        for each in options:
            hint = hints[each.name]
            if "argument" in each.metadata:
                hint = Annotated[hint, each.metadata["argument"]]
            elif "option" in each.metadata:
                names, settings = each.metadata["option"]
                names = names or ["--" + each.name.replace("_", "-")]
                hint = Annotated[hint, typer.Option(*names, **settings)]
            add(each.name, hint, each.default)

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for name, (kind, options) in groups.items():
            values[name] = kind(**{option: values.pop(option) for option in options})
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
