"""What is published, and what the parts of it need."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import charwise

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

#: Imports as if some packages were not installed.
WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "safetensors"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""


def without_torch(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT + code], capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(
    "module",
    [
        "charwise.healing",
        "charwise.healing.fim",
        "charwise.tokens.index",
        "charwise.constraints",
        "charwise.cli.app",
        "charwise.healing.llama_cpp",
        "charwise.gateway.app",
    ],
)
def test_healing_and_the_gateway_need_no_torch(module: str) -> None:
    found = without_torch(f"import {module}")
    assert found.returncode == 0, found.stderr


def test_a_model_without_torch_says_what_to_install() -> None:
    found = without_torch("import charwise\ncharwise.load()")
    assert "pip install 'charwise[transformers]'" in found.stderr.splitlines()[-1]


def test_a_command_without_torch_says_so_in_one_line() -> None:
    code = "sys.argv = ['charwise', 'next', 'a']\nfrom charwise.cli.app import main\nexit(main())"
    found = without_torch(code)
    assert (found.returncode, found.stdout) == (1, "")
    [line] = found.stderr.splitlines()
    assert "pip install 'charwise[transformers]'" in line


def test_the_version_is_the_same_everywhere() -> None:
    citation = re.search(r"^version: (\S+)", (ROOT / "CITATION.cff").read_text("utf-8"), re.M)
    assert citation is not None
    assert PROJECT["version"] == charwise.__version__ == citation[1]


def test_the_table_of_versions_has_the_oldest_that_are_allowed() -> None:
    wanted: dict[str, str] = {}
    extras = PROJECT["optional-dependencies"]
    for requirement in [*PROJECT["dependencies"], *(one for key in extras for one in extras[key])]:
        if found := re.match(r"([\w-]+)(?:\[[\w,-]+\])?>=([\d.]+)", requirement):
            wanted.setdefault(found[1], found[2])
    with (ROOT / "docs" / "versions.csv").open() as file:
        for row in csv.DictReader(file):
            assert wanted[row["package"]] == row["oldest"], row["package"]
