"""The files of `examples/deploy` name commands, options, extras, variables and files that exist."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer

from charwise.cli.app import app

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples" / "deploy"
TEXTS = {path.name: path.read_text("utf-8") for path in DEPLOY.iterdir()}

#: Files that have command lines, and how each is written there.
LINES = {
    "Containerfile": r"^CMD (\[.*\])$",
    "charwise.service": r"^ExecStart=\S+/charwise (.*)$",
    "compose.yaml": r'command: (\["gateway".*\])$',
}


def contexts(file: str) -> list[typer.Context]:
    """The commands of a file as the command line reads them."""
    command, results = typer.main.get_command(app), []
    for line in re.findall(LINES[file], TEXTS[file], re.MULTILINE):
        name, *rest = json.loads(line) if line.startswith("[") else shlex.split(line)
        results.append(command.commands[name].make_context(name, rest))  # type: ignore[attr-defined]
    return results


@pytest.mark.parametrize("file", LINES)
def test_commands_are_read(file: str) -> None:
    [context] = contexts(file)
    port = context.params["port"]
    if file == "Containerfile":
        assert f"EXPOSE {port}" in TEXTS[file]
    elif file == "compose.yaml":
        assert f":{port}:{port}" in TEXTS[file]
    else:
        assert f"proxy_pass http://{context.params['host']}:{port};" in TEXTS["nginx.conf"]


def test_variables_extras_and_files_exist() -> None:
    commands = typer.main.get_command(app).commands.values()  # type: ignore[attr-defined]
    variables = {param.envvar for command in commands for param in command.params if param.envvar}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    everything = "\n".join(TEXTS.values())
    assert set(re.findall(r"CHARWISE_\w+", everything)) <= variables
    named = re.findall(r"EXTRAS=([a-z,-]+)|charwise\[([a-z,-]+)\]", everything)
    assert len(named) == 3
    assert {extra for pair in named for extra in "".join(pair).split(",")} <= set(
        extras["optional-dependencies"]
    )
    for copied in re.findall(r"^COPY (.*) \S+$", TEXTS["Containerfile"], re.MULTILINE):
        assert all((ROOT / name).exists() for name in copied.split())
