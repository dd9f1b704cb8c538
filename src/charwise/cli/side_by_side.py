"""The commands `charwise complete`, `infill` and `demo`: each method's text, side by side.

A model that transformers does not run has no plain and healed middles.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer
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
    SCISSORS,
    completion_table,
    console,
    print_json,
    spelling,
    table,
    token_spelling,
    track,
    visible,
)
from charwise.errors import SettingError, shown
from charwise.tokens.line_ends import line_end, offset, read, write

if TYPE_CHECKING:
    from charwise.char_lm import CharLM
    from charwise.cursor.middle import InfillCompletion
    from charwise.cursor.options import GenerationOptions
    from charwise.healing import Rule
    from charwise.healing.fim import Order, Request, Template

#: FILE:LINE:COLUMN, both counted from 1; or FILE:OFFSET, in bytes.
_PLACE = re.compile(r"(?P<file>.+?):(?P<line>\d{1,9})(:(?P<column>\d{1,9}))?")

#: The last tokens of a prompt that are shown.
_TOKENS = 10


# --- complete -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _CompleteSettings:
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
    seed: Annotated[int, typer.Option(min=0, max=2**64 - 1, help="Of the samples.")] = 0
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

    def rule(self) -> Rule:
        """Return where to cut: a name, or a number of tokens."""
        if self.heal in ("auto", "word", "off"):
            return self.heal  # type: ignore[return-value]
        # No prompt has a billion tokens, and `int` refuses numbers of thousands of digits.
        if self.heal.isascii() and self.heal.isdecimal() and len(self.heal) < 10:
            return int(self.heal)
        raise typer.BadParameter(
            f"{shown(self.heal)} is not auto, word, off or a number of tokens."
        )

    def wanted(self) -> GenerationOptions:
        """Return how completions are drawn."""
        from charwise.constraints import constraint_of
        from charwise.cursor.options import GenerationOptions

        temperature = self.temperature
        if temperature is None:
            temperature = 0.0 if self.n == 1 else 1.0
        if self.n > 1 and temperature == 0:
            raise typer.BadParameter("at temperature 0 there is one completion: omit --n.")
        if temperature and not 1e-6 <= temperature <= 1e6:  # scores overflow
            raise typer.BadParameter(f"--temperature {temperature}: 0, or from 1e-06 to 1e+06.")
        choices = [one.encode("utf-8", "surrogateescape") for one in self.choices or ()]
        constraints: dict[str, Any] = {
            "regex": self.regex,
            "json_schema": self.json_schema and _read_text(self.json_schema),
            "grammar": self.grammar and _read_text(self.grammar),
            "choices": choices or None,
        }
        asked = [name.replace("_", "-") for name, one in constraints.items() if one is not None]
        if len(asked) > 1:
            raise typer.BadParameter(f"--{' and --'.join(asked)}: give one of them.")
        return GenerationOptions(
            n=self.n,
            max_new_bytes=self.max_new_bytes,
            temperature=temperature,
            seed=self.seed,
            constraint=constraint_of(constraints) if asked else None,  # type: ignore[arg-type]
            particles=self.particles,
        )


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")  # a byte order mark is no part of a schema
    except OSError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise SettingError(f"{path} is not UTF-8 at byte {error.start}.") from error


@takes_options
def complete(options: ModelOptions, effort: EffortOptions, settings: _CompleteSettings) -> None:
    """Complete a prompt: plain, healed and exact, side by side; or under a constraint."""
    rule = settings.rule()
    raw = read_prompt(settings.prompt, settings.stdin)
    wanted = settings.wanted()
    lm = options.load(effort)
    if wanted.constraint is not None:
        _complete_constrained(lm, raw, wanted, settings.as_json, options.model)
        return

    from charwise.healing import allowed_next, cut
    from charwise.side_by_side import METHODS, prompt_tokens

    prompt, end = read(raw), line_end(raw)
    texts: dict[str, list[str]] = {}
    for name, method in track(METHODS.items(), len(METHODS), "completing"):
        drawn = [read(one) for one in method(lm, prompt, rule, wanted)]
        texts[name] = list(dict.fromkeys(drawn))  # each once
    ids, dropped = prompt_tokens(lm, prompt, wanted.max_new_bytes)
    kept, forced = cut(ids, lm.index, rule)
    allowed = len(allowed_next(forced, lm.index))
    if settings.as_json:
        print_json(
            model=options.model,
            prompt=spelling(raw),
            ids=ids,
            tokens=[spelling(lm.vocabulary.tokens[id] or b"") for id in ids],
            kept=len(kept),
            forced=spelling(write(forced, end)),
            allowed=allowed,
            dropped=dropped,
            completions={name: [write(one, end) for one in each] for name, each in texts.items()},
        )
        return
    spellings = [token_spelling(lm.vocabulary, id) for id in ids]
    screen = console()
    screen.print(_cut_line(spellings, len(kept)))
    lost = f" The first {dropped} tokens do not fit the model's window." if dropped else ""
    why = "the prompt ends where a token must end" if rule == "auto" else f"the rule is {rule!r}"
    sentence = f"Nothing given back: {why}.{lost}"
    if forced:
        back = _count(len(ids) - len(kept), "token")
        first = _count(allowed, "token")
        sentence = (
            f"{back} given back; {spelling(forced)!r} is forced; {first} may come first.{lost}"
        )
    screen.print(Text(sentence, style="dim"))
    screen.print(completion_table(prompt.decode("utf-8", "replace"), texts))


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def _cut_line(spellings: Sequence[str], kept: int) -> Text:
    """The last tokens of a prompt, divided by bars, with scissors where it is cut."""
    removed = spellings[kept:]
    start = max(0, kept - max(3, _TOKENS - len(removed)))
    line = Text().append("…|" if start else "", "dim")
    parts = (spellings[start:kept], "grey23", "grey35"), (removed, "yellow", "gold1")
    for tokens, *backgrounds in parts:
        colour = "white" if tokens is not removed else "bold black"
        if tokens is removed:
            line.append(SCISSORS, style="bold red")
        for at, token in enumerate(tokens):
            line.append("|" if at else "", style="dim")
            line.append(token, style=f"{colour} on {backgrounds[at % 2]}")
    return line


def _complete_constrained(
    lm: CharLM, raw: bytes, wanted: GenerationOptions, as_json: bool, model: str
) -> None:
    """Print completions under a constraint: drawn step by step, and the heaviest of all."""
    from charwise.cursor.smc import Weighted

    state = lm.state(read(raw))
    local = state.complete(wanted)
    # So many of the heaviest texts are listed.
    heaviest = state.complete(wanted, n=10, temperature=0.0, conditioning="global")
    assert isinstance(heaviest, Weighted)
    weights = heaviest.weights.tolist()
    if as_json:
        print_json(
            model=model,
            prompt=spelling(raw),
            **{
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
                    for one, weight in zip(heaviest, weights, strict=True)
                ],
            },
            constraint_logprob=heaviest.logprob,
            effective=heaviest.effective,
        )
        return
    shares = ("step by step", "given the constraint")
    grid = table("completion", *shares, right=shares)
    drawn = [one.raw for one in local]
    weight_of = dict(zip([one.raw for one in heaviest], weights, strict=True))
    for text in dict.fromkeys([*weight_of, *drawn]):
        times = drawn.count(text)
        share = f"{weight_of[text]:.4f}" if text in weight_of else "–"
        times_drawn = "drawn" if times == 1 else f"{times} ×" if times else ""
        grid.add_row(Text(spelling(text)), times_drawn, share)
    rest = f"estimated, effective sample size {heaviest.effective:.0f}"
    if math.isinf(heaviest.effective):
        rest = "all of it added up"
    screen = console()
    screen.print(grid)
    screen.print(f"p(constraint | prompt) = {math.exp(heaviest.logprob):.3g} ({rest}).")


# --- infill -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _InfillSettings:
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
        """Return the text before and after the middle."""
        if self.place is None:
            sides = self.prefix, self.suffix
            left, right = (one.encode("utf-8", "surrogateescape") for one in sides)
            return left, right
        if self.prefix or self.suffix:
            raise typer.BadParameter(
                "give a place in a file, or --prefix and --suffix, and not both."
            )
        return sides_of(self.place)

    def sentinels(self, lm: CharLM) -> Template:
        """Return those of the model, or those named."""
        from charwise.healing.fim import IN_PYTHON, Template

        if self.template is not None:
            return Template.named(lm.vocabulary, *self.template.split())
        try:
            return Template.of(lm.vocabulary)
        except SettingError as error:
            in_a_shell = "--template '<PRE> <SUF> <MID>', for prefix, suffix and middle"
            raise SettingError(str(error).replace(IN_PYTHON, in_a_shell)) from None


@takes_options
def infill(options: ModelOptions, effort: EffortOptions, settings: _InfillSettings) -> None:
    """Fill in between two texts: plain, healed on both sides, and exact."""
    left, right = settings.sides()
    if settings.template is not None and len(settings.template.split()) not in (2, 3):
        raise typer.BadParameter(
            f"--template {shown(settings.template)}: give two or three names, as in "
            "'<PRE> <SUF> <MID>'."
        )
    before, after, end = read(left), read(right), line_end(left, right)

    from charwise.cursor.options import GenerationOptions

    lm = options.load(effort)
    template = settings.sentinels(lm)
    request = lm.infill_request(before, after, order=settings.order, template=template)
    request = request._replace(  # bytes of the file
        prefix_cut=offset(left, request.prefix_cut),
        suffix_cut=len(right) - offset(right, len(after) - request.suffix_cut),
    )
    wanted = GenerationOptions(n=settings.n, max_new_bytes=settings.max_new_bytes)
    texts, exact = _middles(lm, before, after, settings.order, template, wanted)
    if settings.as_json:
        print_json(
            model=options.model,
            template=template.family,
            order=template.order(settings.order),
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


def sides_of(place: str) -> tuple[bytes, bytes]:
    """The text before and after a place in a file.

    Columns count characters, as editors do; a line's end is its last column.
    """
    match = _PLACE.fullmatch(place)
    if match is None:
        raise typer.BadParameter(f"{shown(place)} is neither FILE:LINE:COLUMN nor FILE:OFFSET.")
    path = Path(match["file"])
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SettingError(f"{path}: {error.strerror}.") from error
    if match["column"] is None:
        at = int(match["line"])
        if at > len(data):
            raise SettingError(f"{path} has {len(data)} bytes: there is no offset {at}.")
        at -= data[max(0, at - 1) : at + 1] == b"\r\n"  # a line's end is not divided
        return data[:at], data[at:]
    lines = read(data).split(b"\n")
    line, column = int(match["line"]), int(match["column"])
    if not 1 <= line <= len(lines):
        raise SettingError(f"{path} has {len(lines)} lines: there is no line {line}.")
    text = lines[line - 1].decode("utf-8", "surrogateescape")
    if not 1 <= column <= len(text) + 1:
        raise SettingError(f"line {line} of {path} has {len(text)} characters: column {column}?")
    at = sum(len(one) + 1 for one in lines[: line - 1])
    at = offset(data, at + len(text[: column - 1].encode("utf-8", "surrogateescape")))
    return data[:at], data[at:]


def _request_line(before: bytes, after: bytes, request: Request) -> Text:
    """Both sides of a request, with scissors where they are cut and a bar between them."""
    kept, rest = before[: len(before) - len(request.forced)], after[len(request.ending) :]
    forced_style = "bold black on yellow"
    line = Text().append("…" if len(kept) > 24 else "", "dim").append(visible(kept[-24:]))
    line.append(SCISSORS, style="bold red").append(visible(request.forced), forced_style)
    line.append("│", style="bold red").append(visible(request.ending), forced_style)
    line.append(SCISSORS, style="bold red").append(visible(rest[:24]))
    return line.append("…" if len(rest) > 24 else "", "dim")


def _request_sentence(request: Request) -> str:
    """The cuts in words."""
    begins = f"begins with {spelling(request.forced)!r}" if request.forced else "begins anywhere"
    ends = f"ends with {spelling(request.ending)!r}" if request.ending else "ends anywhere"
    lost = [
        f"{count} bytes of the {side} do not fit."
        for side, count in (("prefix", request.prefix_cut), ("suffix", request.suffix_cut))
        if count
    ]
    return " ".join([f"The middle {begins} and {ends}.", *lost])


def _middles(
    lm: CharLM,
    before: bytes,
    after: bytes,
    order: Order | None,
    template: Template,
    options: GenerationOptions,
) -> tuple[dict[str, list[str]], list[InfillCompletion]]:
    """The middles by each method that the model allows, and the exact ones with their numbers."""
    model = getattr(lm.engine, "model", None)
    texts: dict[str, list[str]] = {}
    if hasattr(model, "generate"):
        from charwise.engines.pretrained import quietly
        from charwise.healing.generate import heal_infill

        rules: dict[str, Rule] = {"plain": "off", "healed": "auto"}
        for name, rule in track(rules.items(), len(rules), "filling in"):
            with quietly():
                [text] = heal_infill(
                    model,
                    lm.index,
                    before,
                    after,
                    order=order,
                    template=template,
                    left=rule,
                    right=rule,
                    max_new_tokens=options.max_new_bytes,
                    do_sample=False,
                )
            texts[name] = [text.encode()[: options.max_new_bytes].decode("utf-8", "ignore")]
    exact = lm.infill(before, after, options, order=order, template=template)
    texts["exact"] = [one.text for one in exact]
    return texts, exact


# --- demo ---------------------------------------------------------------------------------------


class _Example(NamedTuple):
    """A prompt, and the rest of the word that it stops in."""

    prompt: str
    meant: str


_NODE = '''\
class Node:
    """A node of a binary search tree."""

    def __init__(self, value):
        self.value = value
        self.left = None
        self.right = None


class Tree:
    def __init__(self):
        self.root = None

    def add_node(self, value) -> Node:
        node = Node(value)
        if self.root is None:
            self.root = node
        return node

    def get_node(self, value) -> Nod'''

_CHECK = """\
def check(value):
    if value < 0:
        raise ValueErr"""

_TEST = """\
import unittest


