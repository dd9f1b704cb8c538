"""Requests in OpenAI's form: as vLLM's own models read them, or left to the server behind."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from charwise.api.errors import Refused, UpstreamError, refusal_of
from charwise.api.http import admits
from charwise.api.limits import SERVER, CheckedSettings, Limits
from charwise.api.request import (
    CompletionRequest,
    LlamaCppRequest,
    Request,
    is_long_and_of_ids,
    parsed,
    texts_or_ids,
)
from charwise.errors import SearchLimitError, SettingError
from models import examples

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda part: (
        st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=4), part, max_size=2)
    ),
    max_leaves=5,
)


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=4))
@examples(200)
def test_fields_that_nobody_computes_with_stay_as_they_are(fields: dict[str, Any]) -> None:
    unknown = {name: value for name, value in fields.items() if name not in Request.model_fields}
    assert parsed(json.dumps(unknown).encode()) == unknown


@given(st.sampled_from(sorted(Request.model_fields)), JSON)
@examples(300)
def test_a_field_is_read_or_its_request_is_left_to_the_server(name: str, value: Any) -> None:
    read = parsed(json.dumps({name: value, "other": 1}).encode())
    assert read == {} or (set(read) == {name, "other"} and read["other"] == 1)
    if read and value is not None:
        assert Request.model_validate(read) == Request.model_validate({name: value, "other": 1})


@pytest.mark.parametrize(
    ("body", "read"),
    [
        ({"n": "8"}, {"n": 8}),
        ({"n": 8.0}, {"n": 8}),
        ({"n": 0.5}, {}),
        ({"n": "many"}, {}),
        ({"n": 0}, {}),
        ({"stream": "Yes"}, {"stream": True}),
        ({"stream": 0}, {"stream": False}),
        ({"stream": 2}, {}),
        ({"stop": [""]}, {}),
        ({"stop": ""}, {"stop": ""}),
        ({"stream_options": {"include_usage": "1"}}, {"stream_options": {"include_usage": True}}),
        ({"max_tokens": None}, {"max_tokens": None}),
    ],
)
def test_numbers_and_truth_values_as_vllm_takes_them(body: Any, read: Any) -> None:
    assert parsed(json.dumps(body).encode()) == read


def test_llama_cpp_takes_other_values() -> None:
    def read(**body: Any) -> Any:
        return parsed(json.dumps(body).encode(), LlamaCppRequest)

    assert read(max_tokens=-1) == {"max_tokens": -1}
    assert read(max_tokens=-2) == read(stream="true") == {}


def test_numbers_of_chat_are_read_like_those_of_completions() -> None:
    assert parsed(b'{"max_completion_tokens": "8"}') == {"max_completion_tokens": 8}
    for wrong in (b'"many"', b"[]", b"-1", b"0.5", b"{}"):
        assert parsed(b'{"max_completion_tokens": ' + wrong + b"}") == {}


@pytest.mark.parametrize("body", [b"", b"[]", b"5", b"{", b"\xff", b"9" * 5000])
def test_what_is_no_request_is_left_to_the_server(body: bytes) -> None:
    assert parsed(body) == {}


@pytest.mark.parametrize(
    ("body", "why"), [(b"[" * 100_000, "deeply"), (b'{"a": "\\ud800"}', "half")]
)
def test_what_servers_stumble_over_is_refused(body: bytes, why: str) -> None:
    with pytest.raises(SettingError, match=why):
        parsed(body)


def test_a_body_of_spaces_is_read_once() -> None:
    """Two repeats that meet in the pattern would take the square of this: hours."""
    assert not is_long_and_of_ids(b'{"prompt": [' + b" " * 2**20 + b'"a"]}')
    assert is_long_and_of_ids(b'{"prompt": [' + b" " * 2**20 + b"[ 5]]}")


def test_prompts() -> None:
    for prompt in ("", [], [""], ["a", 1], [[]], None, {}):
        assert texts_or_ids(prompt, with_ids=True) == []
    assert texts_or_ids([1, 2], with_ids=True) == [[1, 2]]
    assert texts_or_ids([1, 2], with_ids=False) == []
    assert CompletionRequest(prompt=[[1], [2]]).prompts == [[1], [2]]
    assert CompletionRequest(prompt=[1, 2]).prompts == [[1, 2]]
    with pytest.raises(Refused, match="more than 256 prompts"):
        _ = CompletionRequest(prompt=["a"] * 257).prompts


def test_limits() -> None:
    assert SERVER.exceeded(256, 64, ["a"] * 999, 1_000_000) is None
    assert SERVER.exceeded(1, 65, None, None) == "more than 64 completions of a prompt"
    together = Limits(together=4, stops=1)
    assert together.exceeded(2, 2, "long stop", None) is None
    assert together.exceeded(2, 3, None, None) == "more than 4 completions in one request"
    assert together.exceeded(1, 1, ["a", "b"], None) == "more than 1 stop strings"


def test_the_first_key_counts() -> None:
    shown = [(b"authorization", b"Bearer a"), (b"authorization", b"Bearer k")]
    assert admits(shown[1:], [b"k"])
    assert not admits(shown, [b"k"])


def test_the_status_of_an_error() -> None:
    cases: list[tuple[Exception, int, str]] = [
        (SettingError("no."), 400, "invalid_request_error"),
        (SearchLimitError("too long."), 400, "invalid_request_error"),
        (UpstreamError("gone."), 502, "bad_gateway_error"),
        (UpstreamError("late.", 504), 504, "timeout_error"),
        (Refused(429, "later."), 429, "rate_limit_error"),
        (RuntimeError("broken."), 500, "server_error"),
    ]
    for error, status, kind in cases:
        told = refusal_of(error).body["error"]
        assert (told["code"], told["type"]) == (status, kind)
    with pytest.raises(ValidationError) as caught:
        CompletionRequest(max_tokens=-1)
    assert refusal_of(caught.value).param == "max_tokens"


def test_wrong_settings_are_errors_of_ours() -> None:
    class Some(CheckedSettings):
        seconds: float = 1.0

    for wrong in ({"seconds": "1"}, {"minutes": 1}, {"seconds": float("nan")}):
        with pytest.raises(SettingError, match=next(iter(wrong))):
            Some(**wrong)
