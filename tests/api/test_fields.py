"""Fields that nothing reads: refused where they change the answer, listed where they do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charwise.api.errors import Refused
from charwise.api.request import CompletionRequest
from charwise.serve.http import _unread, _warning
from charwise.serve.llama_cpp import _CompletionBody, _InfillBody
from charwise.serve.ollama import _GenerateBody

CHANGING = {
    "tools": [{"type": "function"}],
    "ebnf": 'root ::= "a"',
    "messages": [{"role": "user", "content": "a"}],
    "logit_bias": [[5, -100]],
    "presence_penalty": -0.5,
    "repeat_penalty": 1.1,
    "ignore_eos": True,
}
NEUTRAL = {
    "ebnf": "",
    "tools": [],
    "logit_bias": [],
    "presence_penalty": 0.0,
    "repeat_penalty": 1.0,
    "ignore_eos": False,
    "min_p": 0.05,  # at temperature 0
    "user": "me",
}


@pytest.mark.parametrize("kind", [CompletionRequest, _CompletionBody, _InfillBody, _GenerateBody])
@pytest.mark.parametrize("name", list(CHANGING))
def test_a_field_that_changes_the_answer_is_refused_by_its_name(kind: type, name: str) -> None:
    with pytest.raises(Refused, match=name) as caught:
        _unread(kind.model_validate({"prompt": "a", name: CHANGING[name]}))
    assert (caught.value.status, caught.value.param) == (400, name)


@pytest.mark.parametrize("kind", [CompletionRequest, _CompletionBody, _InfillBody, _GenerateBody])
def test_a_field_that_changes_nothing_is_listed(kind: type) -> None:
    assert _unread(kind.model_validate({"prompt": "a", **NEUTRAL})) == list(NEUTRAL)


def test_samplers_count_where_tokens_are_drawn() -> None:
    with pytest.raises(Refused, match="min_p"):
        _unread(CompletionRequest(temperature=0.8, min_p=0.05))


def test_fields_of_an_object_are_named_with_it() -> None:
    assert _unread(_GenerateBody(options={"num_ctx": 8})) == ["options.num_ctx"]
    with pytest.raises(Refused, match=r"options\.mirostat"):
        _unread(_GenerateBody(options={"mirostat": 2}))


def test_a_field_of_another_dialect_is_not_passed_over() -> None:
    assert _unread(CompletionRequest.model_validate({"n_predict": 5})) == ["n_predict"]
    with pytest.raises(Refused, match="input_extra"):
        _unread(CompletionRequest.model_validate({"input_extra": [{"text": "a"}]}))


@given(st.lists(st.text(), min_size=1))
def test_the_header_can_be_sent(names: list[str]) -> None:
    name, value = _warning(names)
    assert name == b"warning"
    assert all(32 <= byte < 127 for byte in value)
    assert value.count(b'"') == 2
    assert len(value) < 20_000
