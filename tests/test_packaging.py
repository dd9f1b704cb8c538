"""What is published, what the parts of it need, and what importing them costs."""

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


HEAVY = ("torch", "transformers", "tokenizers", "tiktoken", "safetensors", "pandas", "matplotlib")


def loaded_after(statement: str) -> set[str]:
    """Which of the heavy packages a fresh interpreter has loaded after `statement`."""
    script = f"{statement}\nimport sys\nprint(*(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_nothing_heavy_is_imported() -> None:
    """For names, efforts and healing; `dir` loads nothing either."""
    statements = """
import charwise
assert "CharLM" in dir(charwise)
from charwise import Effort, SortedVocabulary, Vocabulary, healing
from charwise.scoring.effort import effort_of
assert effort_of(Effort(5)) != effort_of("fast")
index = SortedVocabulary(Vocabulary.from_bytes([b"s", b"weep", b"sw", None], bos_ids=[3]))
assert healing.cut("sw", index) == ([3], b"sw")
assert healing.remaining(b"sw", [0], index.vocabulary) == b"w"
assert healing.allowed_next(b"w", index).tolist() == [1]
assert index.bitmask(b"s").tolist() == [0b101]
"""
    assert loaded_after(statements) == set()


def test_healing_and_the_gateway_need_no_torch() -> None:
    modules = ("healing", "healing.fim", "healing.llama_cpp", "tokens.index", "constraints")
    modules += ("cli.app", "gateway.app", "healing.mask", "healing.guided")
    loaded = loaded_after("; ".join(f"import charwise.{module}" for module in modules))
    assert not loaded & {"torch", "transformers", "safetensors"}


def test_masks_need_torch_but_not_transformers() -> None:
    assert loaded_after(
        "import charwise.healing.tensorrt_llm\n"
        "from charwise import SortedVocabulary, Vocabulary\n"
        "import charwise.healing.guided, charwise.healing.mask, charwise.healing.tensorrt_llm\n"
        "SortedVocabulary(Vocabulary.from_bytes([b'a'])).mask(b'a')"
    ) == {"torch"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = charwise.nothing


def test_a_command_without_torch_says_so_in_one_line() -> None:
    code = "sys.argv = ['charwise', 'next', 'a']\nfrom charwise.cli.app import main\nexit(main())"
    done = subprocess.run([sys.executable, "-c", WITHOUT + code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert "pip install 'charwise[transformers]'" in line


def test_the_version_is_the_same_everywhere() -> None:
    citation = re.search(r"^version: (\S+)", (ROOT / "CITATION.cff").read_text("utf-8"), re.M)
    assert citation is not None
    assert PROJECT["version"] == charwise.__version__ == citation[1]


def test_the_table_of_versions_has_the_oldest_that_are_allowed() -> None:
    oldest: dict[str, str] = {}
    extras = PROJECT["optional-dependencies"]
    for requirement in [*PROJECT["dependencies"], *(one for key in extras for one in extras[key])]:
        if match := re.match(r"([\w-]+)(?:\[[\w,-]+\])?>=([\d.]+)", requirement):
            oldest.setdefault(match[1], match[2])
    with (ROOT / "docs" / "versions.csv").open() as file:
        for row in csv.DictReader(file):
            assert oldest[row["package"]] == row["oldest"], row["package"]
