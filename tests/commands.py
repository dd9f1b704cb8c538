"""The command line in this process: what a command prints, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from charwise.cli.app import app


def run(
    *arguments: str | Path, stdin: bytes | None = None, env: dict[str, str] | None = None
) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)), input=stdin, env=env)


def run_json(*arguments: str | Path, stdin: bytes | None = None) -> dict[str, Any]:
    """What a command prints with `--json`."""
    result = run(*arguments, "--json", stdin=stdin)
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert isinstance(answer, dict)
    return answer
