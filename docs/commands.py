"""Write docs/reference/commands.md: the help of every command.

python docs/commands.py
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from pathlib import Path

from typer.testing import CliRunner

from charwise.cli.app import EXAMPLES, app

PAGE = Path(__file__).parent / "reference" / "commands.md"
HEAD = """# Commands

`charwise COMMAND --help` prints the help of a command. `python docs/commands.py` writes this page
from it. [`charwise lm-eval`](../evaluation.md#lm-evaluation-harness) takes the options of the
harness.

The exit code is 0 for success, 1 for a failure with a sentence on stderr, 2 for a wrong option,
and 130 after Ctrl-C. `charwise score` returns 3 if it left out rows.

## Options of many commands

"""

#: The number of commands from which an option counts as one of many.
MANY = 3


def options(text: str) -> list[str]:
    """Return the entries of the options in a help text, each with its lines."""
    part = text.partition("Options:\n")[2].partition("\n\n")[0]
    return re.split(r"\n(?=  -)", part)


def words(option: str) -> str:
    """Return an option without the layout of its help text."""
    return " ".join(option.split())


def bullet(option: str) -> str:
    """Return an option as an item of a list."""
    names, _, rest = option.strip().replace("\n", "  ", 1).partition("  ")
    return f"- `{names}`: {words(rest)}\n"


def name(option: str) -> str:
    """Return the long name of an option."""
    return re.findall(r"--[\w-]+", option)[0]


def page() -> str:
    """The page, with a section for each command."""
    helps = {}
    for command in sorted(EXAMPLES.keys() - {"lm-eval"}):
        result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "100"})
        helps[command] = result.stdout.partition("\n")[2].strip("\n")
    entries = [option for text in helps.values() for option in options(text)]
    uses = Counter(words(option) for option in entries)
    common = {words(option): option for option in entries if uses[words(option)] >= MANY}
    parts = [HEAD + "".join(bullet(option) for option in common.values())]
    for command, text in helps.items():
        own = [option for option in options(text) if words(option) not in common]
        shared = [name(option) for option in options(text) if words(option) in common]
        above = textwrap.fill(f"  and, as above: {', '.join(shared)}", 80, subsequent_indent="  ")
        text = text.replace("\n".join(options(text)), "\n".join([*own, above]))
        parts.append(f"## charwise {command}\n\n```\n{text}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
