"""The commands `charwise complete`, `infill` and `demo`: plain, healed and exact, side by side."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import typer
from rich.table import Table
from rich.text import Text

from charwise.cli.options import (
    EffortOptions,
    JsonOption,
    ModelOptions,
    PromptOptions,
    argument,
    option,
    takes_options,
)
from charwise.cli.output import (
    SCISSORS,
    console,
    print_json,
    progress_bars,
    spelling,
    table,
    token_spelling,
    visible,
)
from charwise.cursor.options import GenerationOptions
from charwise.errors import SettingError, quantity, quote
from charwise.healing import HealedPrompt, Rule, allowed_next, cut
from charwise.healing.fim import IN_PYTHON, Order, Side, Template
from charwise.healing.fim import request as infill_request
from charwise.tables.readers import Source
from charwise.tokens.line_ends import line_end, offset, unify

if TYPE_CHECKING:
    from charwise.char_lm import CharLM
    from charwise.cursor.middle import InfillCompletion

Item = TypeVar("Item")

#: FILE:LINE:COLUMN, both counted from 1.
_PLACE = re.compile(r"(.+):(\d{1,9}):(\d{1,9})")

#: The last tokens of a prompt that are shown.
_TOKENS = 10

_FORCED = "bold black on yellow"


def _track(items: Collection[Item], what: str) -> Iterator[Item]:
    """Yield the items, with a bar on a terminal's stderr."""
    with progress_bars() as report:
        for done, item in enumerate(items):
            report(what, done, len(items))
            yield item
        report(what, len(items), len(items))


# --- complete -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _CompleteSettings(PromptOptions):
    max_new_bytes: int = option(64, "Length of a completion.", min=1, max=1_000_000)
    n: int = option(1, "Draw so many; equal ones once.", "--n", "-n", min=1, max=1000)
    temperature: float | None = option(
        None, "0 takes the likeliest token; default 0, or 1 if n > 1.", min=0.0
    )
    seed: int = option(0, "Of the samples.", min=0, max=2**64 - 1)
    heal: str = option("auto", "Where to cut: auto, word, off, or a number of tokens.")
    regex: str | None = option(None, "What follows matches this regular expression.")
    json_schema: Path | None = option(None, "What follows is JSON of the schema in this file.")
    grammar: Path | None = option(
        None, "What follows is of the grammar in this file, Lark or GBNF."
    )
    choices: list[str] | None = option(None, "What follows is this: once for each.")
    particles: int = option(64, "To condition on a constraint with.", min=1, max=1_000_000)
    as_json: JsonOption = False

    def rule(self) -> Rule:
        """Return where to cut: a name, or a number of tokens."""
        if self.heal in ("auto", "word", "off"):
            return self.heal  # type: ignore[return-value]
        # No prompt has a billion tokens, and `int` refuses numbers of thousands of digits.
        if self.heal.isascii() and self.heal.isdecimal() and len(self.heal) < 10:
            return int(self.heal)
        raise typer.BadParameter(
            f"{quote(self.heal)} is not auto, word, off or a number of tokens."
        )

    def generation(self) -> GenerationOptions:
        """Return how completions are drawn."""
        temperature = float(self.n > 1) if self.temperature is None else self.temperature
        if self.n > 1 and temperature == 0:
            raise typer.BadParameter("at temperature 0 there is one completion: omit --n.")
        if temperature and not 1e-6 <= temperature <= 1e6:  # scores overflow
            raise typer.BadParameter(f"--temperature {temperature}: 0, or from 1e-06 to 1e+06.")
        if sum(map(bool, (self.regex, self.json_schema, self.grammar, self.choices))) > 1:
            raise typer.BadParameter("give one of --regex, --json-schema, --grammar, --choices.")
        choices = [one.encode("utf-8", "surrogateescape") for one in self.choices or ()]
        return GenerationOptions(
            n=self.n,
            max_new_bytes=self.max_new_bytes,
            temperature=temperature,
            seed=self.seed,
            regex=self.regex,
            json_schema=_text_of(self.json_schema),
            grammar=_text_of(self.grammar),
            choices=choices or None,
            particles=self.particles,
        )


