"""A GGUF file without llama.cpp: transformers reads it, as it reads the folder."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

import charwise
from charwise.engines.pretrained import opens_in_llama_cpp, read_vocabulary
from conftest import Data

pytest.importorskip("gguf", reason="reading a GGUF file needs: pip install gguf")

TEXT = "Once upon a time, there was a little girl named Lily."


@pytest.fixture
def stories(data: Data) -> Path:
    return data.folder / "models" / "tinystories-656k" / "TinyStories-656K-Q8_0.gguf"


def test_a_file_is_loaded_by_its_name(stories: Path) -> None:
    lm = charwise.load(stories, engine="transformers")
    assert lm.vocabulary.end_ids == (2,)
    assert lm.vocabulary.bos_ids == (1,)
    assert 0 < lm.score(TEXT).bits / len(TEXT) < 2
    if not opens_in_llama_cpp(str(stories)):
        assert charwise.load(stories) is not None
        assert read_vocabulary(str(stories)).tokens == lm.vocabulary.tokens


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llama_cpp") is not None, reason="llama.cpp is the default then")
def test_a_real_file_and_its_folder(smollm2: Path) -> None:
    """Both begin a text after <|endoftext|>, and agree on what it costs."""
    folder, file = charwise.load(smollm2), charwise.load(smollm2.parent / f"{smollm2.name}.gguf")
    assert folder.vocabulary.bos_ids == file.vocabulary.bos_ids == (0,)
    assert file.info()["start"].startswith("<|endoftext|>, which ends a document")
    costs = [lm.score("The cat sat on the mat.").bits for lm in (folder, file)]
    assert costs[0] == pytest.approx(costs[1], rel=0.05)
