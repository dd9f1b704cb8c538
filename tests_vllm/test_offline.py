"""The V1 model runner, in this process: what is generated, and what is refused."""

from __future__ import annotations

import pytest
import torch
from checks import check_greedy, check_room, check_sampling, generate
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from vllm import LLM, SamplingParams
from vllm.exceptions import VLLMValidationError

from charwise import heal_generate as transformers_heal_generate
from charwise.errors import HealingError, SettingError
from charwise.models import EMBEDDED
from charwise.processors.healed_prompt import HealedPrompt
from charwise.processors.transformers import HealingLogitsProcessor
from charwise.processors.vllm import FORCED, heal_generate, logits_processor, served, why_not
from charwise.processors.vllm.prompts import most_forced
from conftest import ENGINE, TIE


def test_this_is_the_v1_runner(llm):
    assert not llm.llm_engine.vllm_config.use_v2_model_runner
    assert why_not(llm.llm_engine.vllm_config) is None


def test_greedy_completions_of_300_prompts(llm, reference, prompts):
    check_greedy(llm, reference, prompts)


def test_token_by_token_as_the_processor_of_transformers(llm, reference, prompts):
    model = served(llm.llm_engine.model_config)
    healed = [model.heal(prompt) for prompt in prompts[:60]]
    outputs = llm.generate(
        [{"prompt_token_ids": each.kept} for each in healed],
        [_greedy(each, 8) for each in healed],
        use_tqdm=False,
    )
    same = 0
    for each, output in zip(healed, outputs, strict=True):
        processor = HealingLogitsProcessor(reference.index, [each.forced], len(each.kept))
        row = reference.model.generate(
            torch.tensor([each.kept]),
            logits_processor=[processor],
            max_new_tokens=8,
            do_sample=False,
        )[0, len(each.kept) :].tolist()
        found = list(output.outputs[0].token_ids)
        differ = next((i for i, (a, b) in enumerate(zip(row, found, strict=False)) if a != b), None)
        if differ is None:
            same += 1
        else:  # only where the two tokens are equally probable
            assert reference.gaps(each.kept, each.forced, found[: differ + 1])[-1] < TIE
    assert same > 50


def _greedy(healed: HealedPrompt, max_tokens: int, **more) -> SamplingParams:
    extra = {FORCED: healed.forced.hex()} if healed.forced else None
    return SamplingParams(temperature=0, max_tokens=max_tokens, extra_args=extra, **more)


def test_sampling_with_several_completions_each(llm, prompts):
    check_sampling(llm, prompts[:24])


def test_every_way_to_sample(llm, prompts):
    model = served(llm.llm_engine.model_config)
    healed = [model.heal(prompt) for prompt in prompts[:24]]
    found = generate(
        llm,
        healed,
        temperature=1.2,
        top_k=5,
        top_p=0.8,
        min_p=0.05,
        repetition_penalty=1.5,
        frequency_penalty=0.5,
        presence_penalty=0.5,
        logit_bias={300: -5.0},
        min_tokens=4,
        max_tokens=40,
    )
    for prompt, each, [ids] in zip(prompts, healed, found, strict=False):
        assert model.vocabulary.decode([*each.kept, *ids]).startswith(prompt)


def test_chunked_prefill_and_preemption(llm, reference, texts):
    check_room(llm, reference, texts)


def test_the_prefix_cache_changes_nothing(llm, reference, prompts):
    model = served(llm.llm_engine.model_config)
    long = b"\n".join(prompts[:2])
    healed = [model.heal(long[:-cut]) for cut in range(1, 9)]
    requests = [{"prompt_token_ids": each.kept} for each in healed]
    params = [_greedy(each, 6) for each in healed]
    llm.reset_prefix_cache()
    cold = llm.generate(requests, params, use_tqdm=False)
    warm = llm.generate(requests, params, use_tqdm=False)
    assert sum(output.num_cached_tokens for output in warm) > 0
    for each, one, other in zip(healed, cold, warm, strict=True):
        for output in (one, other):
            ids = list(output.outputs[0].token_ids)
            assert max(reference.gaps(each.kept, each.forced, ids)) < TIE


