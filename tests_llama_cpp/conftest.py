"""Fixtures: real GGUF files, made here or from outside the repository, and their references.

These tests need llama-cpp-python, whose build takes minutes, so they live in an environment of
their own: `make test-llama-cpp`.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "engines")]

# The same data folder, and the same reasons to skip, as the other tests have.
_spec = importlib.util.spec_from_file_location("charwise_test_data", ROOT / "tests" / "conftest.py")
_shared: Any = importlib.util.module_from_spec(_spec)
sys.modules["charwise_test_data"] = _shared
_spec.loader.exec_module(_shared)
data = _shared.data


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Models this small only lose time to a second thread."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the GGUF files that the tests make."""
    return tmp_path_factory.mktemp("gguf")


@pytest.fixture(scope="session")
def embedded_file(files: Path) -> Path:
    """The embedded model as a GGUF file in float32."""
    import convert
    from transformers import AutoModelForCausalLM

    from charwise.models import EMBEDDED

    model = AutoModelForCausalLM.from_pretrained(EMBEDDED, dtype=torch.float32)
    return convert.write_model(files / "embedded.gguf", model, Path(EMBEDDED))


@pytest.fixture(scope="session")
def stories_file(data: Any) -> Path:
    """A real GGUF file, quantised to eight bits."""
    return data.folder / "models" / "tinystories-656k" / "TinyStories-656K-Q8_0.gguf"


@pytest.fixture(scope="session")
def stories_float_file(stories_file: Path, files: Path) -> Path:
    """The same, with its weights in float32, so that no arithmetic is quantised either."""
    import convert

    return convert.dequantized(stories_file, files / "stories-f32.gguf")
