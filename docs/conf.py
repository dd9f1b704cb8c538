"""Sphinx: pages in Markdown, and the API from docstrings. `make docs` builds them, strictly."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from typer.testing import CliRunner

from charwise import __version__
from charwise.cli.app import EXAMPLES, app

project = "charwise"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"charwise {release}"
html_show_copyright = False
html_show_sphinx = False

# Docstrings are Markdown of the plainest sort: `names` in single backticks are code.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True
napoleon_use_ivar = True
myst_heading_anchors = 4


#: Stands for a colon that napoleon would take for the end of a property's type.
_COLON = "\N{RATIO}"


def as_rst(_app: Any, what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """What docstrings write otherwise than reStructuredText: `code`s, and indented blocks."""
    text = "\n".join(
        line if line.lstrip().startswith(">>>") else re.sub(r"(`[^`]+`)(?=(\w?))", _apart, line)
        for line in lines
    )
    text = re.sub(r"^(\S.*\n)\n(?= )", r"\1\n::\n\n", text, flags=re.MULTILINE)
    lines[:] = text.split("\n")
    if what == "property":
        lines[0] = lines[0].replace(":", _COLON)


def _apart(code: re.Match[str]) -> str:
    return code[1] + ("\\ " if code[2] else "")


def with_colons(*event: Any) -> None:
    event[-1][:] = [line.replace(_COLON, ":") for line in event[-1]]


class Commands(Directive):
    """The help of every command, each in a section."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        sections = []
        for command in sorted(EXAMPLES.keys() - {"lm-eval"}):
            result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "100"})
            section = nodes.section(ids=[f"charwise-{command}"])
            text = result.stdout.partition("\n")[2].strip("\n")
            section += [nodes.title(text=f"charwise {command}"), nodes.literal_block(text=text)]
            sections.append(section)
        return sections


def setup(sphinx: Any) -> None:
    """Docstrings pass here before napoleon reads their sections, and after."""
    sphinx.connect("autodoc-process-docstring", as_rst, priority=400)
    sphinx.connect("autodoc-process-docstring", with_colons, priority=600)
    sphinx.add_directive("commands", Commands)
