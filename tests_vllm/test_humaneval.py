"""HumanEval's prompts that end anywhere, on SmolLM2: the texts are those of `heal_generate`.

`CHARWISE_PROMPTS` says how many of the 164 prompts, by default 20.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
import torch
from vllm import LLM, SamplingParams

from charwise import heal_generate
from charwise.healing.guided import vllm_request
from conftest import DATA, ENGINE, ENVIRONMENT, ROOT, TIE, Reference

FOLDER = ROOT / ".models" / "smollm2-135m"
FILE = DATA / "prompts" / "humaneval_random_span_light.jsonl"
TOKENS = 12


@pytest.mark.skipif(not (FOLDER.is_dir() and FILE.is_file()), reason="make smollm2; CHARWISE_DATA")
def test_guided_decoding_writes_the_texts_of_heal_generate(capsys: Any) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    os.environ.update(ENVIRONMENT)
    count = int(os.environ.get("CHARWISE_PROMPTS", "20"))
    prompts = [json.loads(line)["prompt"] for line in FILE.read_text("utf-8").splitlines()][:count]
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    reference = Reference(model, AutoTokenizer.from_pretrained(FOLDER))
    llm = LLM(str(FOLDER), **ENGINE | {"max_model_len": 1024, "num_gpu_blocks_override": 128})
    params = SamplingParams(temperature=0, max_tokens=TOKENS)
    requests = [vllm_request(prompt, reference.index, params) for prompt in prompts]
    outputs = llm.generate(
        [{"prompt_token_ids": request.ids} for request in requests],
        [request.sampling_params for request in requests],
        use_tqdm=False,
    )
    same = 0
    for prompt, request, output in zip(prompts, requests, outputs, strict=True):
        ids = list(output.outputs[0].token_ids)
        [expected] = heal_generate(
            model, reference.index, prompt, max_new_tokens=TOKENS, do_sample=False
        )
        same += request.text(ids) == expected
        # Where they are not the same, two tokens tie.
        assert max(reference.gaps(request.ids, request.healed.forced, ids)) < TIE
    with capsys.disabled():
        print(f"\n{same} of {count} texts are those of heal_generate")
    assert same >= 0.95 * count
