"""Real tokenizers and texts for the tests, from outside the repository.

They lie in the folder that the variable CHARWISE_DATA names (by default `../shared/data` beside
the repository). Where it is missing, the tests that need it are skipped and say so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

import charwise
from charwise import SortedVocabulary, Vocabulary
from models import MOST

# A machine may be as slow as it likes.
settings.register_profile("tests", deadline=None, max_examples=min(100, MOST))
settings.load_profile("tests")
# For mutation tests: that a test fails is all they ask.
settings.register_profile(
    "mutants", deadline=None, phases=[Phase.explicit, Phase.generate], database=None
)

ROOT = Path(__file__).parents[1]
FOLDER = Path(os.environ.get("CHARWISE_DATA") or ROOT.parent / "shared" / "data")

#: Tokenizer → width of the output layer of its models.
WIDTHS = {
    "gpt2": 50_257,
    "cl100k": 100_352,
    "llama3": 128_256,
    "qwen2": 151_936,
    "llama2": 32_000,
    "tinystories-3m": 14_019,
    "tinystories-656k": 2_048,
}
LANGUAGES = ("ar", "de", "en", "hi", "ja", "th", "zh")


@dataclass(frozen=True)
class Named:
    """A real tokenizer and what charwise makes of it."""

    name: str
    tokenizer: Any
    vocabulary: Vocabulary
    index: SortedVocabulary

    @property
    def backend(self) -> Any:
        return self.tokenizer.backend_tokenizer


class Data:
    """The data folder. Everything it loads is loaded once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cache  # noqa: B019 - one object for the whole session
    def tokenizer(self, name: str) -> Any:
        from transformers import AutoTokenizer

        if name == "tinystories-656k":
            pytest.importorskip("gguf", reason="reading a GGUF file needs: pip install gguf")
            return AutoTokenizer.from_pretrained(
                self.folder / "models" / name, gguf_file="TinyStories-656K-Q8_0.gguf"
            )
        kind = "models" if name.startswith("tinystories") else "tokenizers"
        return AutoTokenizer.from_pretrained(self.folder / kind / name)

    @cache  # noqa: B019
    def named(self, name: str) -> Named:
        vocabulary = Vocabulary.from_transformers(self.tokenizer(name), width=WIDTHS[name])
        return Named(name, self.tokenizer(name), vocabulary, SortedVocabulary(vocabulary))

    def vocabulary(self, name: str) -> Vocabulary:
        return self.named(name).vocabulary

    def index(self, name: str) -> SortedVocabulary:
        return self.named(name).index

    @cache  # noqa: B019
    def text(self, language: str) -> str:
        """The first 4,000 characters of the Universal Declaration of Human Rights."""
        return (self.folder / "text" / f"udhr_{language}.txt").read_text(encoding="utf-8")[:4000]


@pytest.fixture(scope="session")
def data() -> Data:
    if not (FOLDER / "tokenizers").is_dir():
        pytest.skip(
            f"no test data in {FOLDER}: set the variable CHARWISE_DATA to the folder that has it"
        )
    return Data(FOLDER)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of a real language model, SmolLM2-135M; `smollm2-135m.gguf` lies beside it."""
    folder = ROOT / ".models" / "smollm2-135m"
    if not folder.is_dir():
        pytest.skip(f"no model in {folder}: make smollm2")
    return folder


@pytest.fixture(scope="session", params=WIDTHS)
def named(request: pytest.FixtureRequest, data: Data) -> Named:
    """Each of the seven real tokenizers in turn."""
    return data.named(request.param)


@pytest.fixture(scope="module")
def running_server() -> Iterator[Any]:
    """A completion server with the embedded model, one for each module of tests."""
    for part in ("fastapi", "prometheus_client", "uvicorn"):
        pytest.importorskip(part, reason="the server needs: pip install 'charwise[serve]'")
    from serving import running

    with running() as one:
        yield one


@pytest.fixture(scope="module")
def http(running_server: Any) -> Iterator[Any]:
    """A client of `running_server`."""
    import httpx

    with httpx.Client(base_url=running_server.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def lm() -> Any:
    """The embedded model."""
    return charwise.load()
