"""docs/editors.md: what it says of settings is what the language server takes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest
from pydantic.alias_generators import to_camel

pytest.importorskip("pygls", reason="the language server needs: pip install 'charwise[lsp]'")

from charwise.serve.lsp_settings import Settings
from serving import Running

PAGE = (Path(__file__).parents[2] / "docs" / "editors.md").read_text(encoding="utf-8")


def rows() -> dict[str, str]:
    """Setting → default, as the page's table has them."""
    table = PAGE[PAGE.index("| setting | default |") :].split("\n\n")[0].splitlines()[2:]
    found: dict[str, str] = {}
    for row in table:
        names, default = (cell.strip() for cell in row.split("|")[1:3])
        several = re.findall(r"`(\w+)`", names)
        defaults = default.split(", ") if len(several) == default.count(",") + 1 else [default]
        found |= dict(zip(several, defaults * len(several), strict=False))
    return found


def test_every_setting_is_on_the_page_with_its_default() -> None:
    found = rows()
    defaults = {to_camel(name): one.default for name, one in Settings.model_fields.items()}
    assert set(found) == set(defaults)
    for name, value in defaults.items():
        shown = found[name].strip("`")
        assert (None if shown == "none" else json.loads(shown)) == (
            list(value) if isinstance(value, tuple) else value
        )


def test_the_options_on_the_page_are_taken() -> None:
    lua = re.search(r"init_options = \{ (.*?) \}", PAGE)
    assert lua is not None
    options = {k: float(v) for k, v in re.findall(r"(\w+) = ([\d.]+)", lua[1])}
    options["maxBytes"] = int(options["maxBytes"])
    settings, wrong = Settings().changed(options)
    assert wrong == []
    assert (settings.max_bytes, settings.seconds) == (80, 0.5)
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
    before = Settings(max_bytes=9)
    settings, [wrong] = before.changed(given)
    assert why in wrong
    assert settings.max_bytes == 9


def test_what_is_right_beside_what_is_wrong_counts() -> None:
    settings, wrong = Settings().changed({"charwise": {"topK": 5, "hue": 1, "until": "length"}})
    assert (settings.top_k, settings.until, len(wrong)) == (5, None, 1)
    assert settings.changed({"topK": None})[0].top_k == 0
    assert settings.changed(None) == (settings, [])


def test_the_request_on_the_page_is_answered(running_server: Running) -> None:
    [(path, body)] = re.findall(r"^curl http://127.0.0.1:8000(\S+) -d '(.*?)'\n", PAGE, re.M | re.S)
    answer = httpx.post(running_server.url + path, content=body, timeout=60).json()
    assert len(answer["choices"]) > 1
