"""A tokenizer read without transformers is the one that transformers reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from charwise.errors import ModelError
from charwise.models import EMBEDDED
from charwise.tokens.vocabulary import Vocabulary
from conftest import Data

TEXTS = ["", "Hello, worl", " naïve 東京 🍋\r\n\t", "<|endoftext|></s>", "def f(x):\n    return x"]


def files_of(folder: Path) -> dict[str, Path]:
    return {file.name: file for file in folder.iterdir() if file.is_file()}


def check_equal(found: Vocabulary, wanted: Vocabulary) -> None:
    for name in (
        "tokens",
        "special",
        "end_ids",
        "bos_ids",
        "bos_rule",
        "end_rule",
        "implied_prefix",
        "chat_template",
    ):
        assert getattr(found, name) == getattr(wanted, name), name
    assert found.chat_template == wanted.chat_template
    for text in TEXTS:
        assert found.encode(text) == wanted.encode(text)


def test_the_embedded_tokenizer() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(EMBEDDED)
    generation = transformers.GenerationConfig.from_pretrained(EMBEDDED)
    wanted = Vocabulary.from_transformers(tokenizer, 8195, generation_config=generation)
    check_equal(Vocabulary.from_files(files_of(Path(EMBEDDED)), "embedded"), wanted)


@pytest.mark.parametrize("name", ["gpt2", "llama2", "llama3", "qwen2", "cl100k", "tinystories-3m"])
def test_real_tokenizers(data: Data, name: str) -> None:
    kind = "models" if name.startswith("tiny") else "tokenizers"
    folder = data.folder / kind / name
    if not (folder / "tokenizer.json").exists():
        pytest.skip(f"{name} has no tokenizer.json")
    files = files_of(folder)
    found = Vocabulary.from_files(files, name)
    check_equal(found, Vocabulary.from_transformers(data.tokenizer(name), found.width))


def test_a_folder_without_one_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"charwise\[transformers\]"):
        Vocabulary.from_files(files_of(tmp_path), "here")
