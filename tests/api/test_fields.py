"""Fields that nothing reads: refused where they change the answer."""

from __future__ import annotations

import pytest

from charwise.api.errors import Refused
from charwise.api.request import CompletionRequest
from charwise.serve.dialect import check_unread
from charwise.serve.llama_cpp import _CompletionBody, _InfillBody

CHANGING = {
    "tools": [{"type": "function"}],
    "ebnf": 'root ::= "a"',
    "messages": [{"role": "user", "content": "a"}],
    "logit_bias": [[5, -100]],
    "presence_penalty": -0.5,
    "repeat_penalty": 1.1,
    "ignore_eos": True,
    "mode": "healed",
    "format": "json",
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


@pytest.mark.parametrize("kind", [CompletionRequest, _CompletionBody, _InfillBody])
@pytest.mark.parametrize("name", list(CHANGING))
def test_a_field_that_changes_the_answer_is_refused_by_its_name(kind: type, name: str) -> None:
    with pytest.raises(Refused, match=name) as caught:
        check_unread(kind.model_validate({"prompt": "a", name: CHANGING[name]}))
    assert (caught.value.status, caught.value.param) == (400, name)


@pytest.mark.parametrize("kind", [CompletionRequest, _CompletionBody, _InfillBody])
def test_a_field_that_changes_nothing_is_ignored(kind: type) -> None:
    check_unread(kind.model_validate({"prompt": "a", **NEUTRAL}))


def test_samplers_count_where_tokens_are_drawn() -> None:
    with pytest.raises(Refused, match="min_p"):
        check_unread(CompletionRequest(temperature=0.8, min_p=0.05))


def test_a_field_of_another_dialect_is_not_passed_over() -> None:
    with pytest.raises(Refused, match="input_extra"):
        check_unread(CompletionRequest.model_validate({"input_extra": [{"text": "a"}]}))