@pytest.mark.parametrize("method", ["mask", "exact"])
def test_heal_generate_gives_what_it_gives_in_transformers(llm, reference, method):
    texts = [
        "for i in rang",
        "import sy",
        "def check(value):\n    if value < 0:\n        raise Val",
        "def f(x):\n    return isinst",
        "x = ",
    ]
    found = heal_generate(llm, texts, SamplingParams(temperature=0, max_tokens=6), method=method)
    expected = transformers_heal_generate(
        reference.model,
        reference.tokenizer,
        [[text] for text in texts],  # as they are: vLLM puts no start token before them either
        method=method,
        max_new_tokens=12,
        do_sample=False,
    )
    for [one], other in zip(found, expected, strict=True):
        assert one
        assert other.startswith(one)
    assert found[3][0].startswith("ance(") == (method == "exact")


def test_exact_draws_stops_and_refusals(llm):
    text = "def f(x):\n    return isinst"

    def exactly(**settings: object) -> list[str]:
        params = SamplingParams(**{"temperature": 0, "max_tokens": 8} | settings)
        return heal_generate(llm, [text], params, method="exact")[0]

    [whole] = exactly()
    assert exactly(max_tokens=1) == ["ance"]
    for stop in ("nce", "ce(", whole[5:7]):
        assert exactly(stop=stop) == [whole[: whole.index(stop)]]
    drawn = exactly(temperature=1, n=6, seed=2)
    assert len(drawn) == 6
    assert drawn == exactly(temperature=1, n=6, seed=2) != exactly(temperature=1, n=6, seed=3)
    assert set(exactly(temperature=1, top_k=1, n=3)) == {whole}
    with pytest.raises(SettingError, match="restricts the output"):
        exactly(allowed_token_ids=[5])
    with pytest.raises(SettingError, match="'mask' or 'exact'"):
        heal_generate(llm, [text], SamplingParams(), method="best")


def test_stop_strings_count_in_the_new_text_only(llm):
    text = "def f(x):\n    if x:\n        "
    assert b"\n" in served(llm.llm_engine.model_config).heal(text, 2).forced
    params = SamplingParams(temperature=0, max_tokens=24)
    [[unstopped]] = heal_generate(llm, [text], params, rule=2)
    params = SamplingParams(temperature=0, max_tokens=24, stop="\n")
    [[found]] = heal_generate(llm, [text], params, rule=2)
    assert found
    assert found == unstopped.split("\n")[0]


def test_nothing_changes_without_our_arguments(llm, prompts):
    model = served(llm.llm_engine.model_config)
    requests = [{"prompt_token_ids": model.heal(prompt, "off").kept} for prompt in prompts[:6]]
    params = SamplingParams(temperature=0, max_tokens=6)
    alone = llm.generate(requests[:1], params, use_tqdm=False)
    healed = model.heal(prompts[7])
    mixed = llm.generate(
        [*requests, {"prompt_token_ids": healed.kept}],
        [params] * 6 + [_greedy(healed, 6)],
        use_tqdm=False,
    )
    assert mixed[0].outputs[0].token_ids == alone[0].outputs[0].token_ids


def test_the_configuration_is_found_where_a_request_is_admitted(llm, monkeypatch):
    """vLLM does not hand it over: it is in the frames. Else requests would not be checked."""
    found = []

    def note():
        found.append(config_of_caller())
        return found[-1]

    config_of_caller = logits_processor._config_of_caller
    monkeypatch.setattr(logits_processor, "_config_of_caller", note)
    heal_generate(llm, ["import sy"], SamplingParams(temperature=0, max_tokens=1))
    assert found
    assert all(config is llm.llm_engine.vllm_config for config in found)


@pytest.mark.parametrize("most", [1, 3])
def test_tokens_count_from_where_the_prompt_is_reproduced(llm, reference, most):
    for prompt in ("for i in rang", "import sy", "    raise ValueErr"):
        params = SamplingParams(temperature=0, max_tokens=most)
        [[found]] = heal_generate(llm, [prompt], params)
        [expected] = transformers_heal_generate(
            reference.model, reference.tokenizer, [[prompt]], max_new_tokens=most, do_sample=False
        )
        assert found == expected != ""


