"""Write docs/reference/commands.md: the help of every command.

python docs/commands.py
"""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from charwise.cli.app import EXAMPLES, app

PAGE = Path(__file__).parent / "reference" / "commands.md"
HEAD = """# Commands

`charwise COMMAND --help` prints the same. `python docs/commands.py` writes this page.
"""


def page() -> str:
    """The page, with a section for each command."""
    parts = [HEAD]
    for command in sorted(EXAMPLES.keys() - {"lm-eval"}):
        asked = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "100"})
        text = asked.stdout.partition("\n")[2].strip("\n")
        parts.append(f"## charwise {command}\n\n```\n{text}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
