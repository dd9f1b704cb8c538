"""Token healing inside llama-cpp-python, on models that transformers has too."""

import re
from pathlib import Path

import convert
import pytest
import torch
from prompts import cut_prompts
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessorList

from charwise import heal_generate, heal_infill, healing
from charwise.errors import LimitError, SettingError, VocabularyError
from charwise.healing import transformers as reference
from charwise.healing.fim import Template, request
from charwise.healing.llama_cpp import HealingLogitsProcessor, heal_completion, index_of
from charwise.models import EMBEDDED
from masked import gaps
from tiny import saved_with

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


def greedy(llama, *sides, most=6, **options):
    return heal_completion(llama, *sides, temperature=0, max_tokens=most, **options)


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


def test_three_hundred_prompts_cut_at_random_bytes(llama, model, data):
    index = index_of(llama)
    vocabulary = index.vocabulary
    same = 0
    for prompt in cut_prompts(data, 300):
        kept, forced = healing.cut([*vocabulary.bos_ids, prompt], index)
        ids = written(llama, kept, forced, len(forced) + 6)
        assert (vocabulary.decode(kept) + vocabulary.decode(ids)).startswith(prompt)
        assert max(gaps(model, index, kept, forced, ids)) < TIE, prompt
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


def test_tokens_count_as_in_heal_generate(llama, model):
    """One token is one piece of new text, however many were given back."""
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    for prompt in ("for i in rang", "import sy", "    raise ValueErr", "x = "):
        for rule in ("auto", 1, 4, "off"):
            for most in (1, 3):
                found = greedy(llama, bytearray(prompt.encode()), rule=rule, most=most)
                ask = {"rule": rule, "max_new_tokens": most, "do_sample": False}
                assert [text_of(found)] == heal_generate(model, tokenizer, prompt, **ask)
                assert found["usage"]["completion_tokens"] <= most
                assert text_of(found)


def test_stop_strings_and_grammars_are_about_the_new_text(llama):
    prompt = "for i in rang"
    response = greedy(llama, prompt, most=40, stop=["rang"])
    assert text_of(response).startswith("e(")
    stopped = greedy(llama, prompt, most=40, stop="):")
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert text_of(response).startswith(text_of(stopped) + "):")
    grammar = llama_cpp.LlamaGrammar.from_string('root ::= "0"+', verbose=False)
    with pytest.raises(SettingError, match="grammar"):
        greedy(llama, prompt, grammar=grammar)
    assert set(text_of(greedy(llama, "x = ", rule="off", grammar=grammar))) == {"0"}


def test_bad_requests_leave_the_engine_as_it_was(llama, stories, embedded_file):
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    drafting = open_llama(embedded_file, draft_model=LlamaPromptLookupDecoding())
    width = index_of(llama).vocabulary.width
    for error, host, prompt, options in (
        (TypeError, llama, "a", {"logprobs": None}),
        (SettingError, llama, "a", {"max_tokens": -1}),
        (SettingError, llama, "a", {"stop": [""]}),
        (SettingError, llama, "a", {"rule": "all"}),
        (SettingError, drafting, "a", {}),
        (VocabularyError, llama, None, {}),
        (VocabularyError, llama, [width, "a"], {}),
        (VocabularyError, stories, "naïve", {}),
        (LimitError, llama, b"\x00\xff" * 300, {}),
        (SettingError, llama, [1, 2], {"suffix": "a"}),  # the prompt of a suffix is a text
        (SettingError, stories, "a", {"suffix": "a"}),  # no sentinels
    ):
        with pytest.raises(error):
            heal_completion(host, prompt, **options)
    assert text_of(greedy(llama, "for i in rang", most=2)).startswith("e(")


def test_the_context_may_be_filled(embedded_file):
    small = open_llama(embedded_file, n_ctx=32)
    response = greedy(small, "x = 1\n" * 4 + "for i in rang", most=None)
    assert response["choices"][0]["finish_reason"] == "length"
    assert response["usage"]["total_tokens"] == small.n_ctx()


def test_token_ids_and_empty_prompts(llama):
    bos = index_of(llama).vocabulary.bos_ids[0]
    given = greedy(llama, [bos, "for i in rang"])
    assert text_of(given) == text_of(greedy(llama, "for i in rang"))
    assert greedy(llama, "")["usage"]["prompt_tokens"] == 1


