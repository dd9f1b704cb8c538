"""`load`: a `CharLM` from the embedded model, a folder, a hub name, or a GGUF file."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache

from charwise.engines.pretrained import DEFAULT_MODEL, read_pretrained
from charwise.errors import SettingError
from charwise.model import CharLM
from charwise.models import EMBEDDED
from charwise.token_lm import TokenLM

__all__ = ["load", "read_pretrained"]


def load(
    model: str | os.PathLike[str] | None = None,
    *,
    device: str | None = None,
    dtype: str | None = None,
    engine: str | None = None,
    preset: str = "default",
) -> CharLM:
    """Load a causal language model; with no argument the embedded one, offline.

    The same arguments give the same object again.

    Args:
        model: "embedded", a folder, a name on the Hugging Face hub, or a `.gguf` file.
        device: "cpu", "cuda", …; by default a GPU if there is one.
        dtype: "float32", "bfloat16" or "float16"; by default float32 on a CPU, else the
            model's own. A GGUF file has its own.
        engine: "transformers", "vllm", or "llama.cpp" for `.gguf` files, whose default it is.
        preset: the default effort, see `CharLM.score`.

    Raises:
        ModelNotFoundError: what was looked for, and where.
        VocabularyError: a tokenizer that has no bytes.

    >>> load().info()["engine"].split()[0]
    'transformers'
    >>> load("embedded") is load()
    True
    """
    name = DEFAULT_MODEL if model is None else os.fspath(model)
    chosen = engine or ("llama.cpp" if name.endswith(".gguf") else "transformers")
    if chosen not in _ENGINES:
        raise SettingError(f"unknown engine {engine!r}: use {' or '.join(map(repr, _ENGINES))}.")
    return _load(DEFAULT_MODEL if name == EMBEDDED else name, device, dtype, chosen, preset)


@lru_cache(maxsize=4)
def _load(name: str, device: str | None, dtype: str | None, engine: str, preset: str) -> CharLM:
    origin = (name, {"device": device, "dtype": dtype, "engine": engine, "preset": preset})
    return CharLM(_ENGINES[engine](name, device, dtype), preset=preset, origin=origin)


def _transformers(name: str, device: str | None, dtype: str | None) -> TokenLM:
    from charwise.engines.transformers.lm import TransformersLM
    from charwise.tokens.vocabulary import Vocabulary

    model, tokenizer = read_pretrained(name, device, dtype)
    vocabulary = Vocabulary.from_transformers(
        tokenizer,
        model.config.get_text_config().vocab_size,
        generation_config=model.generation_config,
    )
    return TransformersLM(model, vocabulary)


def _llama_cpp(name: str, device: str | None, dtype: str | None) -> TokenLM:
    from charwise.engines.llama_cpp.lm import LlamaCppLM

    if dtype is not None:
        raise SettingError(
            f"dtype is {dtype!r}, but a GGUF file has its own: leave it out, or take another file."
        )
    return LlamaCppLM(name, gpu_layers=0 if device in (None, "cpu") else -1)


def _vllm(name: str, device: str | None, dtype: str | None) -> TokenLM:
    from charwise.engines.vllm import load_vllm

    return load_vllm(name, device, dtype)


#: How each engine opens a model: (name, device, dtype) → `TokenLM`.
_ENGINES: dict[str, Callable[[str, str | None, str | None], TokenLM]] = {
    "transformers": _transformers,
    "llama.cpp": _llama_cpp,
    "vllm": _vllm,
}