def _text_of(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text("utf-8-sig")  # a byte order mark is no part of a schema
    except UnicodeDecodeError as error:
        raise SettingError(f"{path} is not UTF-8 at byte {error.start}.") from error


@takes_options
def complete(options: ModelOptions, effort: EffortOptions, settings: _CompleteSettings) -> None:
    """Complete a prompt: plain, healed and exact, side by side; or under a constraint."""
    rule, generation = settings.rule(), settings.generation()
    raw = settings.read()
    lm = options.load(effort)
    if generation.constraint is not None:
        _complete_constrained(lm, raw, generation, settings.as_json, options.model)
        return
    from charwise.side_by_side import METHODS, prompt_tokens

    prompt, end = unify(raw), line_end(raw)
    texts = {
        name: list(dict.fromkeys(map(unify, method(lm, prompt, rule, generation))))
        for name, method in _track(METHODS.items(), "completing")
    }
    ids, dropped = prompt_tokens(lm, prompt, generation.max_new_bytes)
    kept, forced = cut(ids, lm.index, rule)
    allowed = len(allowed_next(forced, lm.index))
    if settings.as_json:
        print_json(
            model=options.model,
            prompt=spelling(raw),
            ids=ids,
            tokens=[spelling(lm.vocabulary.tokens[id] or b"") for id in ids],
            kept=len(kept),
            forced=spelling(unify(forced, end)),
            allowed=allowed,
            dropped=dropped,
            completions={name: [unify(one, end) for one in each] for name, each in texts.items()},
        )
        return
    if forced:
        removed, first = quantity(len(ids) - len(kept), "token"), quantity(allowed, "token")
        sentence = f"{removed} removed; {spelling(forced)!r} is forced; {first} may come first."
    elif rule == "auto":
        sentence = "Nothing removed: the prompt ends where a token must end."
    else:
        sentence = f"Nothing removed: the rule is {rule!r}."
    if dropped:
        sentence += f" The first {dropped} tokens do not fit the model's window."
    screen = console()
    screen.print(_cut_line([token_spelling(lm.vocabulary, id) for id in ids], len(kept)))
    screen.print(Text(sentence, style="dim"))
    screen.print(_completion_table(prompt.decode("utf-8", "replace"), texts))


def _cut_line(spellings: Sequence[str], kept: int) -> Text:
    """The last tokens of a prompt, divided by bars, with scissors where it is cut."""
    removed = spellings[kept:]
    start = max(0, kept - max(3, _TOKENS - len(removed)))
    line = Text("…|" if start else "", "dim").append("|".join(spellings[start:kept]), "white")
    return line.append(SCISSORS, "bold red").append("|".join(removed), _FORCED)


def _complete_constrained(
    lm: CharLM, raw: bytes, options: GenerationOptions, as_json: bool, model: str
) -> None:
    """Print completions under a constraint: drawn step by step, and the heaviest of all."""
    from charwise.cursor.smc import Weighted

    state = lm.state(unify(raw))
    local = state.complete(options)
    # So many of the heaviest texts are listed.
    heaviest = state.complete(options, n=10, temperature=0.0, conditioning="global")
    assert isinstance(heaviest, Weighted)
    weights = dict(zip([one.raw for one in heaviest], heaviest.weights.tolist(), strict=True))
    if as_json:
        fields = [
            {"text": spelling(one.raw), "logprob": one.logprob, "finish": one.finish}
            for one in [*local, *heaviest]
        ]
        probs = zip(fields[len(local) :], weights.values(), strict=True)
        print_json(
            model=model,
            prompt=spelling(raw),
            local=fields[: len(local)],
            **{"global": [each | {"prob": prob} for each, prob in probs]},
            constraint_logprob=heaviest.logprob,
            effective=heaviest.effective,
        )
        return
    shares = ("step by step", "given the constraint")
    grid = table("completion", *shares, right=shares)
    local_texts = [one.raw for one in local]
    for text in dict.fromkeys([*weights, *local_texts]):
        times = local_texts.count(text)
        share = f"{weights[text]:.4f}" if text in weights else "–"
        times_drawn = "drawn" if times == 1 else f"{times} ×" if times else ""
        grid.add_row(Text(spelling(text)), times_drawn, share)
    exact, size = math.isinf(heaviest.effective), heaviest.effective
    rest = "all of it added up" if exact else f"estimated, effective sample size {size:.0f}"
    screen = console()
    screen.print(grid)
    screen.print(f"p(constraint | prompt) = {math.exp(heaviest.logprob):.3g} ({rest}).")


def _completion_table(prompt: str, completions: dict[str, list[str]]) -> Table:
    """Return a column for each method: its completions after the prompt's last line."""
    grid = table(*completions, ratio=1)
    last_line = prompt[prompt.rfind("\n") + 1 :].lstrip()[-32:]
    for row in zip_longest(*completions.values()):
        cells = (
            "" if text is None else Text(last_line, "dim").append(text.rstrip("\n"), "bold green")
            for text in row
        )
        grid.add_row(*cells)
    return grid


# --- infill -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _InfillSettings:
    place: str | None = argument("FILE:LINE:COLUMN, counted from 1.")
    prefix: str | None = option(None, "What comes before.")
    suffix: str | None = option(None, "What comes after.")
    order: Literal["psm", "spm"] | None = option(
        None, "Prefix first or suffix first; by default what the model knows."
    )
    template: str | None = option(
        None,
        "Its special tokens for prefix, suffix and middle, where they are unusual.",
        metavar="NAMES",
    )
    n: int = option(1, "Exact candidates.", "--n", "-n", min=1, max=1000)
    max_new_bytes: int = option(64, "Length of a middle.", min=1, max=1_000_000)
    as_json: JsonOption = False

    def sides(self) -> tuple[bytes, bytes]:
        """Return the text before and after the middle."""
        if self.template is not None and len(self.template.split()) not in (2, 3):
            raise typer.BadParameter(
                f"--template {quote(self.template)}: give two or three names, as in "
                "'<PRE> <SUF> <MID>'."
            )
        texts = self.prefix, self.suffix
        if (self.place is None) == (texts == (None, None)):
            raise typer.BadParameter(
                "give a place in a file, or --prefix and --suffix, and not both."
            )
        if self.place is not None:
            return _sides_of(self.place)
        left, right = ((text or "").encode("utf-8", "surrogateescape") for text in texts)
        return left, right

    def sentinels(self, lm: CharLM) -> Template:
        """Return those of the model, or those named."""
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
    before, after, end = unify(left), unify(right), line_end(left, right)
    lm = options.load(effort)
    template, order, window = settings.sentinels(lm), settings.order, lm.engine.window
    most = None if window is None else window - window // 4
    request = infill_request(before, after, template, lm.index, order=order, most=most)
    cuts = {  # bytes of the file
        "prefix": offset(left, request.prefix_cut),
        "suffix": len(right) - offset(right, len(after) - request.suffix_cut),
    }
    generation = GenerationOptions(n=settings.n, max_new_bytes=settings.max_new_bytes)
    texts, exact = _middles(lm, before, after, order, template, generation)
    if settings.as_json:
        print_json(
            model=options.model,
            template=template.family,
            order=template.order(order),
            forced=spelling(unify(request.forced, end)),
            ending=spelling(unify(request.ending, end)),
            prefix_cut=cuts["prefix"],
            suffix_cut=cuts["suffix"],
            middles={name: [unify(one, end) for one in each] for name, each in texts.items()},
            logprobs=[one.logprob for one in exact],
        )
        return
    begins = f"begins with {spelling(request.forced)!r}" if request.forced else "begins anywhere"
    ends = f"ends with {spelling(request.ending)!r}" if request.ending else "ends anywhere"
    lost = [f"{n} bytes of the {side} do not fit." for side, n in cuts.items() if n]
    screen = console()
    screen.print(_sides_line(before, after, request))
    screen.print(Text(" ".join([f"The middle {begins} and {ends}.", *lost]), style="dim"))
    screen.print(_completion_table(spelling(before), texts))


def _sides_of(place: str) -> tuple[bytes, bytes]:
    """The text before and after a place in a file, whose columns count characters."""
    match = _PLACE.fullmatch(place)
    if match is None:
        raise typer.BadParameter(f"{quote(place)} is not FILE:LINE:COLUMN.")
    path, line, column = match[1], int(match[2]), int(match[3])
    data = Source.of(path).text()
    lines = unify(data).split(b"\n")
    if not 1 <= line <= len(lines):
        raise SettingError(f"{path} has {len(lines)} lines: there is no line {line}.")
    text = lines[line - 1].decode("utf-8", "surrogateescape")
    if not 1 <= column <= len(text) + 1:
        raise SettingError(f"line {line} of {path} has {len(text)} characters: column {column}?")
    start = text[: column - 1].encode("utf-8", "surrogateescape")
    at = offset(data, len(b"\n".join([*lines[: line - 1], start])))
    return data[:at], data[at:]


def _sides_line(before: bytes, after: bytes, request: HealedPrompt) -> Text:
    """Both sides of a middle, with scissors where they are cut and a bar between them."""
    kept, rest = before[: len(before) - len(request.forced)], after[len(request.ending) :]
    line = Text("…" if len(kept) > 24 else "", "dim").append(visible(kept[-24:]), "white")
    line.append(SCISSORS, "bold red").append(visible(request.forced), _FORCED)
    line.append("│", "bold red").append(visible(request.ending), _FORCED)
    line.append(SCISSORS, "bold red").append(visible(rest[:24]))
    return line.append("…" if len(rest) > 24 else "", "dim")


def _middles(
    lm: CharLM,
    before: bytes,
    after: bytes,
    order: Order | None,
    template: Template,
    options: GenerationOptions,
) -> tuple[dict[str, list[str]], list[InfillCompletion]]:
    """The middles by each method, and the exact ones with their numbers.

    A model that transformers does not run has no plain and healed middles.
    """
    model, most = getattr(lm.engine, "model", None), options.max_new_bytes
    fim: dict[str, Any] = {"order": order, "template": template}
    texts: dict[str, list[str]] = {}
    if hasattr(model, "generate"):
        from charwise.engines.pretrained import quietly
        from charwise.healing.generate import heal_infill

        rules: dict[str, Side] = {"plain": "off", "healed": "auto"}
        for name, rule in _track(rules.items(), "filling in"):
            settings = fim | {"left": rule, "right": rule, "max_new_tokens": most}
            with quietly():
                [text] = heal_infill(model, lm.index, before, after, do_sample=False, **settings)
            texts[name] = [text.encode()[:most].decode("utf-8", "ignore")]
    exact = lm.infill(before, after, options, **fim)
    texts["exact"] = [one.text for one in exact]
    return texts, exact


# --- demo ---------------------------------------------------------------------------------------

#: Python that stops inside an identifier or a word which the context settles, and the rest of that.
EXAMPLES = [
    (
        '''\
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

    def get_node(self, value) -> Nod''',
        "e",
    ),
    ("def check(value):\n    if value < 0:\n        raise ValueErr", "or"),
    (
        """\
import unittest


class TestQueue(unittest.TestCase):
    def test_empty(self):
        queue = Queue()
        self.assertEqual(queue.size(), 0)

    def test_put(self):
        queue = Queue()
        queue.put(1)
        self.assertEq""",
        "ual",
    ),
    ("import os\nimport re\nimport sy", "s"),
    ("def total(values):\n    result = 0\n    for i in rang", "e"),
    ('def main():\n    print("done")\n\n\nif __name__ == "__mai', "n__"),
    ("def flatten(items):\n    for item in items:\n        if isinstan", "ce"),
    ("import os\n\n\ndef read(folder, name):\n    with open(os.path.joi", "n"),
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
    from charwise.side_by_side import METHODS

    lm = options.load(effort)
    generation = GenerationOptions(max_new_bytes=12)
    results: list[dict[str, Any]] = []
    for prompt, meant in _track(EXAMPLES, "completing"):
        texts = {
            name: run(lm, prompt.encode(), "auto", generation)[0] for name, run in METHODS.items()
        }
        ends_word = re.compile(re.escape(meant) + r"(?!\w)")
        right = {name: ends_word.match(text) is not None for name, text in texts.items()}
        results.append({"prompt": prompt, "meant": meant, "completions": texts, "right": right})
    gap = _fill_gap(lm, generation)
    if as_json:
        print_json(model=options.model, results=results, infilling=gap)
        return
    screen = console()
    room = max(10, screen.width - 63)  # beside three completions of 12 bytes
    grid = table("the prompt ends", "meant", *METHODS)
    for result in results:
        line = result["prompt"].splitlines()[-1].strip()
        line = line if len(line) <= room else "…" + line[1 - room :]
        grid.add_row(Text(line), result["meant"], *_judged(result))
    screen.print(grid)
    scores = [f"{name} {sum(r['right'][name] for r in results)}" for name in METHODS]
    screen.print(f"right, of {len(results)}: {', '.join(scores)}")
    if gap is not None:
        grid = table("the gap", "meant", *gap["completions"])
        line = Text(gap["prefix"].splitlines()[-1].strip())
        line.append("│", style="bold red").append(gap["suffix"].splitlines()[0])
        grid.add_row(line, gap["meant"], *_judged(gap))
        screen.print(grid)


def _fill_gap(lm: CharLM, options: GenerationOptions) -> dict[str, Any] | None:
    """The gap, filled in by every method; None for a model that does not fill in."""
    try:
        template = Template.of(lm.vocabulary)
    except SettingError:
        return None
    before, after = _GAP["prefix"].encode(), _GAP["suffix"].encode()
    texts, [first] = _middles(lm, before, after, None, template, options)
    return {
        **_GAP,
        "forced": first.forced.decode(),
        "ending": first.ending.decode(),
        "completions": {name: each[0] for name, each in texts.items()},
        "right": {name: each[0] == _GAP["meant"] for name, each in texts.items()},
    }


def _judged(result: dict[str, Any]) -> Iterator[Text]:
    """Yield the first line of each method's text, marked right or wrong."""
    for name, completion in result["completions"].items():
        text, newline, _ = completion.partition("\n")
        mark = Text("✓ ", "green") if result["right"][name] else Text("✗ ", "red")
        yield mark.append(text + ("⏎" if newline else ""), "bold")
