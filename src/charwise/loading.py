"""`load`: a `CharLM` from the embedded model, a folder, or a hub name."""

from __future__ import annotations

import os
from functools import lru_cache

from charwise.errors import SettingError
from charwise.model import CharLM
from charwise.models import EMBEDDED
from charwise.pretrained import DEFAULT_MODEL, read_pretrained

__all__ = ["load", "read_pretrained"]


def load(
    model: str | os.PathLike[str] | None = None,
    *,
    device: str | None = None,
    dtype: str | None = None,
    engine: str = "transformers",
    preset: str = "default",
) -> CharLM:
    """Load a causal language model; with no argument the embedded one, offline.

    The same arguments give the same object again.

    Args:
        model: "embedded", a folder, or a name on the Hugging Face hub.
        device: "cpu", "cuda", …; by default a GPU if there is one.
        dtype: "float32", "bfloat16" or "float16"; by default float32 on a CPU, else the
            model's own.
        engine: "transformers".
        preset: the default effort, see `CharLM.score`.

    Raises:
        ModelNotFoundError: what was looked for, and where.
        VocabularyError: a tokenizer that has no bytes.

    >>> load().info()["engine"].split()[0]
    'transformers'
    >>> load("embedded") is load()
    True
    """
    if engine != "transformers":
        raise SettingError(f"unknown engine {engine!r}: use 'transformers'.")
    name = DEFAULT_MODEL if model is None else os.fspath(model)
    return _load(DEFAULT_MODEL if name == EMBEDDED else name, device, dtype, engine, preset)


@lru_cache(maxsize=4)
def _load(name: str, device: str | None, dtype: str | None, engine: str, preset: str) -> CharLM:
    from charwise.engines.transformers import TransformersLM
    from charwise.vocabulary import Vocabulary

    model, tokenizer = read_pretrained(name, device, dtype)
    vocabulary = Vocabulary.from_transformers(
        tokenizer,
        model.config.get_text_config().vocab_size,
        generation_config=model.generation_config,
    )
    origin = (name, {"device": device, "dtype": dtype, "engine": engine, "preset": preset})
    return CharLM(TransformersLM(model, vocabulary), preset=preset, origin=origin)
