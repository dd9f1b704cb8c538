"""Command lines that are refused, before a model is loaded: which exit status each has.

A refusal is one line that names a value; its wording is free.
"""

import sys
from pathlib import Path

import pytest

from commands import run

#: Command lines with exit status 2: how they are written is wrong.
USAGE = """
complete
complete a --nonsense
next a --dtype int8
complete a --heal ²
complete a --n 2 --temperature 0
complete a --temperature 1e300
complete a --regex b --choices c
cover a --tolerance nan
infill
infill a.txt
infill a.txt:1:1 --prefix x
infill --prefix a --template <PRE>
score
score a.csv --per char --convention none
score a.csv --convention ending --end
score a.csv --coverage 0.5
score a.csv --covariates xx
score a.csv --covariates en --per char
score a.csv --entropy word --coverage 0
score a.csv --tolerance nan
score a.csv --regions-column text
score a.txt --delimiter ;
score a.csv --delimiter ;;
score a.csv --encoding latin-99
score a.csv --encoding rot13
score a.csv --overwrite
score a.csv --ray
score a.csv --out a.csv
score a.csv --out folder.csv
score a.csv --out a.xlsx
score a.csv --out out.csv --workers 2
score a.csv --keep-column item --keep-column item
score a.csv --keep-column surprisal
score a.csv --keep-column \udcdf
score - -
score - --text-column text
compare embedded a.txt --preset fast --tolerance 0.1
"""

#: Command lines with exit status 1: what they name is not there, or cannot be used.
FAILURES = """
complete a --regex (
complete a --json-schema nowhere.json
complete a --grammar cp1252.txt
infill a.txt:9:1
infill a.txt:1:99
vocab --model ./nowhere
score nowhere.csv
score ''
score a.xlsx
score a.tar
score long.jsonl
score cp1252.csv
score a.csv --encoding utf-16
score a.csv --out nowhere/out.csv
score a.csv --out foreign.csv
score a.txt --methods
score nowhere.csv --methods
score /dev/null
compare embedded
compare a.txt embedded
compare embedded empty.txt
compare embedded a.txt a.txt
compare embedded a.txt --out foreign.csv
lsp --stdio --tcp 0
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("charwise.engines.load.open_engine", lambda *_, **__: pytest.fail("loaded"))
    for name, content in {
        "a.txt": b"import os",
        "a.csv": b"text,item\nimport os,1\n",
        "a.xlsx": b"PK\x03\x04",
        "a.tar": b"a.csv",
        "a.parquet": b"",
        "empty.txt": b"",
        "long.jsonl": b'{"text": "a"}\n' * 1001,
        "foreign.csv": b"a,b\n1,2\n",
        "cp1252.csv": b"text\n\xe9\n",
        "cp1252.txt": b"\xe9",
    }.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder.csv").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("status", "line"),
    [
        *((2, line) for line in USAGE.strip().splitlines()),
        *((1, line) for line in FAILURES.strip().splitlines()),
    ],
)
def test_exit_status_of_a_refusal(status: int, line: str, folder: Path) -> None:
    before = {path.name: path.is_file() and path.read_bytes() for path in folder.iterdir()}
    result = run(*(word.replace("''", "") for word in line.split()))
    assert result.exit_code == status
    assert result.stdout == ""
    if status == 2:
        assert "Error: " in result.stderr or "Usage: " in result.stderr
        assert "Value error" not in result.stderr
    else:
        assert isinstance(result.exception, Exception)
        assert "\n" not in str(result.exception)
    after = {path.name: path.is_file() and path.read_bytes() for path in folder.iterdir()}
    assert after == before


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("pyarrow", "score a.csv --out out.parquet"),
        ("pyarrow", "score a.parquet"),
        ("matplotlib", "compare embedded a.txt --figure a.png"),
        ("lm_eval.__main__", "lm-eval ls tasks"),
    ],
)
def test_a_missing_extra_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, module: str, line: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert "pip install 'charwise[" in str(run(*line.split()).exception)
