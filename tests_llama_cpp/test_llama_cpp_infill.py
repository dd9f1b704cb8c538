"""Between two texts in llama-cpp-python: the template, and the healed end of the prefix."""

from __future__ import annotations

from pathlib import Path

import convert
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from charwise import heal_infill
from charwise.errors import SettingError
from charwise.healing import HealedPrompt
from charwise.healing.fim import Template, request
from charwise.healing.llama_cpp import heal_completion, index_of
from tiny import saved_with

llama_cpp = pytest.importorskip("llama_cpp")

NAMES = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
PREFIX, SUFFIX = "for i in rang", "e(3):\n    pass\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model with sentinels that it was not trained to use."""
    return saved_with(tmp_path_factory.mktemp("model"), NAMES)


@pytest.fixture(scope="module")
def llama(folder: Path):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    path = convert.write_model(folder / "model.gguf", model, folder)
    return llama_cpp.Llama(
        str(path), n_ctx=256, n_threads=1, n_threads_batch=1, verbose=False, type_k=0, type_v=0
    )


def asked(llama, suffix: str) -> HealedPrompt:
    """What the model is asked for."""
    index = index_of(llama)
    return request(PREFIX, suffix, Template.of(index.vocabulary), index)


def text_of(response):
    return response["choices"][0]["text"]


def test_a_suffix_is_laid_out_as_transformers_has_it(llama, folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for suffix in ("\n", SUFFIX):
        expected = heal_infill(model, tokenizer, PREFIX, suffix, max_new_tokens=6, do_sample=False)[
            0
        ]
        found = text_of(heal_completion(llama, PREFIX, suffix, temperature=0, max_tokens=6))
        assert found
        assert expected.startswith(found) or found.startswith(expected)
    healed = asked(llama, SUFFIX)
    assert healed.forced.endswith(b"rang")
    assert healed.ending


@pytest.mark.parametrize("suffix", [SUFFIX, "py as np\n", "self.value = value\n", "naïve')"])
@pytest.mark.parametrize("more", [4.0, 30.0])
def test_a_middle_ends_only_where_it_has_written_what_it_took_over(
    llama, suffix, more, monkeypatch
) -> None:
    """With the end token made likely; 30 nats more would end it at once."""
    vocabulary = index_of(llama).vocabulary
    healed = asked(llama, suffix)
    assert healed.ending
    [end] = {llama.token_eos()} & set(vocabulary.end_ids)
    ids: list[int] = []

    def ends_soon(input_ids, scores):
        ids[:] = input_ids[len(healed.kept) :].tolist()
        scores[end] += more
        return scores

    generate = llama.generate
    monkeypatch.setattr(
        llama,
        "generate",
        lambda kept, logits_processor, **options: generate(
            kept, logits_processor=[ends_soon, *logits_processor], **options
        ),
    )
    options = {"temperature": 0, "max_tokens": 40}
    [choice] = heal_completion(llama, PREFIX, suffix, **options)["choices"]
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
    parts = heal_completion(llama, PREFIX, suffix, stream=True, **options)
    assert "".join(map(text_of, parts)) == choice["text"]


def test_a_template_written_out_is_the_same(llama) -> None:
    before, between, last = NAMES
    prompt = f"{before}{PREFIX}{between}{SUFFIX}{last}"
    options = {"temperature": 0, "max_tokens": 6}
    written = text_of(heal_completion(llama, prompt, **options))
    vocabulary = index_of(llama).vocabulary
    ids = {name: id for id, name in vocabulary.special.items()}
    parts = [*vocabulary.bos_ids, ids[before], PREFIX, ids[between], SUFFIX, ids[last]]
    assert written == text_of(heal_completion(llama, parts, **options)) != ""
    assert heal_completion(llama, prompt, **options)["usage"]["prompt_tokens"] > 10


def test_sentinels_are_given_by_their_names(llama) -> None:
    template = Template.named(index_of(llama).vocabulary, *NAMES)
    options = {"temperature": 0, "max_tokens": 6}
    named = heal_completion(llama, PREFIX, SUFFIX, template=template, **options)
    assert text_of(named) == text_of(heal_completion(llama, PREFIX, SUFFIX, **options))
    spm = Template(template.prefix, template.suffix, None)
    other = heal_completion(llama, PREFIX, SUFFIX, template=spm, **options)
    assert other["usage"]["prompt_tokens"] == named["usage"]["prompt_tokens"] - 1


def test_what_cannot_be_filled_in(llama, stories_file: Path) -> None:
    with pytest.raises(SettingError, match="the prompt is a text"):
        heal_completion(llama, [1, 2], SUFFIX)
    bare = llama_cpp.Llama(str(stories_file), n_ctx=64, n_threads=1, verbose=False)
    with pytest.raises(SettingError):
        heal_completion(bare, PREFIX, SUFFIX)
