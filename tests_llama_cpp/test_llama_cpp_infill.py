"""Between two texts in llama-cpp-python: the template, and the healed end of the prefix."""

from __future__ import annotations

from pathlib import Path

import convert
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from charwise import heal_infill
from charwise.errors import SettingError, TemplateError
from charwise.models import EMBEDDED
from charwise.processors.llama_cpp import heal_completion, index_of
from charwise.processors.new_text import heal_middle

llama_cpp = pytest.importorskip("llama_cpp")

NAMES = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
PREFIX, SUFFIX = "for i in rang", "e(3):\n    pass\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model with sentinels that it was not trained to use."""
    path = tmp_path_factory.mktemp("model")
    torch.manual_seed(1)
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    tokenizer.add_special_tokens({"additional_special_tokens": NAMES})
    model = AutoModelForCausalLM.from_pretrained(EMBEDDED, dtype=torch.float32)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def llama(folder: Path):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    path = convert.write_llama(folder / "model.gguf", model, folder)
    return llama_cpp.Llama(
        str(path), n_ctx=256, n_threads=1, n_threads_batch=1, verbose=False, type_k=0, type_v=0
    )


def text_of(response):
    return response["choices"][0]["text"]


def test_a_suffix_is_laid_out_as_transformers_has_it(llama, folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected = heal_infill(
        model, tokenizer, PREFIX, SUFFIX, right="off", max_new_tokens=6, do_sample=False
    )[0]
    found = text_of(heal_completion(llama, PREFIX, SUFFIX, temperature=0, max_tokens=6))
    assert found
    assert expected.startswith(found) or found.startswith(expected)
    healed = heal_middle(PREFIX, SUFFIX, index_of(llama))
    assert healed.forced.endswith(b"rang")


def test_a_template_written_out_is_the_same(llama) -> None:
    before, between, last = NAMES
    prompt = f"{before}{PREFIX}{between}{SUFFIX}{last}"
    options = {"temperature": 0, "max_tokens": 6}
    written = text_of(heal_completion(llama, prompt, **options))
    assert written == text_of(heal_completion(llama, PREFIX, SUFFIX, **options))
    assert heal_completion(llama, prompt, **options)["usage"]["prompt_tokens"] > 10


def test_what_cannot_be_filled_in(llama, embedded_file: Path) -> None:
    with pytest.raises(SettingError, match="the prompt is a text"):
        heal_completion(llama, [1, 2], SUFFIX)
    bare = llama_cpp.Llama(str(embedded_file), n_ctx=64, n_threads=1, verbose=False)
    if "<|fim_middle|>" in index_of(bare).vocabulary.special.values():
        pytest.skip("the embedded model fills in")
    with pytest.raises(TemplateError):
        heal_completion(bare, PREFIX, SUFFIX)
