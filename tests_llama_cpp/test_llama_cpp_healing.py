"""Token healing inside llama-cpp-python, on models that transformers has too."""

from __future__ import annotations

import pytest
import torch
from prompts import cut_prompts
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessorList

from charwise import healing
from charwise.errors import LimitError, SettingError, VocabularyError
from charwise.healing import transformers as reference
from charwise.healing.llama_cpp import HealingLogitsProcessor, heal_completion, index_of
from charwise.models import EMBEDDED

llama_cpp = pytest.importorskip("llama_cpp")

#: Where the two engines may differ: scores this close, in nats, may change places.
TIE = 1e-3


def open_llama(path, **options):
    options = {"n_ctx": 512, "n_threads": 1, "n_threads_batch": 1, **options}
    return llama_cpp.Llama(
        str(path), verbose=False, type_k=0, type_v=0, flash_attn=False, **options
    )


@pytest.fixture(scope="session")
def llama(embedded_file):
    return open_llama(embedded_file)


@pytest.fixture(scope="session")
def stories(stories_float_file):
    return open_llama(stories_float_file)


@pytest.fixture(scope="session")
def model():
    return AutoModelForCausalLM.from_pretrained(EMBEDDED, dtype=torch.float32).eval()


def text_of(response):
    return response["choices"][0]["text"]


def goes_on(llama):
    """Whether a simple request is answered as ever."""
    text = text_of(heal_completion(llama, "for i in rang", temperature=0, max_tokens=2))
    return text.startswith("e(")


def written(llama, kept, forced, count):
    """Ids that llama.cpp writes greedily with the processor."""
    processor = HealingLogitsProcessor(index_of(llama), forced, len(kept))
    ends = index_of(llama).vocabulary.end_ids
    ids = []
    chain = llama_cpp.LogitsProcessorList([processor])
    for id in llama.generate(kept, temp=0.0, logits_processor=chain):
        ids.append(id)
        if id in ends or len(ids) == count:
            break
    return ids


@torch.inference_mode()
def agrees(model, index, kept, forced, ids):
    """Whether each id is transformers' likeliest under its mask, or within a tie of it."""
    scores = model(torch.tensor([[*kept, *ids]])).logits[0, len(kept) - 1 : -1].log_softmax(-1)
    process = reference.HealingLogitsProcessor(index, [forced], prompt_length=len(kept))
    for at, id in enumerate(ids):
        masked = process(torch.tensor([[*kept, *ids[:at]]]), scores[at : at + 1])[0]
        if masked[id] < masked.max() - TIE:
            return False
    return True


def test_three_hundred_prompts_cut_at_random_bytes(llama, model, data):
    index = index_of(llama)
    vocabulary = index.vocabulary
    same = 0
    for prompt in cut_prompts(data, 300):
        kept, forced = healing.cut([*vocabulary.bos_ids, prompt], index)
        ids = written(llama, kept, forced, len(forced) + 6)
        assert (vocabulary.decode(kept) + vocabulary.decode(ids)).startswith(prompt)
        assert agrees(model, index, kept, forced, ids), prompt
        masked = reference.HealingLogitsProcessor(index, [forced], prompt_length=len(kept))
        expected = model.generate(
            torch.tensor([kept]),
            logits_processor=LogitsProcessorList([masked]),
            max_new_tokens=len(ids),
            do_sample=False,
        )
        same += expected[0, len(kept) :].tolist() == ids
    assert same >= 295  # the rest are ties


def test_prompts_of_a_model_whose_tokens_span_words(stories, data):
    index = index_of(stories)
    vocabulary = index.vocabulary
    story = b"Once upon a time, there was a little girl named Lily. She loved to play in the park."
    for end in range(1, len(story)):
        kept, forced = healing.cut([*vocabulary.bos_ids, b" " + story[:end]], index)
        ids = written(stories, kept, forced, len(forced) + 6)
        assert (vocabulary.decode(kept) + vocabulary.decode(ids)).startswith(b" " + story[:end])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_stream_is_its_completion(llama, data, temperature):
    vocabulary = index_of(llama).vocabulary
    settings = {"max_tokens": 6, "temperature": temperature, "seed": 3}
    for prompt in cut_prompts(data, 30, seed=1):
        response = heal_completion(llama, prompt, **settings)
        chunks = list(heal_completion(llama, prompt, stream=True, **settings))
        assert text_of(response) == "".join(map(text_of, chunks))
        usage = response["usage"]
        ids = vocabulary.encode_prompt([*vocabulary.bos_ids, prompt])
        assert usage["prompt_tokens"] == len(ids)
        assert 0 <= usage["completion_tokens"] <= 6
        *first, last = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
        assert set(first) <= {None}
        assert last == response["choices"][0]["finish_reason"] in ("stop", "length")


