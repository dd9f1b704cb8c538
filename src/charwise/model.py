"""`load`, which opens a model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Unpack

from charwise.char_lm import CharLM
from charwise.scoring.effort import Effort

if TYPE_CHECKING:
    from charwise.engines.load import LoadKeywords


def load(
    model: str | os.PathLike[str] | None = None,
    *,
    preset: str | Effort | None = None,
    tolerance: float | None = None,
    **settings: Unpack[LoadKeywords],
) -> CharLM:
    """Load a causal language model; with no argument the embedded one, offline.

    The same arguments give the same engine again, while it is in use: weights are held once.

    Args:
        model: "embedded", a folder, a name on the Hugging Face hub, or a `.gguf` file.
        preset, tolerance: the default effort, see `CharLM.score`.
        settings: `device` ("cpu", "cuda", …; by default a GPU if there is one); `dtype` ("float32",
            "bfloat16" or "float16"; by default float32 on a CPU, else the model's own; a GGUF file
            has its own); `engine` ("transformers", "vllm", or "llama.cpp" for `.gguf` files, whose
            default it is); `revision` (branch, tag or commit on the hub); `trust_remote_code` (run
            the model's own code); `device_map` and `quantization_config`, handed to transformers'
            `from_pretrained`.

    Raises:
        ModelError: what was looked for, and where.
        VocabularyError: a tokenizer that has no bytes.
        SettingError: for an unknown engine, device, dtype or preset.

    >>> load().info()["engine"].split()[0]
    'transformers'
    >>> load("embedded", preset="fast").engine is load().engine
    True
    """
    from charwise.engines.load import open_engine

    return CharLM(open_engine(model, **settings), preset=preset, tolerance=tolerance)
