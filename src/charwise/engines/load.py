"""`open_engine`: a `TokenLM` from the embedded model, a folder, a hub name, or a GGUF file."""

from __future__ import annotations

import copyreg
import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from charwise.engines.pretrained import DEFAULT_MODEL, read_pretrained
from charwise.errors import SettingError
from charwise.models import EMBEDDED
from charwise.token_lm import TokenLM

__all__ = ["open_engine", "read_pretrained"]


def open_engine(
    model: str | os.PathLike[str] | None = None,
    *,
    device: str | None = None,
    dtype: str | None = None,
    engine: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    device_map: Any = None,
    quantization_config: Any = None,
) -> TokenLM:
    """The engine of a model; the same arguments give the same object again.

    Raises:
        ModelNotFoundError: what was looked for, and where.
        VocabularyError: a tokenizer that has no bytes.
        SettingError: for an unknown engine.

    >>> open_engine("embedded") is open_engine()
    True
    """
    name = DEFAULT_MODEL if model is None else os.fspath(model)
    chosen = engine or ("llama.cpp" if name.endswith(".gguf") else "transformers")
    if chosen not in _ENGINES:
        raise SettingError(f"unknown engine {engine!r}: use {' or '.join(map(repr, _ENGINES))}.")
    return _open(DEFAULT_MODEL if name == EMBEDDED else name, device, dtype, chosen)


@lru_cache(maxsize=4)
def _open(name: str, device: str | None, dtype: str | None, engine: str) -> TokenLM:
    return _ENGINES[engine](name, device, dtype)


def _transformers(name: str, device: str | None, dtype: str | None) -> TokenLM:
    from charwise.engines.transformers.lm import TransformersLM
    from charwise.tokens.vocabulary import Vocabulary

    copyreg.pickle(TransformersLM, _as_opened)
    model, tokenizer = read_pretrained(name, device, dtype)
    vocabulary = Vocabulary.from_transformers(
        tokenizer,
        model.config.get_text_config().vocab_size,
        generation_config=model.generation_config,
    )
    lm = TransformersLM(model, vocabulary)
    lm.opened = (name, device, dtype, "transformers")  # type: ignore[attr-defined]
    return lm


def _as_opened(lm: Any) -> Any:
    """How an engine is pickled: by how it was opened, if it was opened here."""
    opened = getattr(lm, "opened", None)
    return (_open, opened) if opened else object.__reduce_ex__(lm, 2)


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
