"""ARCHITECTURE.md fits on a screen, names what exists, and leads to the file that one looks for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "charwise"
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")

#: Where is …?
ANSWERS = {
    "a prompt cut": "healing.py",
    "a mask made for other people's engines": "processors/decision.py",
    "the end of a completion decided": "cursor/generation.py",
    "a new engine added": "engines/load.py",
    "the key of a server checked": "api/http.py",
    "the beam chosen, when a text is scored": "scoring/rounds.py",
    "a JSON schema read": "constraints/schemas.py",
    "an error given its HTTP status": "api/errors.py",
    "the oracle": "coverings/reference.py",
    "an interrupted job resumed": "tables/output.py",
}


def named() -> set[str]:
    """The files that the page names, from the source's root: one's folder may be before it."""
    found: set[str] = set()
    folder = ""
    for name in re.findall(r"`((?:\w+/)*(?:\w+\.py)?)`", PAGE):
        if name.endswith("/"):
            folder = name
        elif "/" in name:
            found.add(name)
            folder = name.rpartition("/")[0] + "/"
        elif name:
            found.add(name if (SOURCE / name).is_file() else folder + name)
    return found


def test_what_the_page_names_exists():
    assert not [name for name in named() if not (SOURCE / name).is_file()]


def test_the_page_has_every_folder_and_fits_on_a_screen():
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert folders <= set(re.findall(r"(\w+)/", PAGE))
    assert len(PAGE.splitlines()) <= 65


@pytest.mark.parametrize("question", ANSWERS)
def test_the_page_leads_to_the_file(question: str):
    assert ANSWERS[question] in named()
