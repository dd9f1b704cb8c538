"""The requests that heal by guided decoding: what they force, count and refuse."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from charwise import SortedVocabulary, Vocabulary
from charwise.errors import SettingError, VocabularyError
from charwise.healing.guided import (
    GuidedRequest,
    sglang_request,
    tensorrt_llm_request,
    vllm_request,
)

VOCABULARY = Vocabulary.from_bytes(
    [b"->", b" ", b"No", b"de", b" Node", b"N", b"o", b"<", b"\xc3", b"\xa9", b"\xa9x", None],
    special={11: "<|end|>"},
)
INDEX = SortedVocabulary(VOCABULARY)
REGEX = " No(.|\\n)*"


class Parameters(SimpleNamespace):
    """vLLM's and TensorRT-LLM's `SamplingParams`, as far as they are read."""

    def clone(self) -> Parameters:
        return copy.copy(self)


def parameters(**fields: Any) -> Parameters:
    own: dict[str, Any] = {"stop": [], "include_stop_str_in_output": False, "min_tokens": 0}
    own |= {"max_tokens": 4, "structured_outputs": None, "logit_bias": None}
    own |= {"guided_decoding": None, "bad_token_ids": None}
    return Parameters(**(own | fields))


@pytest.fixture(autouse=True)
def engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one class that is taken from vLLM, and the one from TensorRT-LLM."""
    for name, kind in (
        ("vllm.sampling_params", "StructuredOutputsParams"),
        ("tensorrt_llm.llmapi", "GuidedDecodingParams"),
    ):
        module = ModuleType(name)
        setattr(module, kind, SimpleNamespace)
        monkeypatch.setitem(sys.modules, name.split(".")[0], ModuleType(name.split(".")[0]))
        monkeypatch.setitem(sys.modules, name, module)


HOSTS = {
    "vllm": (vllm_request, lambda params: params.structured_outputs.regex),
    "tensorrt_llm": (tensorrt_llm_request, lambda params: params.guided_decoding.regex),
}


@pytest.mark.parametrize("host", HOSTS)
def test_an_engine_is_asked_for_the_forced_text(host: str) -> None:
    request_of, regex_of = HOSTS[host]
    own = parameters(stop=["o", "de"])
    request = request_of("-> No", INDEX, own)
    params = request.sampling_params
    assert request.ids == [0]
    assert regex_of(params) == REGEX
    assert (params.max_tokens, own.max_tokens) == (4 + len(" No"), 4)
    assert (
        not params.stop or "o" not in params.stop
    )  # the forced text has it: the reader looks for it
    assert request.text([4]) == ""  # "de" ends the new text
    assert request_of("-> No", INDEX, parameters(max_tokens=1)).text([1, 2, 3, 0]) == "de"
    assert request_of([0], INDEX, own).sampling_params == own


def test_sglang_is_asked_for_the_forced_text() -> None:
    sampling = {"max_new_tokens": 2, "stop": "x", "n": 3}
    request = sglang_request("-> No", INDEX, sampling)
    own = {"max_new_tokens": 5, "stop": ["x"], "n": 3, "regex": REGEX}
    assert (request.ids, request.sampling_params) == ([0], own)
    assert request.text([4, 0, 0]) == "de->"
    whole = sglang_request([0], INDEX, sampling)
    assert (whole.ids, whole.sampling_params) == ([0], sampling)


def test_control_tokens_that_look_like_the_forced_text_are_banned() -> None:
    assert vllm_request("-><", INDEX, parameters(), rule=1).sampling_params.logit_bias == {
        11: -100.0
    }
    assert sglang_request("-><", INDEX, {}, rule=1).sampling_params["logit_bias"] == {"11": -100}
    request = tensorrt_llm_request("-><", INDEX, parameters(bad_token_ids=[3]), rule=1)
    assert request.sampling_params.bad_token_ids == [3, 11]


def test_a_cut_inside_a_character_comes_earlier() -> None:
    request = sglang_request("->é", INDEX, {}, rule=1)
    assert request.ids == [0]
    assert request.sampling_params["regex"] == "é(.|\\n)*"
    with pytest.raises(VocabularyError, match="whole characters"):
        sglang_request([0, 8], INDEX, {}, rule=1)


def test_every_completion_of_a_prompt_is_read_for_itself() -> None:
    request = sglang_request("-> No", INDEX, {"max_new_tokens": 2, "stop": "x"})
    texts = [request.text(ids) for ids in ([4, 7, 0], [1, 5, 6, 3], [1, 2, 8, 10])]
    assert texts == ["de<", "de", "é"]
    assert request.continuation() is not request.continuation()
    with pytest.raises(VocabularyError, match="must go on with"):
        request.text([3])


@pytest.mark.parametrize(
    ("request_of", "own", "name"),
    [
        (vllm_request, parameters(structured_outputs="a"), "structured_outputs"),
        (tensorrt_llm_request, parameters(guided_decoding="a"), "guided_decoding"),
        *(
            (sglang_request, {kind: "a"}, kind)
            for kind in ("json_schema", "regex", "ebnf", "structural_tag")
        ),
    ],
)
def test_grammars_of_ones_own_are_refused_where_something_is_forced(
    request_of: Callable[..., GuidedRequest], own: Any, name: str
) -> None:
    with pytest.raises(SettingError, match=f"{name} begins at the first token"):
        request_of("-> No", INDEX, own)
    assert request_of("-> No", INDEX, own, rule="off").sampling_params == own
