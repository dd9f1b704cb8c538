"""Requests that are refused: the status and the field, in every dialect, before the model works."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from charwise import CharLM
from charwise.tokens.vocabulary import Vocabulary
from serving import Running

V1, CHAT, INFILL, LLAMA = "/v1/completions", "/v1/chat/completions", "/infill", "/completion"
DIALECTS = (V1, LLAMA, INFILL)
HELLO = [{"role": "user", "content": "hello"}]
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
BOTH = {"continue_final_message": True, "add_generation_prompt": True}
FORMS = "structured_outputs"
WHITESPACE = ("disable_any_whitespace", "whitespace_pattern")
SCHEMA = {"x-guidance": {"whitespace_flexible": False, "whitespace_pattern": " "}}

#: Path, what a body has besides its text, and the field that is named.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    # Out of range, or of another type; Python takes true for 1, and 1 for true.
    *[(V1, {"prompt": prompt}, "prompt") for prompt in ([], [[1], "a"], [True], ["a"] * 257)],
    *[(path, {"prompt": [[999_999]]}, "prompt") for path in DIALECTS],
    *[(V1, {"prompt": "a " * 2047, "token_healing": heal}, "prompt") for heal in (True, False)],
    ("/v1/steps", {"prompt": "a" * 8_001}, "prompt"),
    *[("/v1/score", {name: "é" * 2**19 + "a"}, name) for name in ("text", "context")],
    *[("/detokenize", {"tokens": [id]}, "tokens") for id in (-1, 999_999, True)],
    ("/tokenize", {"parse_special": True}, "parse_special"),
    *[(V1, {name: -5}, name) for name in ("max_tokens", "n", "top_p", "seed", "logprobs")],
    *[(path, {"temperature": odd}, "temperature") for path in DIALECTS for odd in (-1, True)],
    *[(path, {"until": "page"}, "until") for path in DIALECTS],
    (V1, {"token_healing": 1}, "token_healing"),
    *[(V1, {"stop": stop}, "stop") for stop in ("", ["a", ""])],
    (LLAMA, {"n_cmpl": 0}, "n_cmpl"),
    (INFILL, {"input_extra": "a.py"}, "input_extra"),
    *[(CHAT, {"messages": messages}, "messages") for messages in ([], IMAGE)],
    (CHAT, {}, "messages"),  # this model has no chat template
    # They do not go together.
    (V1, {"n": 2, "best_of": 5}, "best_of"),
    (V1, {"stream_options": {"include_usage": True}}, "stream_options"),
    (V1, {"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options"),
    *[(CHAT, {name: 2}, name) for name in ("top_logprobs", "echo")],
    (CHAT, BOTH, "continue_final_message"),
    (V1, {"grammar": "x", "suffix": "b"}, "suffix"),
    (INFILL, {"grammar": "x", "input_suffix": "b"}, "input_suffix"),
    (V1, {"suffix": "b", "token_healing": False}, "token_healing"),
    (V1, {"echo": True, "logprobs": 1, "token_healing": False}, "token_healing"),
    # They change an answer, and are not read; of some, an empty value does.
    *[(path, {name: "a"}, name) for path in DIALECTS for name in ("logit_bias", "tool_choice")],
    *[(path, {"max_new_tokens": 0}, "max_new_tokens") for path in DIALECTS],
    *[(path, {"temperature": 1, "min_p": 0.05}, "min_p") for path in DIALECTS],
    *[(V1, {name: False}, name) for name in ("add_special_tokens", "skip_special_tokens")],
    *[(LLAMA, {name: True}, name) for name in ("best_of", "logprobs", "suffix")],
    (CHAT, {"chat_template": "{{ 1 }}"}, "chat_template"),
    *[(f"/v1/{path}", {"tolerance": 0.1}, "tolerance") for path in ("next", "score", "covering")],
    # Forms that are none.
    *[(path, {FORMS: {"regex": "a", "jsn": True}}, FORMS) for path in (V1, LLAMA)],
    *[(V1, {FORMS: form}, FORMS) for form in ({}, {"regex": ""}, {"regex": "("}, {"choice": []})],
    *[(V1, {FORMS: {"json": {"const": odd}}}, FORMS) for odd in (float("nan"), 10**400)],
    *[(V1, {FORMS: {"json": odd}}, FORMS) for odd in ('{"const": NaN}', {"$schema": 5})],
    *[(LLAMA, {"grammar": grammar}, "grammar") for grammar in ("root ::= (", 'root ::= "a" | b')],
    (LLAMA, {"json_schema": False}, "json_schema"),
    (LLAMA, {"grammar": 'root ::= "a"', "json_schema": {}}, "json_schema"),
    *[(V1, {"response_format": {"type": it}}, "response_format") for it in ("json_schema", "xml")],
    # What they say of JSON's whitespace stands in the schema.
    *[(V1, {name: "a"}, name) for name in WHITESPACE],
    *[(V1, {FORMS: {"json": {}, name: True}}, FORMS) for name in WHITESPACE],
]

#: The text of a request, which is missing in one without it.
TEXTS: dict[str, dict[str, Any]] = {
    **{path: {"prompt": "a"} for path in (V1, LLAMA, "/v1/next", "/v1/covering", "/v1/steps")},
    CHAT: {"messages": HELLO},
    INFILL: {"input_prefix": "a"},
    "/v1/score": {"text": "a"},
    "/tokenize": {"content": "a"},
    "/detokenize": {"tokens": [1]},
}


Refuse = Callable[[str, bytes, str | None], str]


@pytest.fixture
def refuse(http: httpx.Client, running_server: Running) -> Refuse:
    """The message of a refusal, which names a field and costs no call."""
    counts = running_server.engine.model.counts

    def message_of(path: str, content: bytes, field: str | None) -> str:
        calls = counts["model_calls"]
        answer = http.post(path, content=content)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert (error["type"], error["param"]) == ("invalid_request_error", field)
        assert counts["model_calls"] == calls
        return str(error["message"])

    return message_of


@pytest.mark.parametrize(("path", "fields", "name"), REFUSED)
def test_a_refusal_names_the_field(refuse: Refuse, path: str, fields: Any, name: str) -> None:
    body = json.dumps(TEXTS[path] | fields)  # NaN too, which clients refuse
    message = refuse(path, body.encode(), name)
    assert "jsn" in message or "jsn" not in body
    assert ("x-guidance" in message) == ("whitespace" in body)


@pytest.mark.parametrize("path", TEXTS)
def test_a_body_without_a_text_or_of_no_object_is_refused(refuse: Refuse, path: str) -> None:
    [field] = TEXTS[path]
    for content in (b"", b'{"model": "m"}'):
        refuse(path, content, field)
    for content in (b"[1]", b"{", rb'{"prompt": "\ud83d"}', rb'{"prompt": "\ude00"}'):
        refuse(path, content, None)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (V1, {"token_healing": True, "logit_bias": {}, "presence_penalty": 0, "num_beams": 1}),
        (V1, {"ebnf": "", "tools": [], "ignore_eos": False, "min_p": 0.05, "penalty_last_n": 0}),
        (V1, {"max_tokens": "2", "temperature": "0", "n": "1"}),  # as pydantic reads
        (V1, {FORMS: {"json": SCHEMA, "disable_any_whitespace": False}}),
        (V1, {"stream": True, "stream_options": {"continuous_usage_stats": False}}),
        (V1, {"tool_choice": "auto", "modalities": ["text"], "skip_special_tokens": True}),
        (V1, {"temperature": 1, "typical": 1, "epsilon_cutoff": 0, "nsigma": 0}),
        (LLAMA, {"token_healing": "auto", "repeat_penalty": 1.0, "grammar": "", "json_schema": ""}),
        (LLAMA, {"best_of": 1, "suffix": "", "logprobs": None}),
        (INFILL, {"input_suffix": "b", "n_predict": 0, "lora": [], "mode": "exact"}),
    ],
)
def test_fields_that_change_nothing_are_taken(http: httpx.Client, path: str, fields: Any) -> None:
    body = TEXTS[path] | {"max_tokens": 2} | fields
    assert http.post(path, json=body).status_code == 200


@pytest.mark.parametrize("path", [*DIALECTS, "/v1/next"])
def test_what_no_window_holds_is_not_encoded(
    http: httpx.Client, refuse: Refuse, lm: CharLM, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    sizes, encode = [0], Vocabulary.encode
    longest = lm.engine.window * lm.vocabulary.max_token_bytes
    text = "a b\n" * (longest // 2)

    def counted(self: Vocabulary, text: str | bytes) -> list[int]:
        sizes.append(len(text))
        return encode(self, text)

    monkeypatch.setattr(Vocabulary, "encode", counted)
    if path == V1:
        for more in ({}, {"token_healing": False}):
            body = json.dumps({"prompt": text} | more).encode()
            assert str(longest) in refuse(path, body, "prompt")
    else:
        sides = {"input_prefix": text, "input_suffix": text, "prompt": ""}
        body = sides if path == INFILL else {"prompt": text}
        body |= {} if path == "/v1/next" else {"n_predict": 1}
        assert http.post(path, json=body).is_success
    assert max(sizes) <= longest


def test_the_openapi_page_has_the_fields_of_every_request(http: httpx.Client) -> None:
    assert http.get("/docs").status_code == 200
    document = http.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    for path, fields in TEXTS.items():
        body = document["paths"][path]["post"]["requestBody"]["content"]
        assert set(fields) <= set(body["application/json"]["schema"]["properties"])
    for name in json.dumps(document).split("#/components/schemas/")[1:]:
        assert name.partition('"')[0] in schemas
