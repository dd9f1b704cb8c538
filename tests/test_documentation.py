"""The reference is whole and fresh, and every link of the documentation leads somewhere."""

from __future__ import annotations

import pydoc
import re
from collections import Counter
from pathlib import Path

import pytest

import charwise
from charwise.tokens.sentinels import SPELLINGS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
API = "\n".join(path.read_text(encoding="utf-8") for path in (DOCS / "api").glob("*.rst"))


def documented() -> list[object]:
    """The objects that the API reference names, and the members of the modules that it names."""
    objects: list[object] = []
    for kind, name in re.findall(r"^\.\. auto(\w+):: (\S+)", API, re.M):
        named = pydoc.locate(name)
        assert named is not None, name
        objects += [named, *(vars(named).values() if kind == "module" else ())]
    return objects


def test_the_api_reference_has_every_public_name() -> None:
    pytest.importorskip("lm_eval.api", reason="the reference has the model for lm-eval")
    known = documented()
    assert [
        name
        for name in charwise.__all__
        if not any(one is getattr(charwise, name) for one in known)
    ] == []


def test_every_family_of_templates_is_on_the_page_of_infilling() -> None:
    page = (DOCS / "infill.md").read_text(encoding="utf-8").replace("\\|", "|")
    rows = [line for line in page.splitlines() if re.fullmatch(r"\| .* \| .*`.*P.*`.* \|", line)]
    assert len(rows) == len(SPELLINGS)
    for spelling in SPELLINGS:
        tokens = [name.strip("▁") for name in spelling.names if name is not None]
        [row] = [row for row in rows if all(token in row for token in tokens)]
        assert [family for family in spelling.family.split(", ") if family not in row] == []


def anchors(page: Path) -> set[str]:
    """The slugs of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    objects: Counter[str] = Counter()
    for heading in re.findall(r"^#+ (.+)", text, re.M):
        heading = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        objects[re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")] += 1
    return {f"{slug}-{n}" if n else slug for slug, times in objects.items() for n in range(times)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    text = re.sub(r"`[^`\n]+`", "", text)
    for target in re.findall(r"\]\((?!\w+:)\s*([^)\s]+)\)", text):
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file), target
