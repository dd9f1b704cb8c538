"""docs/editors.md: what it says of settings is what the language server takes."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import httpx
import pytest
from pydantic.alias_generators import to_camel

pytest.importorskip("pygls", reason="the language server needs: pip install 'charwise[lsp]'")

from charwise.serve.lsp_settings import EditorSettings
from serving import Running

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "editors.md").read_text(encoding="utf-8")


def rows() -> dict[str, str]:
    """Setting → default, as the page's table has them."""
    table = PAGE[PAGE.index("| setting | default |") :].split("\n\n")[0].splitlines()[2:]
    defaults_of: dict[str, str] = {}
    for row in table:
        names, default = (cell.strip() for cell in row.split("|")[1:3])
        several = re.findall(r"`(\w+)`", names)
        defaults = default.split(", ") if len(several) == default.count(",") + 1 else [default]
        defaults_of |= dict(zip(several, defaults * len(several), strict=False))
    return defaults_of


def test_every_setting_is_on_the_page_with_its_default() -> None:
    page = rows()
    defaults = {to_camel(name): one.default for name, one in EditorSettings.model_fields.items()}
    assert set(page) == set(defaults)
    for name, value in defaults.items():
        text = page[name].strip("`")
        assert (None if text == "none" else json.loads(text)) == (
            list(value) if isinstance(value, tuple) else value
        )


@pytest.mark.parametrize("file", ["docs/editors.md", "editors/neovim/charwise.lua"])
def test_the_options_of_neovim_are_taken(file: str) -> None:
    lua = re.search(r"init_options = \{ (.*?) \}", (ROOT / file).read_text("utf-8"))
    assert lua is not None
    options = {k: json.loads(v) for k, v in re.findall(r"(\w+) = ([\d.]+)", lua[1])}
    settings, wrong = EditorSettings().changed(options)
    assert wrong == []
    assert (settings.max_bytes, settings.seconds) == (80, 0.5)


def test_the_options_of_helix_are_taken_and_the_page_has_json() -> None:
    helix = tomllib.loads((ROOT / "editors" / "helix" / "languages.toml").read_text("utf-8"))
    settings, wrong = EditorSettings().changed(helix["language-server"]["charwise"]["config"])
    assert wrong == []
    assert settings.menu
    for block in re.findall(r"^```json\n(.*?)^```", PAGE, re.M | re.S):
        json.loads(block)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"maxBytes": 0}, "maxBytes is 0"),
        ({"maxBytes": "8"}, "maxBytes is '8'"),
        ({"candidates": 0}, "candidates is 0"),
        ({"candidates": 1000}, "candidates is 1000"),
        ({"stop": "x"}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"enabled": 1}, "enabled"),
        ({"topP": 2}, "topP is 2"),
        ({"topK": -1}, "topK is -1"),
        ({"before": -1}, "before is -1"),
        ({"seconds": -1}, "seconds"),
        ({"seed": 0.5}, "seed"),
        ({"until": ["line"]}, "until"),
        ({"threshold": None, "nothing": None}, "unknown setting 'nothing'"),
        ([1], "settings are an object"),
        ("x", "settings are an object"),
    ],
)
def test_wrong_settings_are_named_and_leave_the_rest(given: object, why: str) -> None:
    before = EditorSettings(max_bytes=9)
    settings, [wrong] = before.changed(given)
    assert why in wrong
    assert settings.max_bytes == 9


def test_what_is_right_beside_what_is_wrong_counts() -> None:
    given = {"charwise": {"topK": 5, "hue": 1, "until": "length"}}
    settings, wrong = EditorSettings().changed(given)
    assert (settings.top_k, settings.until, len(wrong)) == (5, None, 1)
    assert settings.changed({"topK": None})[0].top_k == 0
    assert settings.changed(None) == (settings, [])


def test_the_request_on_the_page_is_answered(running_server: Running) -> None:
    [(path, body)] = re.findall(r"^curl http://127.0.0.1:8000(\S+) -d '(.*?)'\n", PAGE, re.M | re.S)
    answer = httpx.post(running_server.url + path, content=body, timeout=60).json()
    assert len(answer["choices"]) > 1
