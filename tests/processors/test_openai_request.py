"""Completion requests as clients send them: planned, passed on with a reason, or refused."""

from __future__ import annotations

import json
import math
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from charwise import SortedVocabulary, Vocabulary
from charwise.api.request import HEAL, parsed
from charwise.errors import CharwiseError, ContextLengthError, SettingError
from charwise.models import EMBEDDED
from charwise.processors.openai.upstream import Outcome
from charwise.processors.vllm import exact_answers
from charwise.processors.vllm.openai_request import FEW, plan
from charwise.processors.vllm.prompts import Served
from charwise.processors.vllm.settings import FORCED, Limits, Settings, sampling, whether
from charwise.processors.vllm.structured import with_literal
from models import examples
from sentinels import tokenizer_with

PROMPT = "def check(value):\n    raise ValueErr"
LIMITS = Limits(64, 4, 8, 4, frozenset({"regex", "choice", "grammar"}), clamps=True)


@cache
def model() -> Served:
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    return Served(tokenizer, SortedVocabulary(Vocabulary.from_transformers(tokenizer)))


def planned(limits=LIMITS, **fields):
    return plan(model(), limits, {"prompt": PROMPT, **fields})


ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "a", "8", "-1", "auto", "off", "word", PROMPT, "\ud800", "é" * 40]),
    lambda part: (
        st.lists(part, max_size=4)
        | st.dictionaries(
            st.sampled_from(["regex", "choice", "json", "type", "include_usage", "charwise_heal"]),
            part,
            max_size=2,
        )
    ),
    max_leaves=6,
)
FIELDS = ["prompt", "max_tokens", "min_tokens", "n", "stop", "stream", "stream_options", "echo",
          "logprobs", "vllm_xargs", "structured_outputs", "response_format", "suffix",
          "add_special_tokens", "request_id", "skip_special_tokens"]  # fmt: skip


def stands_around(text: bytes, prompt: bytes, suffix: bytes) -> bool:
    """Whether a text is a prompt, with the suffix somewhere in it; both may be cut to a window.

    The beginning of the prompt is left out, and the end of the suffix.
    """
    for at in range(len(prompt) + 1):
        if not text.endswith(prompt[at:]):
            continue
        rest = text[: len(text) - len(prompt[at:])]
        for size in range(len(suffix) + 1):
            before = rest.removesuffix(suffix[:size])
            if len(before) == len(rest) - size and prompt[:at].endswith(before):
                return True
    return False


@examples(300)
@example({"suffix": "a"}, True)
@example({"suffix": "é" * 40}, True)
@given(st.dictionaries(st.sampled_from(FIELDS), ANY, max_size=4), st.booleans())
def test_whatever_comes_is_planned_passed_on_or_refused(fields, whole):
    request = {"model": "tiny", "prompt": PROMPT, **fields} if whole else fields
    try:
        read = parsed(json.dumps(request).encode())
        reason = whether(read, Settings(), "tiny") if read else "malformed"
        found = plan(model(), LIMITS, read) if reason is None else reason
    except CharwiseError as error:
        found = str(error)  # it is told in JSON
        reason = "refused"
    if reason == "refused":
        assert found.encode()
        return
    if isinstance(found, str):
        assert Outcome(found).header == f"off; reason={found}"
        return
    for answer in found:
        healed = answer.healed
        text = model().vocabulary.decode(healed.kept) + healed.forced
        if fields.get("suffix") and not fields.get("prompt"):
            assert stands_around(text, PROMPT.encode(), fields["suffix"].encode())
        else:
            assert text.decode("utf-8", "replace").endswith(PROMPT) or fields.get("prompt")
        assert answer.call.body["prompt"] == healed.kept
        assert "charwise_heal" not in (answer.call.body.get("vllm_xargs") or {})
        assert json.dumps(answer.call.body).encode()
        if answer.call.body.get("max_tokens") is not None:
            assert len(healed.kept) + answer.call.body["max_tokens"] <= LIMITS.window


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"prompt": ["a"] * 5}, "too-much"),
        ({"n": 9}, "too-much"),
        ({"stop": ["a"] * 5}, "too-much"),
        ({"max_tokens": 65}, "too-much"),
        ({"min_tokens": 17}, "too-much"),
        ({"prompt": "x = 1\n" * 100_000}, "too-much"),
        ({"prompt": "x = 1\n" * 14}, "too-much"),
        ({"prompt": [1, 2]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"kv_transfer_params": {"do_remote_prefill": True}}, "kv_transfer_params"),
        ({"structured_outputs": {"json": {"type": "object"}}}, "structured-output"),
        ({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}, "structured-output"),
        ({"prompt": "<|endoftext|>"}, "nothing-to-heal"),
    ],
)
def test_requests_that_go_through_say_why(fields, reason):
    assert planned(**fields) == reason


def test_the_reason_becomes_an_error_where_healing_is_asked_for():
    asked = {"vllm_xargs": {"charwise_heal": "auto"}}
    for fields in ({"max_tokens": 0}, {"structured_outputs": {"json": {}}}):
        with pytest.raises(SettingError, match="cannot be healed"):
            planned(**fields, **asked)
    bare = tokenizer_with()
    served = Served(bare, SortedVocabulary(Vocabulary.from_transformers(bare)))
    with pytest.raises(SettingError, match=r"cannot be healed: .* no sentinels"):
        plan(served, LIMITS, {"prompt": PROMPT, "suffix": "b", **asked})
    assert plan(served, LIMITS, {"prompt": PROMPT, "suffix": "b"}) == "suffix"


