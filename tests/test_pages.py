"""What is published: pages whose Python runs and whose links lead somewhere, and the package."""

from __future__ import annotations

import csv
import pydoc
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import torch

import charwise
from charwise.tokens.sentinels import SPELLINGS
from commands import run

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
EVERY = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
API = "\n".join(path.read_text(encoding="utf-8") for path in (DOCS / "api").glob("*.rst"))
SMOLLM2 = ROOT / ".models" / "smollm2-135m"
PAGES = ("../README", "combine", "evaluation", "constraints", "infill", "engines/transformers")
TUTORIALS = ("methods", "editors", "engines/index", "for-psycholinguists", "for-researchers")
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?|-?\d+e-?\d+")

ON_A_CPU = pytest.mark.skipif(torch.cuda.is_available(), reason="the pages were printed on a CPU")
#: What differs between copies of the same package: a wheel says no commit.
COMMIT = re.compile(r", commit [0-9a-f]{12}(-dirty)?")

#: By how much a printed number may differ between machines.
CLOSE = 0.03


def text_of(page: str) -> str:
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def run_script(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a script of a page with its arguments, in this process, which has the libraries."""
    arguments = shlex.split(command, comments=True)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", arguments)
        runpy.run_path(arguments[0], run_name="__main__")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout's folder, as far as the pages know it."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    if SMOLLM2.is_dir():
        (tmp_path / ".models").symlink_to(SMOLLM2.parent, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    return tmp_path


@ON_A_CPU
@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(
    page: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And a text in a comment after a line is what the line gives, or prints."""
    names: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", text_of(page), re.M | re.S)
    assert blocks
    for block in blocks:
        exec(
            re.sub(r"^((?:lm|state)\..*)  # ('.*')$", r"assert \1 == \2", block, flags=re.M), names
        )
        for line in re.findall(r"^print\(.*# (b?'.*?')", block, re.M):
            assert line in capsys.readouterr().out


@ON_A_CPU
@pytest.mark.parametrize("page", TUTORIALS)
def test_a_tutorial_runs_from_top_to_bottom(
    page: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block without a language shows what the Python block or the command before it prints."""
    names, printed, compared = dict[str, Any](), "", 0
    blocks = re.findall(r"^```([\w{}]*).*?\n(.*?)^```", text_of(page), re.M | re.S)
    if any("smollm2" in block for _, block in blocks) and not SMOLLM2.is_dir():
        pytest.skip("no SmolLM2: make smollm2")
    for language, block in blocks:
        example = block
        if language == "python":
            assert not printed, "the page does not show what the block before prints"
            exec(block, names)
            printed = capsys.readouterr().out
            continue
        if block.startswith("$ charwise "):
            command, _, example = block.replace("\\\n", " ").partition("\n")
            result = run(*shlex.split(command)[2:], env={"COLUMNS": "100"})
            assert result.exit_code == 0, result.output
            printed = result.stdout
        if block.startswith("$ python "):
            command, _, example = block.partition("\n")
            run_script(command.removeprefix("$ python "), monkeypatch)
            printed = capsys.readouterr().out
        if printed:
            assert_same(printed, example)
            printed, compared = "", compared + 1
    assert not printed
    assert compared >= 4


def test_the_recipe_in_r_runs_as_printed(folder: Path) -> None:
    rscript = shutil.which("Rscript")
    needs = "quit(status = !all(sapply(c('ggplot2', 'lme4'), requireNamespace, quietly = TRUE)))"
    if rscript is None or subprocess.run([rscript, "-e", needs], check=False).returncode:
        pytest.skip("needs R with ggplot2 and lme4: apt install r-cran-ggplot2 r-cran-lme4")
    page = text_of("for-psycholinguists")
    for block in re.findall(r"^```\n\$ charwise (score examples.*?)^```", page, re.M | re.S):
        command = block.replace("\\\n", " ").partition("\n")[0]
        if "smollm2" not in command:
            assert run(*shlex.split(command)).exit_code == 0
    done = subprocess.run([rscript, "examples/study.R"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^full +9 ", done.stdout, re.M), "the test of both predictors is printed"
    assert (folder / "regions-r.png").read_bytes().startswith(b"\x89PNG")
    types = "words <- read.csv('words.csv'); cat(class(words$surprisal))"
    types_in_r = subprocess.run([rscript, "-e", types], capture_output=True, text=True, check=True)
    assert types_in_r.stdout == "numeric"


def assert_same(printed: str, example: str) -> None:
    """Words are the same up to an ellipsis at the end of the example; numbers are close."""
    printed, example = (COMMIT.sub("", " ".join(text.split())) for text in (printed, example))
    if example.endswith(" …"):
        example = example.removesuffix(" …")
        printed = " ".join(printed.split()[: len(example.split())])
    assert NUMBER.sub("", printed).split() == NUMBER.sub("", example).split()
    numbers, expected = (list(map(float, NUMBER.findall(part))) for part in (printed, example))
    assert numbers == pytest.approx(expected, abs=CLOSE, rel=0)


def test_a_student_learns_from_a_teacher_table(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow", reason="Parquet needs: pip install 'charwise[tables]'")
    for command in re.findall(r"^python (examples/.*)\n", text_of("tables"), re.M):
        run_script(command, monkeypatch)
    numbers = re.findall(r"\d+(?:\.\d+)?", capsys.readouterr().out)
    size, first, loss, least = map(float, numbers)
    assert size > 300
    assert least < loss < first - 1  # it has learned, and knows no more than its teacher


@ON_A_CPU
def test_the_demo_prints_what_the_readme_shows() -> None:
    [example] = re.findall(r"^\$ charwise demo\n(.*?)^```", text_of("../README"), re.M | re.S)
    printed = run("demo", env={"COLUMNS": "100"}).stdout
    shown, expected = (re.sub(r" +$", "", text, flags=re.M) for text in (printed, example))
    assert shown.strip("\n") == expected.strip("\n")


def test_the_figures_of_the_readme_are_those_of_the_benchmarks() -> None:
    results = (DOCS / "results").glob("*.csv")
    known = text_of("benchmarks") + "".join(path.read_text(encoding="utf-8") for path in results)
    [section] = re.findall(r"^## Does it work\?\n(.*?)^## ", text_of("../README"), re.M | re.S)
    figures = re.findall(r"(?<![\d.])\d+\.\d+(?![\d.])", section)
    assert len(figures) == 19
    assert set(figures) <= set(re.findall(r"\d+\.\d+", known))
    commands = re.findall(r"`(python\sbenchmarks/.*?)`", section, re.S)
    assert len(commands) == 4
    for command in commands:
        assert " ".join(command.split()) in " ".join(known.split())


# ---- the reference and the links ----------------------------------------------------------------


def test_the_api_reference_has_every_public_name() -> None:
    pytest.importorskip("lm_eval.api", reason="the reference has the model for lm-eval")
    documented: list[object] = []
    for kind, name in re.findall(r"^\.\. auto(\w+):: (\S+)", API, re.M):
        target = pydoc.locate(name)
        assert target is not None, name
        documented += [target, *(vars(target).values() if kind == "module" else ())]
    for name in charwise.__all__:
        assert any(one is getattr(charwise, name) for one in documented), name


def test_every_family_of_templates_is_on_the_page_of_infilling() -> None:
    page = text_of("infill").replace("\\|", "|")
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


@pytest.mark.parametrize("page", EVERY, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    text = re.sub(r"`[^`\n]+`", "", text)
    for target in re.findall(r"\]\((?!\w+:)\s*([^)\s]+)\)", text):
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file), target


# ---- the package --------------------------------------------------------------------------------

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
HEAVY = ("torch", "transformers", "tokenizers", "tiktoken", "safetensors", "pandas", "matplotlib")

#: For names, efforts and healing; `dir` loads nothing either.
NAMES = """
import charwise
assert "CharLM" in dir(charwise)
assert not hasattr(charwise, "nothing")
from charwise import Effort, SortedVocabulary, Vocabulary, healing
index = SortedVocabulary(Vocabulary.from_bytes([b"s", b"weep", b"sw", None], bos_ids=[3]))
assert healing.cut("sw", index) == ([3], b"sw")
assert healing.allowed_next(b"w", index).tolist() == [1]
assert index.bitmask(b"s").tolist() == [0b101]
"""
HEALING = """
import charwise.healing.fim, charwise.healing.guided, charwise.healing.llama_cpp
import charwise.healing.mask, charwise.constraints, charwise.cli.app, charwise.gateway.app
"""
MASKS = """
import charwise.healing.guided, charwise.healing.tensorrt_llm
from charwise import SortedVocabulary, Vocabulary
SortedVocabulary(Vocabulary.from_bytes([b"a"])).mask(b"a")
"""


@pytest.mark.parametrize(
    ("statements", "absent"),
    [
        (NAMES, {*HEAVY}),
        (HEALING, {"torch", "transformers", "safetensors"}),
        (MASKS, {*HEAVY} - {"torch"}),
    ],
)
def test_parts_load_only_the_packages_that_they_need(statements: str, absent: set[str]) -> None:
    script = f"{statements}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not absent & set(done.stdout.split())


def test_a_command_without_torch_says_so_in_one_line() -> None:
    code = """
import sys
sys.modules |= dict.fromkeys(("torch", "transformers", "safetensors"))  # as if not installed
sys.argv = ["charwise", "next", "a"]
from charwise.cli.app import main
exit(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
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
