"""The requests that heal by guided decoding: what they force, count and refuse, in every host."""

import copy
import sys
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


class Parameters(SimpleNamespace):
    """vLLM's and TensorRT-LLM's `SamplingParams`, as far as they are read."""

    def clone(self) -> "Parameters":
        return copy.copy(self)


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


def parameters(host: str, **fields: Any) -> Any:
    """A host's own; "max" is its number of tokens."""
    if host == "sglang":
        return {{"max": "max_new_tokens"}.get(name, name): fields[name] for name in fields}
    own: dict[str, Any] = {"stop": [], "include_stop_str_in_output": False, "min_tokens": 0}
    names = ("structured_outputs", "guided_decoding", "logit_bias", "bad_token_ids")
    own |= {**dict.fromkeys(names), "max_tokens": fields.pop("max", None)}
    return Parameters(**own | fields)


def asked(host: str, prompt: Any, own: Any, rule: Any = "auto") -> tuple[GuidedRequest, Any]:
    """A request; the expression, number of tokens, stop strings and banned tokens in it."""
    if host == "sglang":
        request = sglang_request(prompt, INDEX, own, rule=rule)
        params = request.sampling_params
        names = ("regex", "max_new_tokens", "stop", "logit_bias")
        regex, most, stop, banned = map(params.get, names)
        return request, (regex, most, stop or [], [int(id) for id in banned or ()])
    if host == "vllm":
        request = vllm_request(prompt, INDEX, own, rule=rule)
        params, guide = request.sampling_params, request.sampling_params.structured_outputs
        banned = params.logit_bias
    else:
        request = tensorrt_llm_request(prompt, INDEX, own, rule=rule)
        params, guide = request.sampling_params, request.sampling_params.guided_decoding
        banned = params.bad_token_ids
    return request, (guide and guide.regex, params.max_tokens, params.stop or [], [*(banned or ())])


HOSTS = pytest.mark.parametrize("host", ["vllm", "sglang", "tensorrt_llm"])


@HOSTS
def test_an_engine_is_asked_for_the_forced_text(host: str) -> None:
    own = parameters(host, stop=["o", "->"], max=4)
    before = copy.copy(own)
    request, fields = asked(host, "-> No", own)
    # The forced text has an "o": the reader looks for that.
    assert (request.ids, fields) == ([0], (" No(.|\\n)*", 4 + len(" No"), ["->"], []))
    assert [request.text(ids) for ids in ([4, 7, 0], [1, 5, 6, 3], [4, 6])] == ["de<", "de", "de"]
    with pytest.raises(VocabularyError, match="must go on with"):
        request.text([3])
    whole, _ = asked(host, [0], own)
    assert (whole.ids, own) == ([0], before)
    assert asked(host, "-> No", parameters(host, max=1))[0].text([1, 2, 3, 0]) == "de"


@HOSTS
def test_control_tokens_that_look_like_the_forced_text_are_banned(host: str) -> None:
    assert asked(host, "-><", parameters(host), 1)[1][3] == [11]


@HOSTS
def test_a_cut_inside_a_character_comes_earlier(host: str) -> None:
    request, (regex, *_) = asked(host, "->é", parameters(host), 1)
    assert (request.ids, regex) == ([0], "é(.|\\n)*")
    with pytest.raises(VocabularyError, match="whole characters"):
        asked(host, [0, 8], parameters(host), 1)


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("vllm", "structured_outputs"),
        ("tensorrt_llm", "guided_decoding"),
        *(("sglang", name) for name in ("json_schema", "regex", "ebnf", "structural_tag")),
    ],
)
def test_grammars_of_ones_own_are_refused_where_something_is_forced(host: str, name: str) -> None:
    own = parameters(host, **{name: SimpleNamespace(regex="a")})
    with pytest.raises(SettingError, match=f"{name} begins at the first token"):
        asked(host, "-> No", own)
    assert asked(host, "-> No", own, "off")[0].ids == [0, 1, 2]
