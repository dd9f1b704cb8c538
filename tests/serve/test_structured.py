"""Answers with a form, in every dialect, against the library's constraints."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from charwise.constraints import choices, json_schema, regex
from charwise.constraints.constraint import END
from serving import Running, text_of

pytest.importorskip("llguidance", reason="needs: pip install 'charwise[constraints]'")

SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["age"],
    "additionalProperties": False,
}
PROMPT = "person = "
WORD = "[ab]{2,3}"

V1 = "/v1/completions"
FORMS: list[tuple[str, dict[str, Any], str]] = [
    (V1, {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, "json"),
    (V1, {"response_format": {"type": "json_schema", "schema": SCHEMA}}, "json"),
    (V1, {"structured_outputs": {"grammar": 'root ::= "yes" | "no"'}}, "choice"),
    (V1, {"structured_outputs": {"json": json.dumps(SCHEMA)}}, "json"),
    (V1, {"structured_outputs": {"regex": WORD}}, "word"),
    (V1, {"structured_outputs": {"choice": ["yes", "no"]}}, "choice"),
    (V1, {"structured_outputs": {"grammar": 'start: "yes" | "no"'}}, "choice"),
    ("/completion", {"grammar": 'root ::= "yes" | "no"'}, "choice"),
    ("/completion", {"json_schema": SCHEMA}, "json"),
    *[("/completion", {"json_schema": every}, "any json") for every in ({}, True)],
    # A byte order mark is no part of a form.
    (V1, {"structured_outputs": {"grammar": '\ufeffroot ::= "yes" | "no"'}}, "choice"),
    (V1, {"structured_outputs": {"json": "\ufeff" + json.dumps(SCHEMA)}}, "json"),
]


def is_form(text: str, kind: str) -> bool:
    """Whether a text has a form, or a limit ended it where it could have gone on to have it."""
    constraint = {
        "json": json_schema(SCHEMA),
        "any json": json_schema({}),
        "word": regex(WORD),
        "choice": choices(["yes", "no"]),
    }
    after = constraint[kind].after(text.encode())
    return bool(after.allowed().any())


@pytest.mark.parametrize(("path", "form", "kind"), FORMS)
@pytest.mark.parametrize("temperature", [0, 1])
def test_an_answer_has_its_form(
    http: httpx.Client, path: str, form: dict[str, Any], kind: str, temperature: int
) -> None:
    body = {"prompt": PROMPT, "max_tokens": 64, "temperature": temperature, "seed": 3, **form}
    text = text_of(http, path, body)
    assert is_form(text, kind)
    if temperature == 0:
        whole = {"json": r'\s*\{\s*"age"\s*:\s*\d\d?\s*\}', "word": WORD, "choice": "yes|no"}
        assert re.fullmatch(whole.get(kind, r'(?s)\s*["\[{\-\dtfn].*'), text)


def test_it_is_what_the_library_draws(running_server: Running) -> None:
    [expected] = running_server.lm.complete(PROMPT, choices=["True", "None", "{}"])
    body = {"prompt": PROMPT, "structured_outputs": {"choice": ["True", "None", "{}"]}}
    result = httpx.post(running_server.url + V1, json=body, timeout=60).json()["choices"][0]
    assert result["text"] == expected.text
    assert result["finish_reason"] == "stop"


CHECKED: list[dict[str, Any]] = [
    {"type": "string", "pattern": "^2021-02-(28|29|30)$", "format": "date"},
    {"items": {"enum": [0, 1]}, "type": "array", "uniqueItems": True, "minItems": 2, "maxItems": 2},
]


@pytest.mark.parametrize("schema", CHECKED)
@pytest.mark.parametrize("temperature", [0, 1])
def test_json_that_fails_its_check_is_drawn_again(
    running_server: Running, schema: dict[str, Any], temperature: int
) -> None:
    """What llguidance alone allows is in no answer, and in no chunk of a stream."""
    query = {"prompt": "d = ", "max_tokens": 30, "temperature": temperature}
    query["structured_outputs"] = {"json": schema}
    for n, seed in ((1, 0), (1, 2), (12, 3)) if temperature else ((1, 0), (12, 3)):
        body = query | {"n": n, "seed": seed}
        choices = httpx.post(running_server.url + V1, json=body, timeout=60).json()["choices"]
        for one in choices:
            if one["charwise"]["finish"] not in ("length", "time"):  # which cut a text off
                assert json_schema(schema).after(one["text"]).allowed()[END], one
        sent = httpx.post(running_server.url + V1, json=body | {"stream": True}, timeout=60).text
        chunks = [json.loads(line[6:]) for line in sent.splitlines() if line.startswith("data: {")]
        texts = [one["text"] for chunk in chunks for one in chunk["choices"] if one["text"]]
        assert texts == [one["text"] for one in choices]
