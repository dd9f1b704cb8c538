"""Command lines that are refused, before a model is loaded: which exit status each has.

A refusal is one line that names a value; its wording is free.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from commands import run

HUGE = "1" + "0" * 30

#: Command lines with exit status 2: how they are written is wrong.
USAGE = """
complete
complete a --stdin
complete a --heal perhaps
complete a --heal -1
complete a --heal ²
complete a --n 0
complete a --n 2 --temperature 0
complete a --temperature -1
complete a --temperature inf
complete a --temperature nan
complete a --temperature 1e-300
complete a --temperature 1e300
complete a --seed 18446744073709551616
complete a --n HUGE
complete a --max-new-bytes HUGE
complete a --max-new-bytes 0
complete a --nonsense
complete a --regex b --choices c
next
next a --stdin
next a --top 0
next a --preset nonsense
next a --dtype int8
cover
cover a --tolerance nan
cover a --tolerance 1.5
cover a --top 0
cover a --top HUGE
infill
infill a.txt
infill a.txt:9
infill a.txt:1:1 --prefix x
infill --prefix a --template <PRE>
infill --prefix a --template a|b|c|d
infill --prefix a --template |
vocab surplus
nonsense
score
score a.csv --per sentence
score a.csv --per char --convention none
score a.csv --convention both
score a.csv --convention ending --end
score a.csv --coverage 0.5
score a.csv --covariates xx
score a.csv --covariates en --per char
score a.csv --entropy word --coverage 0
score a.csv --preset perhaps
score a.csv --tolerance nan
score a.csv --regions-column text
score a.txt --delimiter ;
score a.csv --delimiter ;;
score a.csv --delimiter "
score a.csv --encoding latin-99
score a.csv --encoding rot13
score a.csv --overwrite
score a.csv --ray
score a.csv --out a.csv
score a.csv --out folder.csv
score a.csv --out a.xlsx
score a.csv --out a
score a.csv --out a.csv.gz
score a.csv --out out.csv --workers 2
score a.csv --out out.csv --ray --workers 0
score a.csv --on-error ignore
score a.csv --keep-column item --keep-column item
score a.csv --keep-column surprisal
score a.csv --keep-column \udcdf
score - -
score - --text-column text
compare embedded a.txt --out a.parquet
compare embedded a.txt --figure a.gif
compare embedded a.txt --preset best
compare embedded a.txt --preset fast --tolerance 0.1
compare embedded a.txt --text-column a
compare embedded a.txt --resamples 0
compare embedded a.txt --resamples HUGE
"""

#: Command lines with exit status 1: what they name is not there, or cannot be used.
FAILURES = """
complete a --regex (
complete a --json-schema nowhere.json
complete a --grammar cp1252.txt
infill nowhere.txt:1:1
infill a.txt:9:1
infill a.txt:1:99
vocab --model ./nowhere
score nowhere.csv
score ''
score folder.csv
score a.xlsx
score long.jsonl
score cp1252.csv
score a.csv --encoding utf-16
score a.csv --text-column color
score a.csv --keep-column color
score semicolons.csv
score utf16.txt
score a.csv --out nowhere/out.csv
score a.csv --out a.txt/out.csv
score a.csv --out foreign.csv
score a.txt --methods
score . --methods
score nowhere.csv --methods
score /dev/null
compare embedded
compare embedded nowhere.txt
compare embedded ''
compare embedded a.txt nowhere.txt
compare a.txt embedded
compare embedded empty.txt
compare embedded a.txt a.txt
compare embedded a.txt --out nowhere/a.csv
compare embedded a.txt --out foreign.csv
lsp --stdio --tcp 0
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("charwise.engines.load.open_engine", lambda *_, **__: pytest.fail("loaded"))
    for name, content in {
        "a.txt": "import os",
        "a.csv": "text,item\nimport os,1\n",
        "semicolons.csv": "text;item\nimport os;1\n",
        "a.xlsx": "PK",
        "empty.txt": "",
        "long.jsonl": '{"text": "a"}\n' * 1001,
        "foreign.csv": "a,b\n1,2\n",
    }.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    (tmp_path / "cp1252.csv").write_bytes(b"text\n\xe9\n")
    (tmp_path / "utf16.txt").write_text("import os", encoding="utf-16")
    (tmp_path / "cp1252.txt").write_bytes(b"\xe9")
    (tmp_path / "folder.csv").mkdir()
    return tmp_path


def words(line: str) -> list[str]:
    return [word.replace("|", " ").replace("HUGE", HUGE).replace("''", "") for word in line.split()]


@pytest.mark.parametrize("line", USAGE.strip().splitlines())
def test_bad_usage_is_2(line: str, folder: Path) -> None:
    before = sorted(folder.iterdir())
    result = run(*words(line))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Error: " in result.stderr or "Usage: " in result.stderr
    assert "Value error" not in result.stderr
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("line", FAILURES.strip().splitlines())
def test_what_cannot_be_used_is_1(line: str, folder: Path) -> None:
    before = sorted(folder.iterdir())
    result = run(*words(line))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert isinstance(result.exception, Exception)
    assert "\n" not in str(result.exception)
    assert sorted(folder.iterdir()) == before
    assert (folder / "foreign.csv").read_text() == "a,b\n1,2\n"


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("pyarrow", "score a.csv --out out.parquet"),
        ("pyarrow", "score a.parquet"),
        ("matplotlib", "compare embedded a.txt --figure a.png"),
    ],
)
def test_what_is_not_installed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, module: str, line: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    (folder / "a.parquet").touch()
    result = run(*words(line))
    assert result.exit_code == 1
    assert "pip install 'charwise[" in str(result.exception)


def test_choices_of_options_are_those_of_the_library() -> None:
    from typing import get_args, get_type_hints

    from charwise.cli import serve
    from charwise.cli.options import ScoringOptions
    from charwise.gateway.servers import SERVERS
    from charwise.scoring.effort import PRESETS

    def choices(options: type, name: str) -> set[str]:
        hint = get_type_hints(options)[name]
        return {word for part in (hint, *get_args(hint)) for word in get_args(part)}

    assert set(PRESETS) <= choices(ScoringOptions, "preset")
    assert {"auto", *SERVERS} <= choices(serve._GatewaySettings, "server")
