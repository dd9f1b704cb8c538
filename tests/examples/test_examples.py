"""The scripts of `examples/` show what they say, and `examples/deploy` names what exists."""

import csv
import io
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer

from charwise.cli.app import app

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
DEPLOY = {path.name: path.read_text("utf-8") for path in (EXAMPLES / "deploy").iterdir()}


def output_of(name: str) -> str:
    command = [sys.executable, str(EXAMPLES / name)]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout


@pytest.mark.slow
def test_complete_shows_each_way() -> None:
    pytest.importorskip("transformers")
    ways = dict(line.split(maxsplit=1) for line in output_of("complete.py").splitlines())
    right = {name: text.startswith("'or") for name, text in ways.items()}
    assert right == {"plain": False, "healed": True, "exact": True}


@pytest.mark.slow
def test_type_and_see_shows_the_next_characters_after_each_key() -> None:
    *keys, last = output_of("type_and_see.py").splitlines()
    assert [line.split("'")[1] for line in keys] == ["import nump"[:n] for n in range(1, 12)]
    assert "'y' 1.00" in keys[-1]
    assert last.startswith("'import nu'")


@pytest.mark.slow
def test_table_has_a_row_for_each_word() -> None:
    pytest.importorskip("pandas", reason="this needs: pip install 'charwise[tables]'")
    with open(EXAMPLES / "stimuli.csv", encoding="utf-8") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    rows = list(csv.DictReader(io.StringIO(output_of("table.py"))))
    assert len({row["row"] for row in rows}) == len(texts)
    assert "".join(row["text"] for row in rows) == "".join(texts)
    assert all(float(row["surprisal"]) > 0 for row in rows)


@pytest.mark.slow
def test_json_exact_avoids_what_the_model_finds_impossible() -> None:
    pytest.importorskip("llguidance", reason="this needs: pip install 'charwise[constraints]'")
    local, exact = output_of("json_exact.py").splitlines()
    share = re.compile(r'"range\(zebra\)" ([0-9.]+)')
    assert float(share.findall(local)[0]) > 0.1
    assert all(float(one) < 0.02 for one in share.findall(exact))


@pytest.mark.slow
def test_two_models_move_to_the_one_that_the_text_follows() -> None:
    *steps, offer, bits = output_of("two_models.py").splitlines()
    weights = [float(line.split("weights ")[1].split()[1]) for line in steps]
    assert weights[0] == 0.5
    assert weights[-1] > 0.9
    assert offer.startswith("'os")
    both, alone = map(float, re.findall(r"[0-9.]+", bits))
    assert both < alone


@pytest.mark.parametrize(
    ("file", "line", "same_port"),
    [
        ("Containerfile", r"^CMD (\[.*\])$", "EXPOSE {port}"),
        ("compose.yaml", r'command: (\["gateway".*\])$', ":{port}:{port}"),
        ("charwise.service", r"^ExecStart=\S+/charwise (.*)$", "proxy_pass http://{host}:{port};"),
    ],
)
def test_commands_of_deployments_are_read(file: str, line: str, same_port: str) -> None:
    [words] = re.findall(line, DEPLOY[file], re.MULTILINE)
    name, *rest = json.loads(words) if words.startswith("[") else shlex.split(words)
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    options = command.make_context(name, rest).params
    other = "nginx.conf" if file == "charwise.service" else file
    assert same_port.format(**options) in DEPLOY[other]


def test_variables_extras_and_files_of_deployments_exist() -> None:
    commands = typer.main.get_command(app).commands.values()  # type: ignore[attr-defined]
    variables = {param.envvar for command in commands for param in command.params if param.envvar}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    everything = "\n".join(DEPLOY.values())
    assert set(re.findall(r"CHARWISE_\w+", everything)) <= variables
    named = re.findall(r"(?:EXTRAS=|charwise\[)([a-z,-]+)", everything)
    assert len(named) == 3
    assert {*",".join(named).split(",")} <= {*project["optional-dependencies"]}
    for names in re.findall(r"^COPY (.*) \S+$", DEPLOY["Containerfile"], re.MULTILINE):
        assert all((ROOT / name).exists() for name in names.split())
