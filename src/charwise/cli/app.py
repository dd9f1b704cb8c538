"""The command line: `charwise complete`, `next`, `cover`, `score`, `bench`, …

Exit codes: 0, 1 for a failure (a sentence on stderr says which), 2 for bad usage, 3 where
`score` left rows out, 130 after Ctrl-C. torch and transformers load only when a command needs them.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

import charwise
from charwise.cli import bench as cli_bench
from charwise.cli import lm_eval as cli_lm_eval
from charwise.cli import next_and_cover as cli_exact
from charwise.cli import score as cli_score
from charwise.cli.terminal import (
    JsonOption,
    ModelOption,
    StdinOption,
    console,
    print_json,
    quiet,
    read_prompt,
)
from charwise.errors import CharwiseError, SettingError

if TYPE_CHECKING:
    from charwise.healing import Rule
    from charwise.tokens.index import SortedVocabulary

app = typer.Typer(
    name="charwise",
    help="A character-level interface to tokenized language models.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("next")(cli_exact.next_bytes)
app.command("cover")(cli_exact.cover)
app.command("score")(cli_score.score)
app.command("bench", cls=cli_bench.ListsCommand)(cli_bench.bench)
app.command("lm-eval", context_settings=cli_lm_eval.SETTINGS)(cli_lm_eval.lm_eval)


def main() -> int:
    """The entry point: every `CharwiseError` becomes a sentence on stderr and exit code 1."""
    try:
        app()
    except CharwiseError as error:
        print(f"charwise: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"charwise {charwise.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Options of every command."""


def parse_rule(value: str) -> Rule:
    """`--heal`'s value: a name, or a number of tokens.

    >>> parse_rule("auto"), parse_rule("2")
    ('auto', 2)
    """
    if value in ("auto", "word", "off"):
        return value  # type: ignore[return-value]
    if value.isdecimal():
        return int(value)
    raise typer.BadParameter(f"{value!r} is not auto, word, off or a number of tokens.")


@app.command()
def complete(
    prompt: Annotated[str | None, typer.Argument(help="The text to complete.")] = None,
    model: ModelOption = "embedded",
    stdin: StdinOption = False,
    max_new_bytes: Annotated[int, typer.Option(min=1, help="Length of a completion.")] = 64,
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="How many completions.")] = 1,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.0, help="0 takes the likeliest token; default 0, or 1 if n > 1."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the samples.")] = 0,
    heal: Annotated[
        str, typer.Option(help="Where to cut: auto, word, off, or a number of tokens.")
    ] = "auto",
    as_json: JsonOption = False,
) -> None:
    """Complete a prompt: plain, healed and exact, side by side."""
    rule = parse_rule(heal)
    text = read_prompt(prompt, stdin)
    if temperature is None:
        temperature = 0.0 if n == 1 else 1.0

    from charwise.cli import completion, display

    try:
        request = completion.Request(text, rule, n, max_new_bytes, temperature, seed)
    except SettingError as error:
        raise typer.BadParameter(str(error)) from error
    quiet()
    loaded = completion.load(model)
    methods = completion.methods(loaded)
    cut = completion.prompt_cut(loaded, request)
    texts = {name: method(loaded, request) for name, method in methods.items()}
    vocabulary = loaded.index.vocabulary
    if as_json:
        spellings = [display.spelling(vocabulary.tokens[id] or b"") for id in cut.ids]
        print_json(
            model=loaded.name,
            prompt=display.spelling(text if isinstance(text, bytes) else text.encode()),
            ids=cut.ids,
            tokens=spellings,
            kept=cut.kept,
            forced=display.spelling(cut.forced),
            allowed=cut.allowed,
            dropped=cut.dropped,
            completions=texts,
        )
        return
    screen = console()
    screen.print(display.cut_line(vocabulary, cut))
    screen.print(Text(display.cut_sentence(cut, rule), style="dim"))
    shown = text if isinstance(text, str) else text.decode("utf-8", "replace")
    screen.print(display.completion_table(shown, texts))


