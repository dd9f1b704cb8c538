"""`load`: a `CharLM` from the embedded model, a folder, or a hub name."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

from charwise.errors import EngineError, ModelNotFoundError, SettingError
from charwise.model import CharLM
from charwise.models import EMBEDDED


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
        model: a folder, or a name on the Hugging Face hub.
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
    """
    if engine != "transformers":
        raise SettingError(f"unknown engine {engine!r}: use 'transformers'.")
    name = EMBEDDED if model is None else os.fspath(model)
    return _load(name, device, dtype, engine, preset)


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


def read_pretrained(name: str, device: str | None = None, dtype: str | None = None) -> Any:
    """The transformers model and tokenizer of a folder or a hub name, as (model, tokenizer).

    Raises:
        ModelNotFoundError: if it is neither.
        SettingError: for an unknown dtype or a device that is not there.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if dtype is None:
        chosen: Any = torch.float32 if where == "cpu" else "auto"
    else:
        chosen = getattr(torch, dtype, None)
        if not isinstance(chosen, torch.dtype):
            raise SettingError(f"unknown dtype {dtype!r}: use float32, bfloat16 or float16.")
    if os.path.isdir(name) and not os.path.exists(os.path.join(name, "config.json")):
        raise ModelNotFoundError(f"the folder {name} has no config.json: not a model's folder.")
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        model = AutoModelForCausalLM.from_pretrained(name, dtype=chosen)
    except (OSError, ValueError) as error:
        if os.path.isdir(name):
            raise EngineError(f"the model in {name} cannot be loaded: {error}") from error
        raise ModelNotFoundError(
            f"no model {name!r}: there is no such folder here, and the Hugging Face hub (or its "
            "local cache) does not give a causal language model of that name. Check the "
            "spelling and the connection, or pass the folder of a downloaded model."
        ) from error
    finally:
        if bars:
            logging.enable_progress_bar()
    try:
        return model.to(where).eval(), tokenizer
    except (RuntimeError, AssertionError) as error:
        raise SettingError(f"cannot use the device {where!r}: {error}") from error