def test_tokens_count_from_where_the_prompt_is_reproduced(llama, model):
    """One token is one piece of new text, however many were given back; as in heal_generate."""
    from charwise import heal_generate

    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    for prompt in ("for i in rang", "import sy", "    raise ValueErr", "x = "):
        for rule in ("auto", 1, 4):
            for most in (1, 3):
                found = heal_completion(
                    llama, bytearray(prompt.encode()), rule=rule, temperature=0, max_tokens=most
                )
                expected = heal_generate(
                    model, tokenizer, prompt, rule=rule, max_new_tokens=most, do_sample=False
                )
                assert [text_of(found)] == expected
                assert found["usage"]["completion_tokens"] <= most
                assert text_of(found)


def test_off_does_not_heal(llama):
    off = heal_completion(llama, "for i in rang", rule="off", temperature=0, max_tokens=1)
    assert not text_of(off).startswith("e")
    assert goes_on(llama)


def test_stop_strings_do_not_match_in_what_was_forced(llama):
    response = heal_completion(llama, "for i in rang", temperature=0, max_tokens=40, stop=["rang"])
    assert text_of(response).startswith("e(")
    stopped = heal_completion(llama, "for i in rang", temperature=0, max_tokens=40, stop="):")
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert text_of(response).startswith(text_of(stopped) + "):")


def test_a_grammar_is_about_the_new_text(llama):
    grammar = llama_cpp.LlamaGrammar.from_string('root ::= "0"+', verbose=False)
    with pytest.raises(SettingError, match="grammar"):
        heal_completion(llama, "for i in rang", grammar=grammar)
    settings = {"rule": "off", "temperature": 0, "max_tokens": 5, "grammar": grammar}
    assert set(text_of(heal_completion(llama, "x = ", **settings))) == {"0"}


def test_bad_requests(llama, stories):
    for name in ("logprobs", "logit_bias", "logits_processor"):
        with pytest.raises(TypeError, match=f"'{name}'"):
            heal_completion(llama, "a", **{name: None})
    for wrong in (-1, "5", 1.5, True):
        with pytest.raises(SettingError, match="max_tokens is"):
            heal_completion(llama, "a", max_tokens=wrong)
    for wrong in ("", [""], 5, [5]):
        with pytest.raises(SettingError, match="stop"):
            heal_completion(llama, "a", stop=wrong)
    for wrong in (None, {"a": 1}, ["a", "b"], 5):
        with pytest.raises(VocabularyError, match="prompt"):
            heal_completion(llama, wrong)
    width = index_of(llama).vocabulary.width
    with pytest.raises(SettingError, match="unknown healing rule"):
        heal_completion(llama, "a", rule="all")
    with pytest.raises(LimitError, match="the context 512"):
        heal_completion(llama, b"\x00\xff" * 300)
    with pytest.raises(VocabularyError, match=f"{width} is not a token id"):
        heal_completion(llama, [width, "a"])
    with pytest.raises(VocabularyError, match="no token of this vocabulary spells"):
        heal_completion(stories, "naïve")
    with pytest.raises(VocabularyError, match="no token string of this vocabulary spells"):
        HealingLogitsProcessor(index_of(stories), "naïve".encode(), 1)
    # After all of these the engine goes on.
    assert goes_on(llama)


def test_a_draft_model_is_refused(embedded_file):
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    drafting = open_llama(embedded_file, draft_model=LlamaPromptLookupDecoding())
    with pytest.raises(SettingError, match="draft_model"):
        heal_completion(drafting, "for i in rang")


def test_the_context_may_be_filled(embedded_file):
    small = open_llama(embedded_file, n_ctx=32)
    n_ctx = small.n_ctx()
    prompt = "x = 1\n" * 4 + "for i in rang"
    response = heal_completion(small, prompt, temperature=0, max_tokens=None)
    assert response["choices"][0]["finish_reason"] == "length"
    assert response["usage"]["total_tokens"] == n_ctx


def test_token_ids_and_empty_prompts(llama):
    bos = index_of(llama).vocabulary.bos_ids[0]
    given = heal_completion(llama, [bos, "for i in rang"], temperature=0, max_tokens=2)
    assert text_of(given) == text_of(
        heal_completion(llama, "for i in rang", temperature=0, max_tokens=2)
    )
    assert heal_completion(llama, "", temperature=0, max_tokens=2)["usage"]["prompt_tokens"] == 1
