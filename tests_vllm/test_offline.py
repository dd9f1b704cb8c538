"""`vllm_request` and `vllm.LLM`: every greedy token is the best that healing allows."""

from __future__ import annotations

import random
from typing import Any

from vllm import SamplingParams

from charwise.healing.guided import vllm_request
from conftest import ROOT, TIE, Reference


def prompts(number: int) -> list[str]:
    code = (ROOT / "src" / "charwise" / "healing" / "forced.py").read_text("utf-8")
    rng = random.Random(0)
    ends = [rng.randrange(200, len(code)) for _ in range(number)]
    return [code[end - 200 : end] for end in ends]


def test_greedy_tokens_are_the_best_allowed_ones(llm: Any, reference: Reference) -> None:
    params = SamplingParams(temperature=0, max_tokens=12)
    requests = [vllm_request(prompt, reference.index, params) for prompt in prompts(40)]
    outputs = llm.generate(
        [{"prompt_token_ids": request.ids} for request in requests],
        [request.sampling_params for request in requests],
        use_tqdm=False,
    )
    healed = 0
    for request, output in zip(requests, outputs, strict=True):
        ids, forced = list(output.outputs[0].token_ids), request.healed.forced
        gaps = reference.gaps(request.ids, forced, ids)
        assert max(gaps) < TIE
        text = request.text(ids)
        written = reference.index.vocabulary.decode(ids).decode("utf-8", "replace")
        assert written.startswith(forced.decode() + text)
        healed += bool(forced)
    assert healed > 20


def test_a_sample_of_several(llm: Any, reference: Reference) -> None:
    params = SamplingParams(n=4, temperature=1.0, seed=1, max_tokens=3, stop=["("])
    request = vllm_request("raise ValueErr", reference.index, params)
    [output] = llm.generate(
        [{"prompt_token_ids": request.ids}], request.sampling_params, use_tqdm=False
    )
    texts = [request.text(choice.token_ids) for choice in output.outputs]
    assert len(texts) == 4
    assert not any("(" in text for text in texts)