class TestQueue(unittest.TestCase):
    def test_empty(self):
        queue = Queue()
        self.assertEqual(queue.size(), 0)

    def test_put(self):
        queue = Queue()
        queue.put(1)
        self.assertEq"""

_IMPORT = """\
import os
import re
import sy"""

_LOOP = """\
def total(values):
    result = 0
    for i in rang"""

_MAIN = """\
def main():
    print("done")


if __name__ == "__mai"""

_INSTANCE = """\
def flatten(items):
    for item in items:
        if isinstan"""

_JOIN = """\
import os


def read(folder, name):
    with open(os.path.joi"""

#: Python that stops inside an identifier or a word, which the context settles.
EXAMPLES = [
    _Example(_NODE, "e"),
    _Example(_CHECK, "or"),
    _Example(_TEST, "ual"),
    _Example(_IMPORT, "s"),
    _Example(_LOOP, "e"),
    _Example(_MAIN, "n__"),
    _Example(_INSTANCE, "ce"),
    _Example(_JOIN, "n"),
]

#: Two texts that both break off inside a word, and the text between them.
_GAP = {
    "prefix": "def flatten(items):\n    result = []\n    for item in items:\n        result.app",
    "suffix": "d(item)\n    return result\n",
    "meant": "en",
}


@takes_options
def demo(options: ModelOptions, effort: EffortOptions, as_json: JsonOption = False) -> None:
    """Complete eight partial words: plain, healed and exact.

    A model that fills in is asked for a gap as well.
    """
    from charwise.cursor.options import GenerationOptions
    from charwise.side_by_side import METHODS

    lm = options.load(effort)
    wanted = GenerationOptions(max_new_bytes=12)
    results: list[dict[str, Any]] = []
    for prompt, meant in track(EXAMPLES, len(EXAMPLES), "completing"):
        texts = {name: run(lm, prompt.encode(), "auto", wanted)[0] for name, run in METHODS.items()}
        ends_word = re.compile(re.escape(meant) + r"(?!\w)")
        right = {name: ends_word.match(text) is not None for name, text in texts.items()}
        results.append({"prompt": prompt, "meant": meant, "completions": texts, "right": right})
    gap = _fill_gap(lm, wanted)
    if as_json:
        print_json(model=options.model, results=results, infilling=gap)
        return
    grid = table("the prompt ends", "meant", *METHODS)
    for result in results:
        last_line = result["prompt"].splitlines()[-1].strip()
        cells = [_judged(result, name) for name in METHODS]
        grid.add_row(Text(last_line), Text(result["meant"]), *cells)
    screen = console()
    screen.print(grid)
    scores = [f"{name} {sum(r['right'][name] for r in results)}" for name in METHODS]
    screen.print(f"right, of {len(results)}: {', '.join(scores)}")
    if gap is not None:
        grid = table("the gap", "meant", *gap["completions"])
        line = Text(gap["prefix"].splitlines()[-1].strip())
        line.append("│", style="bold red").append(gap["suffix"].splitlines()[0])
        cells = [_judged(gap, name) for name in gap["completions"]]
        grid.add_row(line, Text(gap["meant"]), *cells)
        screen.print(grid)


def _fill_gap(lm: CharLM, wanted: GenerationOptions) -> dict[str, Any] | None:
    """The gap, filled in by every method; None for a model that does not fill in."""
    from charwise.healing.fim import Template

    try:
        template = Template.of(lm.vocabulary)
    except SettingError:
        return None
    before, after = _GAP["prefix"].encode(), _GAP["suffix"].encode()
    texts, [first] = _middles(lm, before, after, None, template, wanted)
    return {
        **_GAP,
        "forced": first.forced.decode(),
        "ending": first.ending.decode(),
        "completions": {name: each[0] for name, each in texts.items()},
        "right": {name: each[0] == _GAP["meant"] for name, each in texts.items()},
    }


def _judged(result: dict[str, Any], name: str) -> Text:
    """Whether a method is right, and the first line of its text."""
    right = result["right"][name]
    text, newline, _ = result["completions"][name].partition("\n")
    line = Text("✓ " if right else "✗ ", style="green" if right else "red")
    return line.append(text + ("⏎" if newline else ""), style="bold")
