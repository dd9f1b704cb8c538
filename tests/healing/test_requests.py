"""The requests that heal in SGLang and in vLLM: what they force, count and refuse."""

from __future__ import annotations

import copy
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from charwise import SortedVocabulary, Vocabulary
from charwise.errors import SettingError, VocabularyError
from charwise.healing import sglang, vllm

VOCABULARY = Vocabulary.from_bytes(
    [b"->", b" ", b"No", b"de", b" Node", b"N", b"o", b"<", b"\xc3", b"\xa9", b"\xa9x", None],
    special={11: "<|end|>"},
)
INDEX = SortedVocabulary(VOCABULARY)


class Parameters(SimpleNamespace):
    """vLLM's `SamplingParams`, as far as they are read."""

    def clone(self) -> Parameters:
        return copy.copy(self)


def parameters(**fields: Any) -> Parameters:
    own: dict[str, Any] = {"stop": [], "include_stop_str_in_output": False, "min_tokens": 0}
    own |= {"max_tokens": 4, "structured_outputs": None, "logit_bias": None}
    return Parameters(**(own | fields))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one class that is taken from vLLM."""
    module = ModuleType("vllm.sampling_params")
    module.StructuredOutputsParams = SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", module)


def test_vllm_is_asked_for_the_forced_text(engine: None) -> None:
    given = parameters(stop=["o", "de"])
    prompt, params, reader = vllm.heal_request("-> No", INDEX, given)
    assert prompt == {"prompt_token_ids": [0]}
    assert params.structured_outputs.regex == " No(.|\\n)*"
    assert (params.max_tokens, given.max_tokens) == (4 + len(" No"), 4)
    assert "o" not in params.stop  # the forced text has it: the reader looks for it
    assert reader.text([4]) == ""  # "de" ends the new text
    _, _, reader = vllm.heal_request("-> No", INDEX, parameters(max_tokens=1))
    assert reader.text([1, 2, 3, 0]) == "de"


def test_sglang_is_asked_for_the_forced_text() -> None:
    sampling = {"max_new_tokens": 2, "stop": "x", "n": 3}
    body, reader = sglang.heal_request("-> No", INDEX, sampling_params=sampling)
    own = {"max_new_tokens": 5, "stop": ["x"], "n": 3, "regex": " No(.|\\n)*"}
    assert body == {"input_ids": [0], "sampling_params": own}
    assert reader.text([4, 0, 0]) == "de->"
    whole = sglang.heal_request([0], INDEX, sampling_params=sampling).body
    assert whole == {"input_ids": [0], "sampling_params": sampling}


def test_control_tokens_that_look_like_the_forced_text_are_banned(engine: None) -> None:
    assert vllm.heal_request("-><", INDEX, parameters(), rule=1)[1].logit_bias == {11: -100.0}
    body, _ = sglang.heal_request("-><", INDEX, rule=1)
    assert body["sampling_params"]["logit_bias"] == {"11": -100}


def test_a_cut_inside_a_character_comes_earlier(engine: None) -> None:
    body, _ = sglang.heal_request("->é", INDEX, rule=1)
    assert body["input_ids"] == [0]
    assert body["sampling_params"]["regex"] == "é(.|\\n)*"
    with pytest.raises(VocabularyError, match="whole characters"):
        sglang.heal_request([0, 8], INDEX, rule=1)


@pytest.mark.parametrize("kind", ["json_schema", "regex", "ebnf", "structural_tag"])
def test_grammars_of_ones_own_are_refused_where_something_is_forced(
    engine: None, kind: str
) -> None:
    with pytest.raises(SettingError, match=f"{kind} begins at the first token"):
        sglang.heal_request("-> No", INDEX, sampling_params={kind: "a"})
    assert sglang.heal_request("-> No", INDEX, rule="off", sampling_params={kind: "a"})
    with pytest.raises(SettingError, match="structured_outputs begin"):
        vllm.heal_request("-> No", INDEX, parameters(structured_outputs="a"))
