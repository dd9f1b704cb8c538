"""`charwise complete` under a constraint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from charwise.cli.app import app

pytest.importorskip("llguidance")


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["complete", *arguments], env={"COLUMNS": "100"})
    assert result.exit_code == code, result.output
    return result.output


def test_a_regular_expression_with_the_probabilities_of_both() -> None:
    shown = run("Answer: ", "--regex", r"(yes|no)\.")
    assert "yes." in shown
    assert "no." in shown
    assert "all of it added up" in shown
    answer = json.loads(run("Answer: ", "--regex", r"(yes|no)\.", "--json"))
    assert sum(one["prob"] for one in answer["global"]) == pytest.approx(1)
    assert {one["text"] for one in answer["global"]} == {"yes.", "no."}
    assert answer["local"][0]["text"] in ("yes.", "no.")
    assert answer["constraint_logprob"] < 0
    assert answer["effective"] is None  # nothing was sampled


def test_what_is_not_small_is_sampled() -> None:
    answer = json.loads(
        run("x = ", "--regex", "[0-9]{4}", "--particles", "20", "--json", "--seed", "3")
    )
    assert all(one["text"].isdigit() and len(one["text"]) == 4 for one in answer["global"])
    assert 1 <= answer["effective"] <= 20
    shown = run("x = ", "--regex", "[0-9]{4}", "--particles", "20", "-n", "3")
    assert "effective sample size" in shown


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_files(tmp_path: Path, encoding: str) -> None:
    """A byte order mark is no part of a schema or a grammar."""
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.lark"
    schema.write_text('{"enum": ["größe", 3]}', encoding=encoding)
    grammar.write_text('start: "(" /[a-z]/ ")"', encoding=encoding)
    found = json.loads(run("x = ", "--json-schema", str(schema), "--json"))["global"]
    assert {json.loads(one["text"]) for one in found} == {"größe", 3}
    found = json.loads(run("f", "--grammar", str(grammar), "--json"))["global"]
    assert all(one["text"][0] == "(" and one["text"][-1] == ")" for one in found)


@pytest.mark.slow
def test_json_is_valid(tmp_path: Path) -> None:
    pytest.importorskip("jsonschema")
    schema = tmp_path / "schema.json"
    schema.write_text(
        '{"type": "array", "items": {"enum": ["2021-02-28", "2021-02-29", "2021-02-30"], '
        '"type": "string", "format": "date"}, "minItems": 2, "maxItems": 2, '
        '"x-guidance": {"whitespace_flexible": false}}'
    )
    prompt = 'x = ["2021-02-29", "2021-02-30"]\nx = '
    for more in ([], ["-n", "4"]):
        answer = json.loads(run(prompt, "--json-schema", str(schema), "--json", *more))
        texts = [json.loads(one["text"]) for one in answer["local"] + answer["global"]]
        assert texts == [["2021-02-28", "2021-02-28"]] * len(texts)
        assert {one["finish"] for one in answer["local"]} == {"constraint"}
    schema.write_text('{"items": {"const": 9007199254740993}}')
    result = CliRunner().invoke(app, ["complete", "x = ", "--json-schema", str(schema)])
    assert result.exit_code != 0
    said = " ".join((result.output + str(result.exception)).split())
    assert "const 9007199254740993 cannot be matched exactly" in said
