"""Requests that are refused: the status and the field, in every dialect, before the model works."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from charwise import CharLM
from charwise.serve.app import Settings, application
from charwise.tokens.vocabulary import Vocabulary

V1, CHAT, INFILL, LLAMA = "/v1/completions", "/v1/chat/completions", "/infill", "/completion"
DIALECTS = (V1, LLAMA, INFILL)
HELLO = [{"role": "user", "content": "hello"}]
STREAM = {"prompt": "a", "stream": True}
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
XML, OUTPUTS = {"type": "xml"}, "structured_outputs"

#: Path, body, and the field that is named.
REFUSED: list[tuple[str, Any, str | None]] = [
    # Nothing is asked.
    *[(path, None, "prompt") for path in (V1, LLAMA, "/v1/next", "/v1/covering", "/v1/steps")],
    *[(path, {"max_tokens": 3}, "prompt") for path in (V1, LLAMA)],
    *[(CHAT, None, "messages"), (INFILL, None, "input_prefix"), ("/v1/score", None, "text")],
    *[(V1, {"prompt": []}, "prompt"), (CHAT, {"messages": []}, "messages")],
    # Out of range, or of another type.
    *[(path, [1], None) for path in (V1, CHAT, INFILL, LLAMA, "/v1/score")],
    *[(path, {"prompt": [[999_999]]}, "prompt") for path in (V1, LLAMA)],
    *[("/detokenize", {"tokens": [id]}, "tokens") for id in (-1, 999_999)],
    (V1, {"prompt": "a b " * 4000}, "prompt"),
    (V1, {"prompt": "a " * 2047, "token_healing": False}, "prompt"),
    *[(V1, {"prompt": "a", "max_tokens": -1}, "max_tokens"), (V1, {"prompt": "a", "n": 0}, "n")],
    *[(V1, {"prompt": "a", "n": 10_000}, "n"), (V1, {"prompt": "a", "top_p": 0.0}, "top_p")],
    *[(path, {"prompt": "a", "temperature": -1}, "temperature") for path in DIALECTS],
    *[(path, {"prompt": "a", "until": "page"}, "until") for path in DIALECTS],
    *[(path, {"prompt": "a", "threshold": 2}, "threshold") for path in DIALECTS],
    *[(V1, {"prompt": "a", "stop": stop}, "stop") for stop in ("", ["a", ""])],
    (V1, {"prompt": "a", "seed": -5}, "seed"),
    *[(LLAMA, {"prompt": "a", name: 0}, name) for name in ("n", "n_cmpl")],
    *[(V1, {"prompt": prompt}, "prompt") for prompt in ([1, "a"], [[1], "a"], [[1.0]], [None], 5)],
    # Python takes true for 1, and 1 for true.
    *[(path, {"prompt": [True]}, "prompt") for path in (V1, LLAMA)],
    *[("/tokenize", None, "content"), ("/detokenize", None, "tokens")],
    ("/detokenize", {"tokens": [True]}, "tokens"),
    ("/tokenize", {"content": "a", "parse_special": True}, "parse_special"),
    *[(path, {"prompt": [[1, True]]}, "prompt") for path in (V1, LLAMA)],
    *[(V1, {"prompt": "a", name: True}, name) for name in ("max_tokens", "n", "seed", "logprobs")],
    *[(path, {"prompt": "a", "temperature": True}, "temperature") for path in DIALECTS],
    *[(LLAMA, {"prompt": "a", name: False}, name) for name in ("n_predict", "seed")],
    ("/v1/next", {"prompt": "a", "top": True}, "top"),
    *[(path, {"prompt": "a", "token_healing": 1}, "token_healing") for path in DIALECTS],
    # Half of an emoji.
    *[(INFILL, raw, None) for raw in (rb'{"prompt": "\ud83d"}', rb'{"prompt": "\ude00"}')],
    *[(LLAMA, {"prompt": [5, [6]]}, "prompt"), (INFILL, {"prompt": ["a", "b"]}, "prompt")],
    (INFILL, {"prompt": "a", "input_extra": "a.py"}, "input_extra"),
    (INFILL, {"prompt": "a", "n_cmpl": -1}, "n_cmpl"),
    (CHAT, {"messages": IMAGE}, "messages"),
    ("/v1/steps", {"prompt": "a" * 8_001}, "prompt"),
    *[("/v1/score", {"text": "a", name: "é" * 2**19 + "a"}, name) for name in ("text", "context")],
    # They do not go together.
    (V1, {"prompt": "a", "best_of": 5}, "best_of"),
    (V1, {"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options"),
    (CHAT, {"messages": HELLO, "top_logprobs": 2}, "top_logprobs"),
    (CHAT, {"messages": HELLO, "suffix": "x"}, "suffix"),
    (
        CHAT,
        {"messages": HELLO, "continue_final_message": True, "add_generation_prompt": True},
        "continue_final_message",
    ),
    (V1, {"prompt": "a", "grammar": "x", "suffix": "b"}, "suffix"),
    (INFILL, {"prompt": "a", "grammar": "x", "input_suffix": "b"}, "input_suffix"),
    # This model has no chat template.
    (CHAT, {"messages": HELLO}, "messages"),
    # They change an answer, and are not read.
    *[(path, {"prompt": "a", "logit_bias": {"5": 1}}, "logit_bias") for path in DIALECTS],
    *[(path, {"prompt": "a", "presence_penalty": 1}, "presence_penalty") for path in (V1, LLAMA)],
    *[(path, {"prompt": "a", "mode": "healed"}, "mode") for path in DIALECTS],
    *[(LLAMA, {"prompt": "a", name: 1}, name) for name in ("n_probs", "return_tokens")],
    *[(LLAMA, {"prompt": "a", name: True}, name) for name in ("best_of", "num_beams")],
    (V1, {"prompt": "a", "add_special_tokens": False}, "add_special_tokens"),
    (V1, {"prompt": "a", "temperature": 0.8, "min_p": 0.05}, "min_p"),
    (V1, {"prompt": "a", "input_extra": [{"text": "a"}]}, "input_extra"),
    (V1, {"prompt": "a", "prompt_logprobs": 1}, "prompt_logprobs"),
    (CHAT, {"messages": HELLO, "chat_template": "{{ 1 }}"}, "chat_template"),
    *[(V1, {"prompt": "a", "token_healing": no}, "token_healing") for no in (0, "word", 2)],
    (V1, {"prompt": "a", "suffix": "b", "token_healing": False}, "token_healing"),
    (V1, {"prompt": "a", "echo": True, "logprobs": 1, "token_healing": False}, "token_healing"),
    (CHAT, {"messages": HELLO, "tools": [{"type": "function"}]}, "tools"),
    *[
        (path, {"prompt": "a", name: "a"}, name)
        for path in (V1, LLAMA, INFILL)
        for name in (
            *("guided_whitespace_pattern", "guided_regex", "guided_json", "parse_special"),
            *("disable_any_whitespace", "banned_tokens", "stop_regex", "return_token_ids"),
            *("ebnf", "format", "ignore_eos", "tools", "documents", "tool_choice"),
            *("function_call", "reasoning_effort", "modalities", "stop_sequences"),
            *("length_penalty", "max_new_tokens", "penalty_alpha", "num_beams"),
            *("repetition_detection", "thinking_token_budget", "return_progress"),
            "timings_per_token",
        )
    ],
    *[
        (path, {"prompt": "a", "temperature": 1, name: 0.5}, name)
        for path in DIALECTS
        for name in ("epsilon_cutoff", "eta_cutoff", "skew", "nsigma", "typical")
    ],
    *[(path, {"prompt": "a", "max_new_tokens": 0}, "max_new_tokens") for path in DIALECTS],
    (V1, {"prompt": "a", "skip_special_tokens": False}, "skip_special_tokens"),
    *[
        (LLAMA, {"prompt": "a", name: 2}, name)
        for name in ("best_of", "logprobs", "top_logprobs", "suffix", "stream_options")
    ],
    (LLAMA, {"prompt": "a", "max_completion_tokens": 0}, "max_completion_tokens"),
    (INFILL, {"prompt": "a", "max_completion_tokens": 3}, "max_completion_tokens"),
    *[
        (CHAT, {"messages": HELLO, name: value}, name)
        for name, value in (
            *[("documents", [{"text": "a"}]), ("tool_choice", "required")],
            *[("tool_choice", {"type": "function"}), ("reasoning_effort", "high")],
            ("function_call", {"name": "a"}),
            ("modalities", ["text", "audio"]),
        )
    ],
    *[
        (path, {"prompt": "a", OUTPUTS: {"regex": "a", name: True}}, OUTPUTS)
        for path in (V1, LLAMA)
        for name in ("disable_any_whitespace", "whitespace_pattern", "jsn")
    ],
    (V1, STREAM | {"stream_options": {"continuous_usage_stats": True}}, "stream_options"),
    ("/v1/next", {"prompt": "a", "tolerance": 0.01}, "tolerance"),
    ("/v1/score", {"text": "a", "preset": "accurate"}, "preset"),
    ("/v1/covering", {"prompt": "a", "topp": 3}, "topp"),
    # Forms that are none.
    *[(V1, {"prompt": "a", OUTPUTS: form}, OUTPUTS) for form in ({}, {"json_object": False})],
    (V1, {"prompt": "a", OUTPUTS: {"regex": ""}}, OUTPUTS),
    (V1, {"prompt": "a", OUTPUTS: {"choice": []}}, OUTPUTS),
    (LLAMA, {"prompt": "a", "json_schema": False}, "json_schema"),
    (V1, {"prompt": "a", OUTPUTS: {"regex": "("}}, OUTPUTS),
    (V1, {"prompt": "a", "grammar": "a", OUTPUTS: {"regex": "a"}}, "grammar"),
    (LLAMA, {"prompt": "a", "grammar": 'root ::= "a"', "json_schema": {}}, "json_schema"),
    (LLAMA, {"prompt": "a", "grammar": "root ::= ("}, "grammar"),
    (LLAMA, {"prompt": "a", "grammar": 'root ::= "a" | b'}, "grammar"),
    (V1, {"prompt": "a", "response_format": {"type": "json_schema"}}, "response_format"),
    *[(path, {"prompt": "a", "response_format": XML}, "response_format") for path in (V1, LLAMA)],
    (V1, {"prompt": "a", OUTPUTS: {"json": {"const": float("nan")}}}, OUTPUTS),
    (V1, {"prompt": "a", OUTPUTS: {"json": '{"const": NaN}'}}, OUTPUTS),
    (V1, {"prompt": "a", OUTPUTS: {"json": {"$schema": 5}}}, OUTPUTS),
    (V1, {"prompt": "a", OUTPUTS: {"json": {"const": 10**400}}}, OUTPUTS),
]  # fmt: skip


@pytest.fixture(scope="module")
def server(lm: CharLM) -> Any:
    with TestClient(application(lm, Settings()), base_url="http://127.0.0.1") as client:
        yield client


@pytest.mark.parametrize(("path", "body", "field"), REFUSED)
def test_a_refusal_names_the_field(
    server: TestClient, path: str, body: Any, field: str | None
) -> None:
    content = body or b""
    if not isinstance(content, bytes):
        content = json.dumps(body).encode()  # NaN too, which clients refuse
    calls = server.app.state.engine.model.counts["model_calls"]  # type: ignore[attr-defined]
    answer = server.post(path, content=content)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", field)
    last = {**(body if isinstance(body, dict) else {})}.get(OUTPUTS, {})
    assert all(name in error["message"] for name in list(last)[1:])
    assert server.app.state.engine.model.counts["model_calls"] == calls  # type: ignore[attr-defined]


SHORT = {"prompt": "a", "n_predict": 2}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (V1, {"prompt": "a", "token_healing": True, "logit_bias": {}, "presence_penalty": 0}),
        (V1, {"prompt": "a", "ebnf": "", "tools": [], "ignore_eos": False, "min_p": 0.05}),
        (LLAMA, SHORT | {"token_healing": "auto", "repeat_penalty": 1.0, "mirostat": 0}),
        (LLAMA, SHORT | {"grammar": "", "json_schema": ""}),  # llama.cpp's none
        (V1, {"prompt": "a", "max_tokens": "2", "temperature": "0", "n": "1"}),  # as pydantic reads
        (
            V1,
            {"prompt": "a", "structured_outputs": {"regex": "a", "disable_any_whitespace": False}},
        ),
        (INFILL, {"input_suffix": "b", "n_predict": 0, "lora": [], "mode": "exact"}),
        (V1, STREAM | {"stream_options": {"continuous_usage_stats": False}}),
        (V1, {"prompt": "", "max_tokens": 1, "skip_special_tokens": True, "num_beams": 1}),
        (LLAMA, {"prompt": "a", "n_predict": 1, "best_of": 1, "suffix": "", "logprobs": None}),
        (V1, {"prompt": "a", "tool_choice": "auto", "function_call": "none", "documents": []}),
        (V1, {"prompt": "a", "modalities": ["text"], "length_penalty": 1.0, "penalty_alpha": 0}),
        (V1, {"prompt": "a", "temperature": 1, "typical": 1, "epsilon_cutoff": 0, "nsigma": 0}),
    ],
)
def test_fields_that_change_nothing_are_taken(server: TestClient, path: str, body: Any) -> None:
    assert server.post(path, json=body).status_code == 200


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("disable_any_whitespace", '{"whitespace_flexible": false}'),
        ("whitespace_pattern", '{"whitespace_pattern": "…"}'),
    ],
)
def test_the_whitespace_of_json_is_said_in_the_schema(
    server: TestClient, name: str, option: str
) -> None:
    body = {"prompt": "a", "max_tokens": 1}
    for more in ({name: True}, {OUTPUTS: {"json": {}, name: True}}):
        error = server.post(V1, json=body | more).json()["error"]
        assert f'"x-guidance": {option}' in error["message"]
    schema = {"type": "object", "x-guidance": json.loads(option.replace("…", " "))}
    assert server.post(V1, json=body | {OUTPUTS: {"json": schema}}).status_code == 200


def test_a_compressed_body_is_refused(server: TestClient) -> None:
    for coding, status in (("gzip", 415), ("identity", 200)):
        content = b'{"prompt": "a", "max_tokens": 1}'
        answer = server.post(V1, content=content, headers={"content-encoding": coding})
        assert answer.status_code == status
        assert status == 200 or coding in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (V1, {"prompt": "a b\n"}, 400),
        (V1, {"prompt": "a b\n", "token_healing": False}, 400),
        (LLAMA, {"prompt": "a b\n", "n_predict": 1}, 200),
        (INFILL, {"input_prefix": "a b\n", "input_suffix": "a b\n", "n_predict": 1}, 200),
        ("/v1/next", {"prompt": "a b\n"}, 200),
    ],
)
def test_what_no_window_holds_is_not_encoded(
    server: TestClient, monkeypatch: pytest.MonkeyPatch, path: str, body: Any, status: int
) -> None:
    lm = server.app.state.engine.lm  # type: ignore[attr-defined]
    longest = lm.engine.window * lm.vocabulary.max_token_bytes
    sizes, encode = [0], Vocabulary.encode

    def counted(self: Vocabulary, text: str | bytes) -> list[int]:
        sizes.append(len(text))
        return encode(self, text)

    monkeypatch.setattr(Vocabulary, "encode", counted)
    long = {name: one * (longest // 2) if one == "a b\n" else one for name, one in body.items()}
    answer = server.post(path, json=long)
    assert answer.status_code == status
    assert max(sizes) <= longest
    if status == 400:
        assert str(longest) in answer.json()["error"]["message"]
        assert answer.json()["error"]["param"] == "prompt"


def test_the_newer_name_of_max_tokens_is_obeyed(server: TestClient) -> None:
    body = {"prompt": "import ", "max_tokens": 9, "max_completion_tokens": 1}
    assert server.post(V1, json=body).json()["usage"]["completion_tokens"] == 1


def test_the_openapi_page_has_the_fields_of_every_request(server: TestClient) -> None:
    assert server.get("/docs").status_code == 200
    document = server.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    posted = {path: one["post"] for path, one in document["paths"].items() if "post" in one}
    for path, _, field in REFUSED:
        schema = posted[path]["requestBody"]["content"]["application/json"]["schema"]
        assert not field or field in schema["properties"] or field not in ("prompt", "messages")
    for name in json.dumps(document).split("#/components/schemas/")[1:]:
        assert name.partition('"')[0] in schemas
