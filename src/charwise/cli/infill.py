"""The command `charwise infill`: the text between two texts, by every method."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict

import typer
from rich.text import Text

from charwise.cli.options import (
    EffortOptions,
    JsonOption,
    ModelOptions,
    takes_options,
)
from charwise.cli.output import (
    SCISSORS,
    completion_table,
    console,
    print_json,
    spelling,
    track,
    visible,
)
from charwise.errors import SettingError, shown
from charwise.tokens.line_ends import line_end, offset, read, write

if TYPE_CHECKING:
    from charwise.cli.completion import Loaded
    from charwise.cursor.middle import InfillCompletion
    from charwise.cursor.options import GenerationOptions
    from charwise.healing.fim import Order, Request, Template
    from charwise.tokens.vocabulary import Vocabulary

    class Given(TypedDict):
        """How a model is asked for a middle."""

        order: Order | None
        template: Template


#: FILE:LINE:COLUMN, both counted from 1; or FILE:OFFSET, in bytes.
_PLACE = re.compile(r"(?P<file>.+?):(?P<line>\d{1,9})(:(?P<column>\d{1,9}))?")


@dataclass(frozen=True)
class _Settings:
    """The options of `charwise infill` itself."""

    place: Annotated[
        str | None,
        typer.Argument(help="FILE:LINE:COLUMN, counted from 1, or FILE:OFFSET, in bytes."),
    ] = None
    prefix: Annotated[str, typer.Option(help="What comes before.")] = ""
    suffix: Annotated[str, typer.Option(help="What comes after.")] = ""
    order: Annotated[
        Literal["psm", "spm"] | None,
        typer.Option(help="Prefix first or suffix first; by default what the model knows."),
    ] = None
    template: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Its special tokens for prefix, suffix and middle, where they are unusual.",
        ),
    ] = None
    n: Annotated[int, typer.Option("--n", "-n", min=1, max=1000, help="Exact candidates.")] = 1
    max_new_bytes: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Length of a middle.")
    ] = 64
    as_json: JsonOption = False

    def sides(self) -> tuple[bytes, bytes]:
        """The text before and after the middle."""
        if self.place is None:
            left, right = (
                one.encode("utf-8", "surrogateescape") for one in (self.prefix, self.suffix)
            )
            return left, right
        if self.prefix or self.suffix:
            raise typer.BadParameter(
                "give a place in a file, or --prefix and --suffix, and not both."
            )
        return _sides(self.place)

    def names(self) -> list[str] | None:
        """The sentinels that are named."""
        names = None if self.template is None else self.template.split()
        if names is not None and len(names) not in (2, 3):
            raise typer.BadParameter(
                f"--template {shown(self.template)}: give two or three names, as in "
                "'<PRE> <SUF> <MID>'."
            )
        return names


@takes_options
def infill(options: ModelOptions, effort: EffortOptions, settings: _Settings) -> None:
    """Fill in between two texts: plain, healed on both sides, and exact."""
    left, right = settings.sides()
    before, after, end = read(left), read(right), line_end(left, right)
    names = settings.names()

    from charwise.cli import completion
    from charwise.cursor.options import GenerationOptions

    loaded = completion.Loaded(options.model, options.load(effort))
    sentinels = _sentinels(loaded.index.vocabulary, names)
    given: Given = {"order": settings.order, "template": sentinels}
    request = loaded.lm.infill_request(before, after, **given)
    request = request._replace(  # bytes of the file
        prefix_cut=offset(left, request.prefix_cut),
        suffix_cut=len(right) - offset(right, len(after) - request.suffix_cut),
    )
    wanted = GenerationOptions(n=settings.n, max_new_bytes=settings.max_new_bytes)
    texts, exact = middles(loaded, before, after, given, wanted)
    if settings.as_json:
        print_json(
            model=loaded.name,
            template=sentinels.family,
            order=sentinels.order(settings.order),
            forced=spelling(write(request.forced, end)),
            ending=spelling(write(request.ending, end)),
            prefix_cut=request.prefix_cut,
            suffix_cut=request.suffix_cut,
            middles={name: [write(one, end) for one in each] for name, each in texts.items()},
            logprobs=[one.logprob for one in exact],
        )
        return
    screen = console()
    screen.print(_request_line(before, after, request))
    screen.print(Text(_request_sentence(request), style="dim"))
    screen.print(completion_table(spelling(before), texts))


def _sentinels(vocabulary: Vocabulary, names: list[str] | None) -> Template:
    """Those of the model, or those named.

    Raises:
        SettingError: the model has none that are known, or none of such a name.
    """
    from charwise.healing.fim import IN_PYTHON, Template

    if names is not None:
        return Template.named(vocabulary, *names)
    try:
        return Template.of(vocabulary)
    except SettingError as error:
        in_a_shell = "--template '<PRE> <SUF> <MID>', for prefix, suffix and middle"
        raise SettingError(str(error).replace(IN_PYTHON, in_a_shell)) from None


def _sides(place: str) -> tuple[bytes, bytes]:
    """The text before and after a place in a file.

    Columns count characters, as editors do; a line's end is its last column.

    Raises:
        SettingError: no such file, or no such place in it.
        typer.BadParameter: what is no place.
    """
    found = _PLACE.fullmatch(place)
    if found is None:
        raise typer.BadParameter(f"{shown(place)} is neither FILE:LINE:COLUMN nor FILE:OFFSET.")
    path = Path(found["file"])
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SettingError(f"{path}: {error.strerror}.") from error
    if found["column"] is None:
        at = int(found["line"])
        if at > len(data):
            raise SettingError(f"{path} has {len(data)} bytes: there is no offset {at}.")
        at -= data[max(0, at - 1) : at + 1] == b"\r\n"  # a line's end is not divided
        return data[:at], data[at:]
    lines = read(data).split(b"\n")
    line, column = int(found["line"]), int(found["column"])
    if not 1 <= line <= len(lines):
        raise SettingError(f"{path} has {len(lines)} lines: there is no line {line}.")
    text = lines[line - 1].decode("utf-8", "surrogateescape")
    if not 1 <= column <= len(text) + 1:
        raise SettingError(f"line {line} of {path} has {len(text)} characters: column {column}?")
    at = sum(len(one) + 1 for one in lines[: line - 1])
    at = offset(data, at + len(text[: column - 1].encode("utf-8", "surrogateescape")))
    return data[:at], data[at:]


def _request_line(before: bytes, after: bytes, request: Request) -> Text:
    r"""Both sides of a request, with scissors where they are cut and a bar between them.

    >>> from charwise.healing.fim import Request
    >>> _request_line(b"y = x.ind", b"ex()\n", Request([0], b".ind", b"ex", 1)).plain
    'y␣=␣x ✂ .ind│ex ✂ ()⏎'
    """
    kept, rest = before[: len(before) - len(request.forced)], after[len(request.ending) :]
    given = "bold black on yellow"
    line = Text().append("…" if len(kept) > 24 else "", "dim").append(visible(kept[-24:]))
    line.append(SCISSORS, style="bold red").append(visible(request.forced), given)
    line.append("│", style="bold red").append(visible(request.ending), given)
    line.append(SCISSORS, style="bold red").append(visible(rest[:24]))
    return line.append("…" if len(rest) > 24 else "", "dim")


def _request_sentence(request: Request) -> str:
    """The cuts in words.

    >>> from charwise.healing.fim import Request
    >>> _request_sentence(Request([0], b".ind", b"ex", 1, suffix_cut=7))
    "The middle begins with '.ind' and ends with 'ex'. 7 bytes of the suffix do not fit."
    """
    begins = f"begins with {spelling(request.forced)!r}" if request.forced else "begins anywhere"
    ends = f"ends with {spelling(request.ending)!r}" if request.ending else "ends anywhere"
    lost = [
        f"{count} bytes of the {side} do not fit."
        for side, count in (("prefix", request.prefix_cut), ("suffix", request.suffix_cut))
        if count
    ]
    return " ".join([f"The middle {begins} and {ends}.", *lost])


def middles(
    loaded: Loaded,
    before: bytes,
    after: bytes,
    given: Given,
    options: GenerationOptions,
) -> tuple[dict[str, list[str]], list[InfillCompletion]]:
    """The middles by each method that the model allows, and the exact ones with their numbers."""
    exact = loaded.lm.infill(before, after, options, **given)
    generates = hasattr(loaded.model, "generate")
    texts: dict[str, list[str]] = {"plain": [], "healed": []} if generates else {}
    most = options.max_new_bytes
    for name in track(list(texts), len(texts), "filling in"):
        texts[name] = [_generated(loaded, before, after, given, name == "healed", most)]
    texts["exact"] = [one.text for one in exact]
    return texts, exact


def _generated(
    loaded: Loaded, before: bytes, after: bytes, given: Given, heal: bool, most: int
) -> str:
    from charwise.engines.pretrained import quietly
    from charwise.healing.transformers.infill import heal_infill

    rule: Literal["auto", "off"] = "auto" if heal else "off"
    with quietly():
        [text] = heal_infill(
            loaded.model,
            loaded.index,
            before,
            after,
            **given,
            left=rule,
            right=rule,
            max_new_tokens=most,
            do_sample=False,
        )
    return text.encode()[:most].decode("utf-8", "ignore")
