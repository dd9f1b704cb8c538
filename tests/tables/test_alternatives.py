"""Alternatives of a region: read from cells, and scored as a text of their own."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import charwise
from charwise.cli.app import app
from charwise.tables.alternatives import alternatives_of
from charwise.tables.regions import CellError, Region
from near import approx

ONE = [Region(0, 4, "noun")]
TWO = [Region(0, 4, "noun"), Region(4, 8, "verb"), Region(8, 9)]


@pytest.mark.parametrize(
    ("cell", "regions", "expected"),
    [
        (b"river|sea", ONE, [(0, "river"), (0, "sea")]),
        (b" river | the sea ", ONE, [(0, "river"), (0, "the sea")]),
        (b'["river", "a|b"]', ONE, [(0, "river"), (0, "a|b")]),
        (["river"], ONE, [(0, "river")]),
        (b'{"verb": ["sank"], "noun": "a|b"}', TWO, [(1, "sank"), (0, "a"), (0, "b")]),
        (b'{"2": ["sank"]}', TWO, [(1, "sank")]),
        ({"3": "sank", "noun": None}, TWO, [(2, "sank")]),
        (b"", TWO, []),
        (b"  ", TWO, []),
        (None, TWO, []),
        ([], TWO, []),
    ],
)
def test_cells(cell: Any, regions: list[Region], expected: list[tuple[int, str]]) -> None:
    assert alternatives_of(cell, regions) == expected


@pytest.mark.parametrize(
    ("cell", "regions", "says"),
    [
        (b"river|sea", TWO, "3 regions: say which"),
        (b"river||sea", ONE, "an alternative is empty"),
        (b"sea| sea", ONE, "'sea' is there twice"),
        (b'["sea"', ONE, "these are no alternatives"),
        (b'{"noun": 3}', ONE, "list strings"),
        (b'{"noun": [3]}', ONE, "list strings"),
        (3, ONE, "list strings"),
        (b'{"adverb": ["sea"]}', TWO, "no region is called 'adverb', of 3"),
        (b'{"4": ["sea"]}', TWO, "no region is called '4'"),
        (b'{"noun": ["a"], "noun": ["b"]}', ONE, "'noun' is there twice"),
        (b'{"noun": ["a"]}', [*ONE, *ONE], "give the number, 1, 2"),
        (b"\xff", ONE, "no UTF-8"),
        (b'["\\ud800"]', ONE, "half a character"),
        (b"[" * 100_000, ONE, "nested too deeply"),
        (b"[" + b"1" * 5000 + b"]", ONE, "a number in it is too long"),
    ],
)
def test_cells_that_are_wrong(cell: Any, regions: list[Region], says: str) -> None:
    with pytest.raises(CellError, match=says):
        alternatives_of(cell, regions)


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["score", *map(str, arguments)])


@pytest.fixture
def items(tmp_path: Path) -> Path:
    path = tmp_path / "items.jsonl"
    rows = [
        {"text": "import |numpy |as np", "others": '{"2": "os|sys"}'},
        {"text": "return |None", "others": None},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_alternatives_are_rows_with_their_own_surprisal(items: Path) -> None:
    more = ["--per", "region", "--alternatives-column", "others", "--entropy", "byte", "--end"]
    result = run(items, *more, "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    found = [(row["row"], row["unit"], row["alternative"], row["text"]) for row in rows]
    assert found == [
        (1, 1, 0, "import "),
        (1, 2, 0, "numpy "),
        (1, 3, 0, "as np"),
        (1, 4, 0, ""),
        (1, 2, 1, "os "),
        (1, 2, 2, "sys "),
        (2, 1, 0, "return "),
        (2, 2, 0, "None"),
        (2, 3, 0, ""),
    ]
    lm = charwise.load()
    for at, text in ((4, "os "), (5, "sys ")):
        score = lm.score(text, context="import ", entropy="byte")
        assert rows[at]["surprisal"] == approx(score.bits, abs=1e-3)
        assert rows[at]["entropy"] == approx(rows[1]["entropy"], abs=1e-3)
        assert (rows[at]["start"], rows[at]["end"]) == (7, 7 + len(text))


def test_an_output_has_a_column_for_them(items: Path) -> None:
    out = items.with_name("out.csv")
    result = run(items, "--per", "region", "--alternatives-column", "others", "--out", out)
    assert result.exit_code == 0, result.output
    with out.open(newline="") as file:
        assert [row["alternative"] for row in csv.DictReader(file)] == list("0001200")
    facts = json.loads(out.with_name("out.csv.json").read_text())
    assert facts["alternatives-column"] == "others"


def test_a_fault_names_the_column_and_the_row(items: Path) -> None:
    items.write_text(items.read_text().replace("os|sys", "os||sys"))
    out = items.with_name("out.csv")
    result = run(items, "--per", "region", "--alternatives-column", "others", "--out", out)
    assert result.exit_code != 0
    assert "row 1 (line 1), column 'others': an alternative is empty." in str(result.exception)
    assert not out.exists()
    for wrong, says in (
        (["--alternatives-column", "others"], "needs --per region"),
        (["--alternatives-column", "other", "--per", "region"], "no column 'other'"),
    ):
        result = run(items, *wrong)
        assert result.exit_code != 0
        assert says in result.output + str(result.exception)


def test_a_cell_of_another_encoding_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "items.csv"
    path.write_bytes(b"text,others\nthe man,caf\xe9\nthe man,boy\n")
    more = ["--per", "region", "--region", "man", "--alternatives-column", "others"]
    result = run(path, *more, "--on-error", "skip", "--json")
    assert result.exit_code == 3, result.output
    found = json.loads(result.stdout)
    assert [row["text"] for row in found["rows"]] == ["man", "boy"]
    assert "byte 0xE9, after 3 characters, is no UTF-8" in found["left_out"][0]
    assert "column 'others'" in found["left_out"][0]
