"""Over HTTP: a suffix, with a model that has the sentinels of fill-in-the-middle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch
from server import MIDDLEWARE, NAMED, ask, post, serving, stream, told
from transformers import AutoModelForCausalLM, AutoTokenizer

from charwise import SortedVocabulary, Vocabulary, heal_infill
from charwise.processors.healed_prompt import heal_middle
from sentinels import saved_with

NAMES = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
PREFIX, SUFFIX = "for i in rang", "e(3):\n    pass\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model with the sentinels of another family, which it was not trained to use."""
    return saved_with(tmp_path_factory.mktemp("model"), NAMES)


@pytest.fixture(scope="module")
def index(folder: Path) -> SortedVocabulary:
    model = AutoModelForCausalLM.from_pretrained(folder)
    return SortedVocabulary(
        Vocabulary.from_transformers(
            AutoTokenizer.from_pretrained(folder),
            model.config.vocab_size,
            generation_config=model.generation_config,
        )
    )


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[httpx.Client]:
    with serving(*NAMED, *MIDDLEWARE, "--model", str(folder)) as (client, _):
        yield client


@pytest.mark.parametrize("suffix", [SUFFIX, "py as np\n", "self.value = value\n", "naïve')"])
@pytest.mark.parametrize("more", [4.0, 30.0])
def test_a_middle_ends_only_where_it_has_written_what_it_took_over(client, index, suffix, more):
    """With the end token made likely; 30 nats more would end it at once."""
    healed = heal_middle(PREFIX, suffix, index)
    assert healed.ending
    ends = sorted(index.vocabulary.end_ids)
    fields = {"suffix": suffix, "max_tokens": 40, "logit_bias": {str(id): more for id in ends}}
    response = ask(client, PREFIX, return_token_ids=True, **fields)
    assert response.status_code == 200, response.text
    header = f"given-back={healed.given_back}; forced={len(healed.forced)}"
    header = f"healed; {header}; taken-over={len(healed.ending)}"
    assert response.headers["x-charwise"] == header
    [choice] = response.json()["choices"]
    assert choice["prompt_token_ids"] == healed.kept
    written = index.vocabulary.decode(choice["token_ids"])
    assert written.startswith(healed.forced)
    new = written[len(healed.forced) :]
    if choice["finish_reason"] == "stop":
        assert choice["token_ids"][-1] in ends
        assert new.endswith(healed.ending)
        assert choice["text"] == new[: len(new) - len(healed.ending)].decode("utf-8", "replace")
    if more == 30.0:
        assert choice["finish_reason"] == "stop"
        assert len(new) <= len(healed.ending) + index.vocabulary.munch
    [text] = told(stream(client, PREFIX, **fields)).values()
    # One that is not streamed may be ended by tokens that reproduced the prefix.
    assert text == choice["text"] or choice["finish_reason"] == "length"
    assert text.startswith(choice["text"])


def test_the_same_middle_as_in_transformers(client, folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for suffix in ("\n", SUFFIX, ""):
        options = {"max_new_tokens": 6, "do_sample": False}
        expected = heal_infill(model, tokenizer, PREFIX, suffix, **options)[0]
        [found] = post(client, PREFIX, suffix=suffix, max_tokens=6)["choices"]
        assert found["text"]
        assert expected.startswith(found["text"]) or found["text"].startswith(expected)


def test_several_middles_each_end_for_themselves(client, index):
    ends = {str(id): 12.0 for id in index.vocabulary.end_ids}
    fields = {"suffix": SUFFIX, "temperature": 1.0, "n": 4, "max_tokens": 60}
    answer = post(client, [PREFIX, "import nu"], logit_bias=ends, return_token_ids=True, **fields)
    assert [choice["index"] for choice in answer["choices"]] == list(range(8))
    for choice in answer["choices"]:
        healed = heal_middle(PREFIX if choice["index"] < 4 else "import nu", SUFFIX, index)
        new = index.vocabulary.decode(choice["token_ids"])[len(healed.forced) :]
        if choice["finish_reason"] == "stop":
            assert new.endswith(healed.ending)
            new = new[: len(new) - len(healed.ending)]
        assert choice["text"] == new.decode("utf-8", "replace")
    assert {choice["finish_reason"] for choice in answer["choices"]} & {"stop"}


def test_the_left_side_alone_where_the_right_cannot_be(client):
    for fields in ({"logprobs": 1}, {"vllm_xargs": {"charwise_heal": "exact"}}):
        response = ask(client, PREFIX, suffix=SUFFIX, max_tokens=4, **fields)
        if "logprobs" in fields:
            assert response.status_code == 200, response.text
            assert response.headers["x-charwise"].startswith("healed; given-back=")
            assert "taken-over" not in response.headers["x-charwise"]
    # Unhealed it is vLLM's, which does not know this model to fill in.
    refused = ask(client, PREFIX, suffix=SUFFIX, vllm_xargs={"charwise_heal": "off"})
    assert refused.status_code == 400
    assert "suffix" in refused.json()["error"]["message"]


def test_a_middle_that_goes_on_into_the_suffix_ends_before_it(client, index):
    suffix = " pass pass pass"
    [id] = set(index.vocabulary.encode(suffix))
    fields = {"suffix": suffix, "max_tokens": 40, "logit_bias": {str(id): 100.0}}
    answer = post(client, "x = [None]", **fields)
    [choice] = answer["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)
    assert suffix not in choice["text"]
    assert answer["usage"]["completion_tokens"] < 40
    assert told(stream(client, "x = [None]", **fields)) == {0: choice["text"]}


def test_either_side_may_be_empty(client):
    for prompt, suffix in (("", SUFFIX), (PREFIX, "")):
        response = ask(client, prompt, suffix=suffix, max_tokens=4)
        assert response.status_code == 200, response.text
        assert response.headers["x-charwise"].startswith("healed")


def test_bytes_to_end_with_are_checked_on_admission(client):
    for wrong, says in (("xyz", "hexadecimal"), ("20" * 4000, "at most")):
        response = ask(client, "a", vllm_xargs={"charwise_ending": wrong})
        assert response.status_code == 400
        assert says in response.json()["error"]["message"]
