"""The command `charwise complete`: a prompt's cut, and its completions by every method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from charwise.cli.options import (
    EffortOptions,
    JsonOption,
    ModelOptions,
    StdinOption,
    read_prompt,
    takes_options,
)
from charwise.cli.output import (
    completion_table,
    console,
    print_json,
    progress_bars,
    spelling,
    table,
)
from charwise.errors import ConstraintError, SettingError, shown
from charwise.tokens.line_ends import line_end, read, write

if TYPE_CHECKING:
    from charwise.constraints import Constraint
    from charwise.cursor.generation import Completion
    from charwise.cursor.options import GenerationOptions
    from charwise.cursor.smc import Weighted
    from charwise.healing import Rule


@dataclass(frozen=True)
class _Settings:
    """The options of `charwise complete` itself."""

    prompt: Annotated[str | None, typer.Argument(help="The text to complete.")] = None
    stdin: StdinOption = False
    max_new_bytes: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Length of a completion.")
    ] = 64
    n: Annotated[
        int, typer.Option("--n", "-n", min=1, max=1000, help="Draw so many; equal ones once.")
    ] = 1
    temperature: Annotated[
        float | None,
        typer.Option(min=0.0, help="0 takes the likeliest token; default 0, or 1 if n > 1."),
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Of the samples.")] = 0
    heal: Annotated[
        str, typer.Option(help="Where to cut: auto, word, off, or a number of tokens.")
    ] = "auto"
    regex: Annotated[
        str | None, typer.Option(help="What follows matches this regular expression.")
    ] = None
    json_schema: Annotated[
        Path | None, typer.Option(help="What follows is JSON of the schema in this file.")
    ] = None
    grammar: Annotated[
        Path | None, typer.Option(help="What follows is of the Lark grammar in this file.")
    ] = None
    choices: Annotated[
        list[str] | None, typer.Option("--choices", help="What follows is this: once for each.")
    ] = None
    particles: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="To condition on a constraint with.")
    ] = 64
    as_json: JsonOption = False

    def wanted(self) -> GenerationOptions:
        """How completions are drawn."""
        from charwise.cursor.options import GenerationOptions

        cold = self.temperature is None and self.n == 1
        try:
            return GenerationOptions(
                n=self.n,
                max_new_bytes=self.max_new_bytes,
                temperature=0.0 if cold else 1.0 if self.temperature is None else self.temperature,
                seed=self.seed,
                constraint=_constraint_from(
                    self.regex, self.json_schema, self.grammar, self.choices or ()
                ),
                particles=self.particles,
            )
        except SettingError as error:
            raise typer.BadParameter(str(error)) from error


@takes_options
def complete(options: ModelOptions, effort: EffortOptions, settings: _Settings) -> None:
    """Complete a prompt: plain, healed and exact, side by side; or under a constraint."""
    rule = _parse_rule(settings.heal)
    prompt = read_prompt(settings.prompt, settings.stdin)
    wanted = settings.wanted()
    if wanted.constraint is not None:
        _constrained(options, effort, prompt, wanted, settings.as_json)
        return

    from charwise.cli import completion

    try:
        request = completion.Request(read(prompt), wanted, rule)
    except SettingError as error:
        raise typer.BadParameter(str(error)) from error
    loaded = completion.Loaded(options.model, options.load(effort))
    cut = completion.prompt_cut(loaded, request)
    texts: dict[str, list[str]] = {}
    with progress_bars() as bar:
        for name, method in completion.methods(loaded).items():
            told = bar(name)
            found = [read(one) for one in method(loaded, request.told(told))]
            texts[name] = list(dict.fromkeys(found))  # each once
            told(1, 1)
    vocabulary, end = loaded.index.vocabulary, line_end(prompt)
    if settings.as_json:
        print_json(
            model=loaded.name,
            prompt=spelling(prompt),
            ids=cut.ids,
            tokens=[spelling(vocabulary.tokens[id] or b"") for id in cut.ids],
            kept=cut.kept,
            forced=spelling(write(cut.forced, end)),
            allowed=cut.allowed,
            dropped=cut.dropped,
            completions={name: [write(one, end) for one in each] for name, each in texts.items()},
        )
        return
    screen = console()
    screen.print(completion.cut_line(vocabulary, cut))
    screen.print(Text(completion.cut_sentence(cut, rule), style="dim"))
    screen.print(completion_table(request.prompt.decode("utf-8", "replace"), texts))


def _constrained(
    options: ModelOptions,
    effort: EffortOptions,
    prompt: bytes,
    wanted: GenerationOptions,
    as_json: bool,
) -> None:
    """Print completions under a constraint, drawn in both ways."""
    from charwise.cursor.smc import Weighted

    state = options.load(effort).state(read(prompt))
    local = state.complete(wanted)
    # So many of the heaviest texts are listed.
    heaviest = state.complete(wanted, n=10, temperature=0.0, conditioning="global")
    if not isinstance(heaviest, Weighted):
        raise ConstraintError("no weights came back.")
    if as_json:
        text = prompt.decode("utf-8", "backslashreplace")
        print_json(model=options.model, prompt=text, **_fields(local, heaviest))
    else:
        console().print(_table(local, heaviest), _sentence(heaviest))


def _parse_rule(value: str) -> Rule:
    """`--heal`'s value: a name, or a number of tokens.

    >>> _parse_rule("auto"), _parse_rule("2")
    ('auto', 2)
    """
    if value in ("auto", "word", "off"):
        return value  # type: ignore[return-value]
    # No prompt has a billion tokens, and `int` refuses numbers of thousands of digits.
    if value.isascii() and value.isdecimal() and len(value) < 10:
        return int(value)
    raise typer.BadParameter(f"{shown(value)} is not auto, word, off or a number of tokens.")


def _constraint_from(
    regex: str | None, json_schema: Path | None, grammar: Path | None, choices: Sequence[str]
) -> Constraint | None:
    """The constraint that the options ask for; None if none does.

    Raises:
        typer.BadParameter: two of them.
        ConstraintError: one that is wrong.
        SettingError: a file that cannot be read.
    """
    asked: dict[str, Any] = {
        "regex": regex,
        "json_schema": json_schema and _read(json_schema),
        "grammar": grammar and _read(grammar),
        "choices": [choice.encode("utf-8", "surrogateescape") for choice in choices] or None,
    }
    given = [name.replace("_", "-") for name, value in asked.items() if value is not None]
    if not given:
        return None
    if len(given) > 1:
        raise typer.BadParameter(f"--{' and --'.join(given)}: give one of them.")
    from charwise.constraints import constraint_of

    return constraint_of(asked)  # type: ignore[arg-type]


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise SettingError(f"{path} is not UTF-8 at byte {error.start}.") from error


def _table(local: list[Completion], heaviest: Weighted) -> Table:
    """A row for each text: those drawn step by step first, then the heaviest others."""
    shares = ("step by step", "given the constraint")
    found = table("completion", *shares, right=shares)
    drawn = [one.raw for one in local]
    weights = dict(zip([one.raw for one in heaviest], heaviest.weights.tolist(), strict=True))
    for raw in dict.fromkeys([*weights, *drawn]):
        times = drawn.count(raw)
        share = f"{weights[raw]:.4f}" if raw in weights else "–"
        found.add_row(
            spelling(raw), "drawn" if times == 1 else f"{times} ×" if times else "", share
        )
    return found


def _sentence(heaviest: Weighted) -> str:
    """How probable the constraint is, and how the shares were computed."""
    rest = (
        "all of it added up"
        if math.isinf(heaviest.effective)
        else f"estimated, effective sample size {heaviest.effective:.0f}"
    )
    return f"p(constraint | prompt) = {math.exp(heaviest.logprob):.3g} ({rest})."


def _fields(local: list[Completion], heaviest: Weighted) -> dict[str, Any]:
    """The answer for `--json`."""
    return {
        "local": [
            {"text": spelling(one.raw), "logprob": one.logprob, "finish": one.finish}
            for one in local
        ],
        "global": [
            {
                "text": spelling(one.raw),
                "prob": weight,
                "logprob": one.logprob,
                "finish": one.finish,
            }
            for one, weight in zip(heaviest, heaviest.weights.tolist(), strict=True)
        ],
        "constraint_logprob": heaviest.logprob,
        "effective": heaviest.effective,
    }
