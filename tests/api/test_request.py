"""Requests in OpenAI's form, limits, keys and errors."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from charwise.api.errors import HTTPError, to_http_error
from charwise.api.request import CheckedSettings, CompletionRequest
from charwise.api.writer import _unspelled, finite, spelled
from charwise.errors import LimitError, SettingError
from models import examples


def test_prompts() -> None:
    assert CompletionRequest(prompt=[[1], [2]]).prompts == [[1], [2]]
    assert CompletionRequest(prompt=[1, 2]).prompts == [[1, 2]]
    with pytest.raises(HTTPError, match="more than 256 prompts"):
        _ = CompletionRequest(prompt=["a"] * 257).prompts


def test_the_status_of_an_error() -> None:
    cases: list[tuple[Exception, int, str]] = [
        (SettingError("no."), 400, "invalid_request_error"),
        (LimitError("too long."), 400, "invalid_request_error"),
        (HTTPError(502, "gone."), 502, "bad_gateway_error"),
        (HTTPError(504, "late."), 504, "timeout_error"),
        (HTTPError(429, "later."), 429, "rate_limit_error"),
        (RuntimeError("broken."), 500, "server_error"),
    ]
    for error, status, kind in cases:
        body = to_http_error(error).body["error"]
        assert (body["code"], body["type"]) == (status, kind)
    with pytest.raises(ValidationError) as caught:
        CompletionRequest(max_tokens=-1)
    assert to_http_error(caught.value).param == "max_tokens"


def test_wrong_settings_are_errors_of_ours() -> None:
    class Some(CheckedSettings):
        seconds: float = 1.0

    for wrong in ({"seconds": "1"}, {"minutes": 1}, {"seconds": float("nan")}):
        with pytest.raises(SettingError, match=next(iter(wrong))):
            Some(**wrong)


def test_the_impossible_alone_is_9999() -> None:
    numbers = (-11_276.285, -9999.0, 0.0, 20_000.0)
    assert tuple(map(finite, numbers)) == numbers
    assert (finite(-math.inf), finite(math.inf)) == (-9999.0, 9999.0)


@given(st.binary() | st.from_regex(rb"bytes:(\\x[0-9a-f]{2})+", fullmatch=True))
@examples(200)
def test_spelled_bytes_are_read_back(raw: bytes) -> None:
    assert _unspelled(spelled(raw)) == raw