def test_every_snippet_of_the_page_runs(embedded_file, tmp_path, monkeypatch):
    page = Path(__file__).parents[1] / "docs" / "engines" / "llama-cpp.md"
    (tmp_path / "model.gguf").symlink_to(embedded_file)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    snippets = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert len(snippets) == 4
    for snippet in snippets:
        exec(snippet, names)
    assert str(names["text"]).encode().startswith(names["forced"])


# ---- between two texts --------------------------------------------------------------------------

NAMES = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
PREFIX, SUFFIX = "for i in rang", "e(3):\n    pass\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model with sentinels that it was not trained to use."""
    return saved_with(tmp_path_factory.mktemp("model"), NAMES)


@pytest.fixture(scope="module")
def infilling(folder: Path):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return open_llama(convert.write_model(folder / "model.gguf", model, folder), n_ctx=256)


def test_a_suffix_is_laid_out_as_transformers_has_it(infilling, folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for suffix in ("\n", SUFFIX):
        [expected] = heal_infill(
            model, tokenizer, PREFIX, suffix, max_new_tokens=6, do_sample=False
        )
        found = text_of(greedy(infilling, PREFIX, suffix))
        assert found
        assert expected.startswith(found) or found.startswith(expected)


@pytest.mark.parametrize("suffix", [SUFFIX, "py as np\n", "self.value = value\n", "naïve')"])
@pytest.mark.parametrize("more", [4.0, 30.0])
def test_a_middle_ends_only_where_it_has_written_what_it_took_over(
    infilling, suffix, more, monkeypatch
) -> None:
    """With the end token made likely; 30 nats more would end it at once."""
    index = index_of(infilling)
    vocabulary = index.vocabulary
    healed = request(PREFIX, suffix, Template.of(vocabulary), index)
    assert healed.forced.endswith(b"rang")
    assert healed.ending
    [end] = {infilling.token_eos()} & set(vocabulary.end_ids)
    ids: list[int] = []

    def ends_soon(input_ids, scores):
        ids[:] = input_ids[len(healed.kept) :].tolist()
        scores[end] += more
        return scores

    generate = infilling.generate
    monkeypatch.setattr(
        infilling,
        "generate",
        lambda kept, logits_processor, **options: generate(
            kept, logits_processor=[ends_soon, *logits_processor], **options
        ),
    )
    [choice] = greedy(infilling, PREFIX, suffix, most=40)["choices"]
    text = vocabulary.decode(ids)  # all but the last token, which is the end
    assert text.startswith(healed.forced)
    new = text[len(healed.forced) :]
    if choice["finish_reason"] == "stop":
        assert new.endswith(healed.ending)
        middle = new[: len(new) - len(healed.ending)]
        assert choice["text"] == middle.decode("utf-8", "replace")
    if more == 30.0:
        assert choice["finish_reason"] == "stop"
        assert len(new) <= len(healed.ending) + vocabulary.max_token_bytes
    parts = greedy(infilling, PREFIX, suffix, most=40, stream=True)
    assert "".join(map(text_of, parts)) == choice["text"]


def test_templates_are_written_out_or_named(infilling) -> None:
    vocabulary = index_of(infilling).vocabulary
    before, between, last = NAMES
    written = greedy(infilling, f"{before}{PREFIX}{between}{SUFFIX}{last}")
    ids = {name: id for id, name in vocabulary.special.items()}
    parts = [*vocabulary.bos_ids, ids[before], PREFIX, ids[between], SUFFIX, ids[last]]
    assert text_of(written) == text_of(greedy(infilling, parts)) != ""
    assert written["usage"]["prompt_tokens"] > 10
    template = Template.named(vocabulary, *NAMES)
    named = greedy(infilling, PREFIX, SUFFIX, template=template)
    assert text_of(named) == text_of(greedy(infilling, PREFIX, SUFFIX))
    spm = Template(template.prefix, template.suffix, None)
    other = greedy(infilling, PREFIX, SUFFIX, template=spm)
    assert other["usage"]["prompt_tokens"] == named["usage"]["prompt_tokens"] - 1