BAD = {
    "unknown argument": {"charwise_force": "6162"},
    "charwise_heal": {"charwise_heal": "auto"},
    "hexadecimal": {FORCED: "xyz"},
    "must be the bytes": {FORCED: 7},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_arguments_are_refused_and_the_engine_goes_on(llm, message):
    with pytest.raises(VLLMValidationError, match=message):
        llm.generate(["a"], SamplingParams(max_tokens=1, extra_args=BAD[message]), use_tqdm=False)
    [[text]] = heal_generate(llm, ["import sy"], SamplingParams(temperature=0, max_tokens=2))
    assert text.startswith("s")


def test_long_forced_texts_are_refused_whichever_way_they_come(llm):
    vocabulary = served(llm.llm_engine.model_config).vocabulary
    most = most_forced(vocabulary)
    long = SamplingParams(max_tokens=1, extra_args={FORCED: ("a" * (most + 1)).encode().hex()})
    with pytest.raises(VLLMValidationError, match=f"at most {most} may be"):
        llm.generate(["a"], long, use_tqdm=False)
    with pytest.raises(HealingError, match=f"at most {most} may be"):
        heal_generate(llm, ["a b " * most], SamplingParams(max_tokens=1), rule=most)
    processor = logits_processor.HealingLogitsProcessor(
        llm.llm_engine.vllm_config, torch.device("cpu"), False
    )
    assert processor._forced_row(long, None, []) is None  # had it been admitted all the same


def test_constraints_that_may_forbid_the_forced_text_are_refused(llm):
    params = SamplingParams(max_tokens=1, extra_args={FORCED: "61"}, allowed_token_ids=[5])
    with pytest.raises(VLLMValidationError, match="allowed_token_ids"):
        llm.generate(["a"], params, use_tqdm=False)


def test_ids_that_cut_a_character_are_refused(llm):
    model = served(llm.llm_engine.model_config)
    ids = model.heal("日".encode()[:2], "off").kept
    with pytest.raises(ValueError, match="inside a character"):
        model.heal(ids)
    assert model.heal(model.heal("für", "off").kept).kept


def test_a_text_that_the_vocabulary_cannot_spell_is_refused(tmp_path):
    """A random Llama whose tokenizer knows five letters and the space."""
    letters = {letter: id for id, letter in enumerate(["a", "b", "c", "d", "e", "Ġ", "ab", "<e>"])}
    backend = Tokenizer(models.BPE(letters, [("a", "b")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<e>").save_pretrained(tmp_path)
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=64,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        eos_token_id=7,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    llm = LLM(str(tmp_path), **ENGINE | {"max_model_len": 64})
    params = SamplingParams(max_tokens=8, extra_args={FORCED: "é".encode().hex()})
    with pytest.raises(VLLMValidationError, match="no token string of this vocabulary spells"):
        llm.generate([{"prompt_token_ids": [0]}], params, use_tqdm=False)
    params = SamplingParams(max_tokens=8, n=8, extra_args={FORCED: b"cab e".hex()})
    [output] = llm.generate([{"prompt_token_ids": [0]}], params, use_tqdm=False)
    vocabulary = served(llm.llm_engine.model_config).vocabulary
    for completion in output.outputs:
        assert vocabulary.decode(completion.token_ids).startswith(b"cab e")


def test_v1_with_speculation_refuses_what_it_would_not_heal(llm):
    """There the class is found by its entry point, and never made.

    This is the last engine of the file: once vLLM has speculated by n-grams in a process, it
    cannot start another one there.
    """
    speculation = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}
    other = LLM(EMBEDDED, **ENGINE | {"speculative_config": speculation})
    assert "does not call logits processors" in why_not(other.llm_engine.vllm_config)
    with pytest.raises(VLLMValidationError, match="does not call logits processors"):
        heal_generate(other, ["import sy"], SamplingParams(max_tokens=1))
    [output] = other.generate(["import sys"], SamplingParams(max_tokens=2), use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 2
