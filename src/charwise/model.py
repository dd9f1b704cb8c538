"""`load`, which opens a model; and `CharLM`, which it returns."""

from __future__ import annotations

import os
from typing import Any

from charwise.char_lm import CharLM
from charwise.known_text.effort import Effort
from charwise.token_lm import Estimand

__all__ = ["CharLM", "load"]


def load(
    model: str | os.PathLike[str] | None = None,
    *,
    device: str | None = None,
    dtype: str | None = None,
    engine: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    device_map: Any = None,
    quantization_config: Any = None,
    preset: str | Effort | None = None,
    tolerance: float | None = None,
    estimand: Estimand = "all",
) -> CharLM:
    """Load a causal language model; with no argument the embedded one, offline.

    The same arguments give the same engine again, while it is in use: weights are held once.

    Args:
        model: "embedded", a folder, a name on the Hugging Face hub, or a `.gguf` file.
        device: "cpu", "cuda", …; by default a GPU if there is one.
        dtype: "float32", "bfloat16" or "float16"; by default float32 on a CPU, else the
            model's own. A GGUF file has its own.
        engine: "transformers", "vllm", or "llama.cpp" for `.gguf` files, whose default it is.
        revision: branch, tag or commit on the hub.
        trust_remote_code: run the model's own code, as transformers' argument of that name.
        device_map, quantization_config: handed to transformers' `from_pretrained`.
        preset, tolerance: the default effort, see `CharLM.score`.
        estimand: which token strings count: "all" that spell a text; "canonical", those that the
            tokenizer itself may produce, renormalised at each token; or "canonical-mass", the
            share of those without renormalisation. See docs/coverings.md.

    Raises:
        ModelNotFoundError: what was looked for, and where.
        VocabularyError: a tokenizer that has no bytes, or whose merges cannot be read where only
            canonical token strings count.
        SettingError: for an unknown engine, device, dtype, preset or estimand.

    >>> load().info()["engine"].split()[0]
    'transformers'
    >>> load("embedded", preset="fast").engine is load().engine
    True
    >>> load(estimand="canonical").info()["estimand"]
    'canonical'
    """
    from charwise.engines.load import open_engine, with_estimand

    opened = open_engine(
        model,
        device=device,
        dtype=dtype,
        engine=engine,
        revision=revision,
        trust_remote_code=trust_remote_code,
        device_map=device_map,
        quantization_config=quantization_config,
    )
    return CharLM(with_estimand(opened, estimand), preset=preset, tolerance=tolerance)