@pytest.mark.parametrize("most", [1, 32, 33, 40])
def test_as_many_new_tokens_as_were_asked_for(most):
    """However many tokens the engine takes to write the prompt's end again: here one a byte."""
    [answer] = planned(max_tokens=most)
    tokens = model().vocabulary.tokens
    again = [tokens.index(bytes([byte])) for byte in answer.healed.forced]
    ids = [*again, *[tokens.index(b"x")] * 60][: answer.call.body["max_tokens"]]
    answer.add({"choices": [{"index": 0, "token_ids": ids, "finish_reason": "length"}]})
    [choice] = answer.choices()
    assert (choice["text"], choice["finish_reason"]) == ("x" * most, "length")
    assert answer.completion_tokens == most


def test_an_exact_prompt_that_does_not_fit_is_refused_with_both_lengths():
    prompt = "x = 1\n" * 40
    length = len(model().tokenizer(prompt).input_ids)
    assert planned(prompt=prompt) == "too-much"
    with pytest.raises(ContextLengthError, match=rf"{length} tokens, .* window is 64:"):
        planned(prompt=prompt, charwise_heal="exact")


def test_one_token_more_for_each_byte_where_they_are_counted_as_they_come():
    [short], [long] = planned(max_tokens=1), planned(max_tokens=40)
    assert short.call.body["stream"]
    assert short.call.body["max_tokens"] == 1 + len(short.healed.forced)
    assert "stream" not in long.call.body
    assert long.call.body["max_tokens"] == 40 + len(long.healed.forced)
    [several] = planned(max_tokens=1, n=FEW + 1, limits=LIMITS._replace(completions=99))
    assert "stream" not in several.call.body
    assert several.call.body["max_tokens"] == short.call.body["max_tokens"]
    [near] = planned(prompt="x = 1\n" * 11 + "for i in rang", max_tokens=32)
    assert len(near.healed.kept) + near.call.body["max_tokens"] == LIMITS.window
    [all_there_is] = planned(max_tokens=None)
    assert all_there_is.call.body["max_tokens"] is None
    strict = LIMITS._replace(clamps=False)
    assert plan(model(), strict, {"prompt": "x = 1\n" * 11, "max_tokens": 60}) == "too-much"


def test_a_grammar_takes_the_forced_text_in_the_place_of_the_processor():
    [answer] = planned(structured_outputs={"regex": "or|x"})
    assert answer.call.body["structured_outputs"] == {"regex": " ValueErr(or|x)"}
    assert FORCED not in (answer.call.body.get("vllm_xargs") or {})
    [answer] = planned(structured_outputs={"choice": ["or", "x"]})
    assert answer.call.body["structured_outputs"] == {"choice": [" ValueError", " ValueErrx"]}
    [answer] = planned(structured_outputs={"grammar": 'root ::= "or"'})
    tag = json.loads(answer.call.body["structured_outputs"]["structural_tag"])
    assert tag["format"]["elements"][0] == {"type": "const_string", "value": " ValueErr"}
    assert with_literal({"structured_outputs": {"regex": "a"}}, b"\xa9") is None
    for wrong in (  # each would become one that the server takes
        *({"choice": "abc"}, {"choice": [5]}, {"choice": {"a": 1}}),
        *({"regex": 5}, {"regex": True}),
    ):
        assert with_literal({"structured_outputs": wrong}, b"a") is None


def test_exact_healing_takes_so_many_completions_and_no_more():
    exact_answers._check({"n": 256}, prompts=4)
    for request, prompts in (({"n": 1025}, 1), ({"n": 256}, 5), ({}, 1025)):
        with pytest.raises(SettingError, match="at most 1024"):
            exact_answers._check(request, prompts)
    for fields in ({"logprobs": 1}, {"structured_outputs": {"regex": "a"}}):
        with pytest.raises(SettingError, match="cannot be healed exactly"):
            exact_answers._check(fields, prompts=1)


def test_numbers_that_are_none_are_left_to_the_server():
    for wrong in (math.nan, math.inf, "all", [], None):
        assert sampling({"top_k": wrong})["top_k"] is None
    assert sampling({"top_k": "4", "top_p": "0.5"}) == {
        "temperature": 1.0, "top_k": 4, "top_p": 0.5, "min_p": None
    }  # fmt: skip


def test_what_an_operator_switches_off_is_off():
    asked = {"vllm_xargs": {"charwise_heal": "word"}}
    assert whether({}, Settings(heal="request"), "tiny") == "not-asked"
    assert whether(asked, Settings(heal="request"), "tiny") is None
    assert whether({}, Settings(heal="off"), "tiny") == "setting"
    assert whether({}, Settings(models=("other",)), "tiny") == "setting"
    assert whether({"vllm_xargs": {"charwise_heal": "off"}}, Settings(), "tiny") == "asked"
    for switched in (Settings(heal="off"), Settings(models=("other",))):
        with pytest.raises(SettingError, match="switched off"):
            whether(asked, switched, "tiny")


def test_forced_bytes_of_ones_own_do_not_go_with_asking() -> None:
    arguments = {FORCED: "20"}
    assert whether({"vllm_xargs": arguments}, Settings(), "m") == FORCED
    assert whether({"vllm_xargs": {**arguments, HEAL: "off"}}, Settings(), "m") == "asked"
    with pytest.raises(SettingError, match="of its own"):
        whether({"vllm_xargs": {**arguments, HEAL: "auto"}}, Settings(), "m")
