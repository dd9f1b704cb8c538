"""Mutation tests: change one thing in a module, and see whether some test notices.

    make mutants MODULE=tokens/index             every mutant
    make mutants MODULE=cursor/state SAMPLE=200  so many of them, drawn by a fixed seed

Each mutant meets the doctests of its module and the tests that `TESTS` names, until the first one
fails. What is printed at the end are the mutants that none noticed: each is a test to be written,
or changes nothing that anyone could see. Those that ran out of time are printed too: one that hangs
is noticed, but on a busy machine time may end before a test has failed. What errors say is not
mutated. mutmut does the work, in a copy of the repository in build/mutants/; real tokenizers are
left out, small models in.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]

CURSOR = [
    "cursor/test_state.py",
    "cursor/test_typing.py::test_no_possible_byte_is_refused",
    "cursor/test_typing.py::test_all_that_was_kept_ends_here",
    "test_model.py::test_an_implied_leading_space_is_conditioned_on",
]
SCORING = [
    "scoring/test_rounds.py",
    "scoring/test_lattice.py",
    "scoring/test_effort.py",
    "scoring/test_packs.py",
    "scoring/test_windows.py",
]

#: Module → the tests, in tests/, that should notice whatever is wrong with it.
TESTS = {
    "tokens/index": ["tokens/test_index.py"],
    "healing/forced": ["healing/test_forced.py"],
    "coverings/reference": ["coverings/test_reference.py", "coverings/test_beam.py"],
    "coverings/covering": ["coverings/test_covering.py"],
    "coverings/beam": ["coverings/test_beam.py"],
    "coverings/bundles": ["coverings/test_beam.py"],
    "engines/base": ["engines/test_ngram.py", "engines/test_tree.py"],
    "cursor/state": [*CURSOR, "cursor/test_generation.py", "test_model.py"],
    "cursor/cover": CURSOR,
    "cursor/generation": ["cursor/test_generation.py", "cursor/test_smc.py"],
    "cursor/smc": ["cursor/test_smc.py"],
    "healing/mask": ["healing/test_mask.py"],
    "scoring/effort": ["scoring/test_effort.py"],
    "scoring/contexts": SCORING,
    "scoring/lattice": SCORING,
    "scoring/rounds": [*SCORING, "scoring/test_enumeration.py", "scoring/test_error.py"],
    "scoring/score": [*SCORING, "surprisal/test_entropies.py"],
    "coverings/windows": ["scoring/test_windows.py"],
    "tokens/known_text": ["tokens/test_known_text.py", *SCORING],
    "tokens/utf8": ["tokens/test_utf8.py", "evaluation/test_compare.py"],
    "evaluation/resampling": ["evaluation/test_resampling.py"],
    "evaluation/comparison": ["evaluation/test_compare.py"],
    "tables/output": ["tables/test_output.py"],
    "combine": [
        "combine/test_oracle.py",
        "combine/test_combination.py",
        "combine/test_error_estimates.py",
    ],
}

#: Of each property, at most: every mutant that survives runs them all.
EXAMPLES = 100

CONFIG = """
[tool.mutmut]
source_paths = ["src"]
only_mutate = ["{source}"]
also_copy = ["conftest.py", "docs", "examples", "benchmarks", "README.md"]
pytest_add_cli_args_test_selection = {tests}
pytest_add_cli_args = ["--hypothesis-profile=mutants", "-p", "no:cacheprovider"]
do_not_mutate_patterns = ['(raise|return) (\\w+Error|_no_\\w+)\\(']
timeout_multiplier = 8.0
timeout_constant = 1.0
"""


def prepare(module: str) -> Path:
    """A copy of the repository that is set up for one module; what it did before is kept."""
    folder = ROOT / "build" / "mutants" / module.replace("/", "-")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("src", "tests", "docs", "examples", "benchmarks"):
        # With its times: mutmut goes by them.
        shutil.copytree(
            ROOT / name,
            folder / name,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    for name in ("conftest.py", "README.md"):
        shutil.copy2(ROOT / name, folder)
    source = f"src/charwise/{module}.py"
    tests = [source, *(f"tests/{test}" for test in TESTS[module])]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (folder / "pyproject.toml").write_text(
        project + CONFIG.format(source=source, tests=json.dumps(tests)), encoding="utf-8"
    )
    return folder


def mutmut(folder: Path, *arguments: str) -> str:
    """What mutmut prints."""
    environment = os.environ | {
        "CHARWISE_DATA": "none",
        "CHARWISE_EXAMPLES": str(EXAMPLES),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": "",
    }
    command = [sys.executable, "-m", "mutmut", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.stdout[-4000:])
    return done.stdout


def names(folder: Path, module: str) -> list[str]:
    """Of all mutants of a module."""
    os.chdir(folder)
    from mutmut.mutation.file_mutation import mutate_file_contents
    from mutmut.utils.format_utils import get_mutant_name

    source = Path(f"src/charwise/{module}.py")
    mutated = mutate_file_contents(str(source), source.read_text(encoding="utf-8"))
    return [get_mutant_name(source, name) for name in mutated.mutant_names]


def verdicts(folder: Path, module: str) -> dict[str, str]:
    """Mutant → killed, survived, timeout or no tests."""
    from mutmut.stats import status_by_exit_code

    meta = folder / "mutants" / "src" / "charwise" / f"{module}.py.meta"
    codes = json.loads(meta.read_text(encoding="utf-8"))["exit_code_by_key"]
    return {name: status_by_exit_code[code] for name, code in codes.items() if code is not None}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("module", choices=TESTS)
    parser.add_argument("--sample", type=int, default=0, help="how many mutants; 0 for all")
    parser.add_argument("--children", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", help="mutants by name, with wildcards; those that survived: -")
    options = parser.parse_args()
    module = options.module
    folder = prepare(module)
    existing = names(folder, module)
    chosen = existing
    if options.sample:
        chosen = random.Random(0).sample(existing, min(options.sample, len(existing)))
    if options.only == "-":
        chosen = [
            name for name, verdict in verdicts(folder, module).items() if verdict == "survived"
        ]
    elif options.only:
        chosen = [options.only]
    mutmut(folder, "run", "--max-children", str(options.children), *chosen)
    found = verdicts(folder, module)
    if options.only != "-" and not options.only:
        found = {name: found[name] for name in chosen}
    for name, verdict in found.items():
        if verdict != "killed":
            print(f"{verdict}:", mutmut(folder, "show", name), sep="\n")
    counts = Counter(found.values())
    noticed = counts["killed"] + counts["timeout"]
    print(
        f"{module}: {noticed} of {len(found)} mutants noticed ({noticed / len(found):.1%}), "
        f"out of {len(existing)}: {dict(counts)}"
    )


if __name__ == "__main__":
    main()
