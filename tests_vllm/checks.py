"""What must hold for both model runners."""

from __future__ import annotations

from typing import Any

from vllm import SamplingParams

from charwise.processors.healed_prompt import HealedPrompt
from charwise.processors.vllm import FORCED, served
from conftest import TIE, Reference


def generate(llm: Any, healed: list[HealedPrompt], **params: Any) -> list[list[list[int]]]:
    """For each prompt, the token ids of its completions."""
    outputs = llm.generate(
        [{"prompt_token_ids": each.kept} for each in healed],
        [
            SamplingParams(
                extra_args={FORCED: each.forced.hex()} if each.forced else None, **params
            )
            for each in healed
        ],
        use_tqdm=False,
    )
    return [[list(c.token_ids) for c in output.outputs] for output in outputs]


def check_greedy(
    llm: Any, reference: Reference, prompts: list[bytes], max_tokens: int = 20
) -> None:
    """Completions start with the prompt's bytes, and each token is the best that may come."""
    model = served(llm.llm_engine.model_config)
    healed = [model.heal(prompt) for prompt in prompts]
    assert sum(bool(each.forced) for each in healed) > len(prompts) // 2
    found = generate(llm, healed, temperature=0, max_tokens=max_tokens)
    for prompt, each, [ids] in zip(prompts, healed, found, strict=True):
        assert model.vocabulary.decode([*each.kept, *ids]).startswith(prompt)
        assert max(reference.gaps(each.kept, each.forced, ids)) < TIE


def check_sampling(llm: Any, prompts: list[bytes], max_tokens: int = 40) -> None:
    """n different samples for each prompt, all of which start with it."""
    model = served(llm.llm_engine.model_config)
    healed = [model.heal(prompt) for prompt in prompts]
    found = generate(llm, healed, temperature=1.3, n=4, max_tokens=max_tokens)
    for prompt, each, completions in zip(prompts, healed, found, strict=True):
        assert len(completions) == 4
        for ids in completions:
            text = model.vocabulary.decode([*each.kept, *ids])
            assert text.startswith(prompt) or len(ids) == max_tokens < len(each.forced)
            assert text[: len(prompt)] == prompt[: len(text)]
        assert len(set(map(tuple, completions))) > 1


def check_room(
    llm: Any, reference: Reference, texts: list[str], requests: int = 30, max_tokens: int = 120
) -> None:
    """Prompts longer than one step takes, and more requests than the cache holds."""
    model = served(llm.llm_engine.model_config)
    longer = [(texts[at] + texts[at + 15]).encode()[-380:] for at in range(0, 4 * requests, 4)]
    healed = [model.heal(text) for text in longer]
    limit = llm.llm_engine.vllm_config.scheduler_config.max_num_batched_tokens
    assert max(len(each.kept) for each in healed) > limit  # more than one step reads
    before = preemptions(llm)
    found = generate(llm, healed, temperature=0, max_tokens=max_tokens, ignore_eos=True)
    if llm.llm_engine.vllm_config.speculative_config is None:  # which admits fewer at once
        assert preemptions(llm) > before
    for text, each, [ids] in zip(longer, healed, found, strict=True):
        assert model.vocabulary.decode([*each.kept, *ids]).startswith(text)
        assert max(reference.gaps(each.kept, each.forced, ids)) < TIE


def preemptions(llm: Any) -> int:
    return sum(
        metric.value for metric in llm.get_metrics() if metric.name == "vllm:num_preemptions"
    )
