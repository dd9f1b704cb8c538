"""The page about llama.cpp: what it shows runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "engines" / "llama-cpp.md"


def test_every_snippet_runs(embedded_file, tmp_path, monkeypatch):
    (tmp_path / "model.gguf").symlink_to(embedded_file)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(snippets) == 4
    for snippet in snippets:
        exec(snippet, names)
    assert str(names["text"]).encode().startswith(names["forced"])
