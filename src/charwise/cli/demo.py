"""The command `charwise demo`: Python that stops inside an identifier or a word, completed.

Each prompt has the context that settles how the word goes on, as a file in an editor has. A model
that fills in is also asked for a middle, between two texts that both break off inside a word.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.table import Table
from rich.text import Text

from charwise.cli.options import (
    EffortOptions,
    JsonOption,
    ModelOptions,
    takes_options,
)
from charwise.cli.output import console, print_json, table, track
from charwise.errors import SettingError

if TYPE_CHECKING:
    from charwise.cli.completion import Loaded
    from charwise.cursor.options import GenerationOptions


class _Example(NamedTuple):
    """A prompt, and the rest of the word that it stops in."""

    prompt: str
    meant: str

    def is_right(self, completion: str) -> bool:
        """Whether a completion ends the word as it was meant.

        >>> example = _Example("raise ValueErr", "or")
        >>> example.is_right("or(x)"), example.is_right("ors"), example.is_right(", C")
        (True, False, False)
        """
        return re.match(re.escape(self.meant) + r"(?!\w)", completion) is not None


class _Gap(NamedTuple):
    """Two texts, and the text that was between them."""

    prefix: str
    suffix: str
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

GAP = _Gap(
    prefix="def flatten(items):\n    result = []\n    for item in items:\n        result.app",
    suffix="d(item)\n    return result\n",
    meant="en",
)


@takes_options
def demo(
    options: ModelOptions,
    effort: EffortOptions,
    as_json: JsonOption = False,
) -> None:
    """Complete eight partial words: plain, healed and exact.

    A model that fills in is asked for a gap as well.
    """
    from charwise.cli import completion
    from charwise.cursor.options import GenerationOptions

    loaded = completion.Loaded(options.model, options.load(effort))
    methods = completion.methods(loaded)
    wanted = GenerationOptions(max_new_bytes=12)
    results: list[dict[str, Any]] = []
    for example in track(EXAMPLES, len(EXAMPLES), "completing"):
        request = completion.Request(example.prompt.encode(), wanted)
        texts = {name: run(loaded, request)[0] for name, run in methods.items()}
        right = {name: example.is_right(text) for name, text in texts.items()}
        results.append({**example._asdict(), "completions": texts, "right": right})
    gap = _filled_in(loaded, wanted)
    if as_json:
        print_json(model=loaded.name, results=results, infilling=gap)
        return
    found = table("the prompt ends", "meant", *methods)
    for result in results:
        last_line = result["prompt"].splitlines()[-1].strip()
        cells = [_judged(result, name) for name in methods]
        found.add_row(Text(last_line), Text(result["meant"]), *cells)
    screen = console()
    screen.print(found)
    scores = [f"{name} {sum(r['right'][name] for r in results)}" for name in methods]
    screen.print(f"right, of {len(results)}: {', '.join(scores)}")
    if gap is not None:
        screen.print(_gap_table(gap))


def _filled_in(loaded: Loaded, wanted: GenerationOptions) -> dict[str, Any] | None:
    """The gap, filled in by every method; None for a model that does not fill in."""
    from charwise.cli import infill
    from charwise.healing.fim import Template

    try:
        template = Template.of(loaded.index.vocabulary)
    except SettingError:
        return None
    before, after = GAP.prefix.encode(), GAP.suffix.encode()
    given: infill.Given = {"order": None, "template": template}
    texts, [first] = infill.middles(loaded, before, after, given, wanted)
    return {
        **GAP._asdict(),
        "forced": first.forced.decode(),
        "ending": first.ending.decode(),
        "completions": {name: found[0] for name, found in texts.items()},
        "right": {name: found[0] == GAP.meant for name, found in texts.items()},
    }


def _gap_table(gap: dict[str, Any]) -> Table:
    """The line with the gap, and the text that each method fills in."""
    found = table("the gap", "meant", *gap["completions"])
    line = Text(gap["prefix"].splitlines()[-1].strip())
    line.append("│", style="bold red").append(gap["suffix"].splitlines()[0])
    found.add_row(line, Text(gap["meant"]), *(_judged(gap, name) for name in gap["completions"]))
    return found


def _judged(result: dict[str, Any], name: str) -> Text:
    right = result["right"][name]
    line = Text("✓ " if right else "✗ ", style="green" if right else "red")
    return line.append(_first_line(result["completions"][name]), style="bold")


def _first_line(text: str) -> str:
    """Up to the end of the line, which is shown."""
    line, newline, _ = text.partition("\n")
    return line + ("⏎" if newline else "")
