"""`vllm_request` and `vllm.LLM`: every greedy token is the best that healing allows.

`CHARWISE_PROMPTS` says how many of HumanEval's 164 prompts that end anywhere, by default 20.
"""

import json
import os
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from vllm import LLM, SamplingParams

from charwise import heal_generate
from charwise.healing.guided import GuidedRequest, vllm_request
from conftest import DATA, ENGINE, ENVIRONMENT, ROOT, TIE, Reference, code_prompts

FOLDER = ROOT / ".models" / "smollm2-135m"
FILE = DATA / "prompts" / "humaneval_random_span_light.jsonl"
PARAMS = SamplingParams(temperature=0, max_tokens=12)


def answered(llm: Any, requests: list[GuidedRequest]) -> list[Any]:
    """The completions of each request."""
    prompts = [{"prompt_token_ids": request.ids} for request in requests]
    params = [request.sampling_params for request in requests]
    return [output.outputs for output in llm.generate(prompts, params, use_tqdm=False)]


def test_greedy_tokens_are_the_best_allowed_ones(llm: Any, reference: Reference) -> None:
    requests = [vllm_request(prompt, reference.index, PARAMS) for prompt in code_prompts(40)]
    for request, [output] in zip(requests, answered(llm, requests), strict=True):
        ids, forced = list(output.token_ids), request.healed.forced
        assert max(reference.gaps(request.ids, forced, ids)) < TIE
        text = reference.index.vocabulary.decode(ids).decode("utf-8", "replace")
        assert text.startswith(forced.decode() + request.text(ids))
    assert sum(bool(request.healed.forced) for request in requests) > 20


def test_a_sample_of_several(llm: Any, reference: Reference) -> None:
    params = SamplingParams(n=4, temperature=1.0, seed=1, max_tokens=3, stop=["("])
    request = vllm_request("raise ValueErr", reference.index, params)
    [choices] = answered(llm, [request])
    texts = [request.text(choice.token_ids) for choice in choices]
    assert len(texts) == 4
    assert not any("(" in text for text in texts)


@pytest.mark.skipif(not (FOLDER.is_dir() and FILE.is_file()), reason="make smollm2; CHARWISE_DATA")
def test_guided_decoding_writes_the_texts_of_heal_generate(capsys: Any) -> None:
    os.environ.update(ENVIRONMENT)
    count = int(os.environ.get("CHARWISE_PROMPTS", "20"))
    prompts = [json.loads(line)["prompt"] for line in FILE.read_text("utf-8").splitlines()][:count]
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    reference = Reference(model, AutoTokenizer.from_pretrained(FOLDER))
    llm = LLM(str(FOLDER), **ENGINE | {"max_model_len": 1024, "num_gpu_blocks_override": 128})
    requests = [vllm_request(prompt, reference.index, PARAMS) for prompt in prompts]
    same = 0
    for prompt, request, [output] in zip(prompts, requests, answered(llm, requests), strict=True):
        ids, ask = list(output.token_ids), {"max_new_tokens": 12, "do_sample": False}
        [expected] = heal_generate(model, reference.index, prompt, **ask)
        same += request.text(ids) == expected
        # Where they are not the same, two tokens tie.
        assert max(reference.gaps(request.ids, request.healed.forced, ids)) < TIE
    with capsys.disabled():
        print(f"\n{same} of {count} texts are those of heal_generate")
    assert same >= 0.95 * count