@app.command()
def vocab(
    model: ModelOption = "embedded",
    prefix: Annotated[
        str | None, typer.Option("--prefix", "-p", help="Show what this text allows next.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Rows to print.")] = 15,
    as_json: JsonOption = False,
) -> None:
    """Describe a vocabulary, and what a prefix allows."""
    from charwise.cli import display
    from charwise.engines.pretrained import read_vocabulary
    from charwise.tokens.index import SortedVocabulary

    vocabulary = read_vocabulary(model)
    index = SortedVocabulary(vocabulary)
    firsts = first_characters(index)
    facts: dict[str, Any] = {
        "model": model,
        "tokens": len(vocabulary),
        "width": vocabulary.width,
        "special": {vocabulary.special[id]: id for id in sorted(vocabulary.special)},
        "end_ids": list(vocabulary.end_ids),
        "bos_ids": list(vocabulary.bos_ids),
        "bos_rule": vocabulary.bos_rule,
        "lead": vocabulary.lead.decode(),
        "munch": vocabulary.munch,
        "fertility": vocabulary.fertility,
        "byte_complete": vocabulary.byte_complete,
    }
    if prefix is not None:
        facts["prefix"] = _prefix_facts(index, prefix.encode())
    if as_json:
        print_json(**facts, first_characters=firsts)
        return
    screen = console()
    for name in ("tokens", "width", "munch", "fertility"):
        screen.print(f"{name:10} {facts[name]:>9,}", highlight=False)
    screen.print(f"end tokens {list(vocabulary.end_ids)}; every byte: {vocabulary.byte_complete}")
    screen.print(f"start      {list(vocabulary.bos_ids)}: {vocabulary.bos_rule}", markup=False)
    if prefix is not None:
        _print_prefix(screen, facts["prefix"], prefix, top)
        return
    rows = [
        (display.visible(name.encode()), count, count / len(vocabulary))
        for name, count in list(firsts.items())[:top]
    ]
    screen.print(display.counts_table("starts with", rows))


def first_characters(index: SortedVocabulary) -> dict[str, int]:
    r"""How many tokens start with each character, most frequent first.

    Tokens that start inside a character count under its escaped byte.

    >>> from charwise import SortedVocabulary, Vocabulary
    >>> first_characters(SortedVocabulary(Vocabulary.from_bytes([b" a", b" b", b"\xc3"])))
    {' ': 2, '\\xc3': 1}
    """
    counts: Counter[str] = Counter()
    for token in index.sorted:
        text = token.decode("utf-8", "backslashreplace")
        counts[text[:4] if text[0] == "\\" and token[0] >= 0x80 else text[0]] += 1
    return dict(counts.most_common())


def _prefix_facts(index: SortedVocabulary, prefix: bytes) -> dict[str, Any]:
    from charwise.cli.display import spelling

    lo, hi = index.range(prefix)
    shorter = [index.vocabulary.tokens[id] or b"" for id in index.prefixes(prefix)]
    return {
        "text": spelling(prefix),
        "spellable": index.spellable(prefix),
        "allowed": len(index.allowed(prefix)),
        "starting_with_it": [spelling(token) for token in index.sorted[lo:hi]],
        "prefixes_of_it": [spelling(token) for token in shorter],
    }


def _print_prefix(screen: Console, facts: dict[str, Any], prefix: str, top: int) -> None:
    from charwise.cli.display import visible

    for name, words in (("starting_with_it", "start with"), ("prefixes_of_it", "are prefixes of")):
        tokens = facts[name]
        shown = " ".join(visible(token.encode()) for token in tokens[:top])
        more = " …" if len(tokens) > top else ""
        line = f"{len(tokens):,} tokens {words} {prefix!r}: {shown}{more}"
        screen.print(Text(line), soft_wrap=True)


@app.command()
def demo(model: ModelOption = "embedded", as_json: JsonOption = False) -> None:
    """Complete eight partial words: plain, healed and exact."""
    from rich import box
    from rich.table import Table

    from charwise.cli import completion
    from charwise.cli.demo import EXAMPLES

    quiet()
    loaded = completion.load(model)
    methods = completion.methods(loaded)
    results: list[dict[str, Any]] = []
    for example in EXAMPLES:
        request = completion.Request(example.prompt, max_new_bytes=12)
        texts = {name: run(loaded, request)[0] for name, run in methods.items()}
        right = {name: example.is_right(text) for name, text in texts.items()}
        results.append({**example._asdict(), "completions": texts, "right": right})
    if as_json:
        print_json(model=loaded.name, results=results)
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for column in ("the prompt ends", "meant", *methods):
        table.add_column(column)
    for result in results:
        last_line = result["prompt"].splitlines()[-1].strip()
        cells = [_judged(result, name) for name in methods]
        table.add_row(Text(last_line), Text(result["meant"]), *cells)
    screen = console()
    screen.print(table)
    scores = [f"{name} {sum(r['right'][name] for r in results)}" for name in methods]
    screen.print(f"right, of {len(results)}: {', '.join(scores)}")


def _judged(result: dict[str, Any], name: str) -> Text:
    right = result["right"][name]
    line = Text("✓ " if right else "✗ ", style="green" if right else "red")
    return line.append(_first_line(result["completions"][name]), style="bold")


def _first_line(text: str) -> str:
    """Up to the end of the line, which is shown."""
    line, newline, _ = text.partition("\n")
    return line + ("⏎" if newline else "")
