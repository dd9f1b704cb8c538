"""The command `charwise complete`: a prompt's cut, and its completions by every method."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from charwise.cli.options import (
    JsonOption,
    ModelOptions,
    PresetOption,
    StdinOption,
    VariationOption,
    read_prompt,
    takes_options,
)
from charwise.cli.terminal import bars, console, print_json
from charwise.errors import SettingError, shown
from charwise.tokens.line_ends import line_end, read, write

if TYPE_CHECKING:
    from charwise.healing import Rule


@takes_options
def complete(
    options: ModelOptions,
    prompt: Annotated[str | None, typer.Argument(help="The text to complete.")] = None,
    stdin: StdinOption = False,
    preset: PresetOption = None,
    tolerance: VariationOption = None,
    max_new_bytes: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Length of a completion.")
    ] = 64,
    n: Annotated[
        int, typer.Option("--n", "-n", min=1, max=1000, help="Draw so many; equal ones once.")
    ] = 1,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.0, help="0 takes the likeliest token; default 0, or 1 if n > 1."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the samples.")] = 0,
    heal: Annotated[
        str, typer.Option(help="Where to cut: auto, word, off, or a number of tokens.")
    ] = "auto",
    regex: Annotated[
        str | None, typer.Option(help="What follows matches this regular expression.")
    ] = None,
    json_schema: Annotated[
        Path | None, typer.Option(help="What follows is JSON of the schema in this file.")
    ] = None,
    grammar: Annotated[
        Path | None, typer.Option(help="What follows is of the Lark grammar in this file.")
    ] = None,
    choices: Annotated[
        list[str] | None, typer.Option("--choices", help="What follows is this: once for each.")
    ] = None,
    particles: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="To condition on a constraint with.")
    ] = 64,
    as_json: JsonOption = False,
) -> None:
    """Complete a prompt: plain, healed and exact, side by side; or under a constraint."""
    rule = _parse_rule(heal)
    given = read_prompt(prompt, stdin)
    text, end = read(given), line_end(given)
    if temperature is None:
        temperature = 0.0 if n == 1 else 1.0

    from charwise.cli import constrained
    from charwise.cursor.options import GenerationOptions

    constraint = constrained.constraint_from(regex, json_schema, grammar, choices or ())
    try:
        wanted = GenerationOptions(
            n=n,
            max_new_bytes=max_new_bytes,
            temperature=temperature,
            seed=seed,
            constraint=constraint,
            particles=particles,
        )
    except SettingError as error:
        raise typer.BadParameter(str(error)) from error
    if constraint is not None:
        found = constrained.answer(options.load(preset, tolerance), text, wanted)
        if as_json:
            print_json(
                model=options.model,
                prompt=given.decode("utf-8", "backslashreplace"),
                **constrained.fields(found),
            )
            return
        console().print(constrained.table(found), constrained.sentence(found))
        return

    from charwise.cli import completion, display

    try:
        request = completion.Request(text, wanted, rule)
    except SettingError as error:
        raise typer.BadParameter(str(error)) from error
    loaded = completion.Loaded(options.model, options.load(preset, tolerance))
    methods = completion.methods(loaded)
    cut = completion.prompt_cut(loaded, request)
    texts: dict[str, list[str]] = {}
    with bars() as bar:
        for name, method in methods.items():
            told = bar(name)
            drawn = [read(one) for one in method(loaded, request.told(told))]
            texts[name] = completion.distinct(drawn)
            told(1, 1)
    vocabulary = loaded.index.vocabulary
    if as_json:
        print_json(
            model=loaded.name,
            prompt=display.spelling(given),
            ids=cut.ids,
            tokens=[display.spelling(vocabulary.tokens[id] or b"") for id in cut.ids],
            kept=cut.kept,
            forced=display.spelling(write(cut.forced, end)),
            allowed=cut.allowed,
            dropped=cut.dropped,
            completions={name: [write(one, end) for one in each] for name, each in texts.items()},
        )
        return
    screen = console()
    screen.print(display.cut_line(vocabulary, cut))
    screen.print(Text(display.cut_sentence(cut, rule), style="dim"))
    screen.print(display.completion_table(text.decode("utf-8", "replace"), texts))


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
