"""llama.cpp contexts: for which models and settings they are made, and how.

Keys and values are float32 and flash attention is off: with llama.cpp's own settings
log-probabilities are rounded in the second or third digit after the point.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, NamedTuple

from charwise.errors import EngineError, SettingError
from charwise.tokens.gguf import GgufModel, captured_log, library, reason


def check_kind(model: GgufModel) -> None:
    """Raise `EngineError` for models whose contexts cannot share prefixes."""
    for what, why in (
        ("is_recurrent", "has a recurrent state"),
        ("is_hybrid", "has layers with a recurrent state"),
        ("is_diffusion", "is a diffusion model"),
        ("has_encoder", "is an encoder-decoder or embedding model"),
    ):
        if getattr(library(), f"llama_model_{what}")(model.pointer):
            raise EngineError(
                f"{model.path} {why}, so llama.cpp cannot share the prefixes of its contexts. Use "
                "a causal language model with attention only, or load it with transformers."
            )


class Sizes(NamedTuple):
    """The sizes of a context; see `LlamaCppLM`."""

    window: int
    cells: int
    sequences: int
    threads: int
    gpu_layers: int

    def check(self, trained: int) -> None:
        """Raise `SettingError` for numbers that make no sense.

        Args:
            trained: the longest context of the model, tokens.
        """
        window, cells, sequences, threads, gpu_layers = self
        if not 1 <= window <= trained:
            raise SettingError(f"a window of {window}: this model has 1 to {trained} tokens.")
        if cells < window:
            raise SettingError(
                f"{cells} cells for a window of {window} tokens: a context of that length needs "
                "as many cells. Ask for more cells or a smaller window."
            )
        most = int(library().llama_max_parallel_sequences())
        if not 2 <= sequences <= most:
            raise SettingError(f"{sequences} sequences: llama.cpp was built for 2 to {most}.")
        if threads < 1:
            raise SettingError(f"{threads} threads: the number must be 1 or more.")
        if gpu_layers and not library().llama_supports_gpu_offload():
            raise SettingError(
                "this llama-cpp-python was built without support for a GPU: leave device out, or "
                "install it with CMAKE_ARGS='-DGGML_CUDA=on'."
            )


def open_context(model: GgufModel, sizes: Sizes) -> Any:
    """A llama.cpp context whose sequences share cells; freed with the model.

    Raises `EngineError` where there is no memory for it.
    """
    cells, sequences, threads = sizes.cells, sizes.sequences, sizes.threads
    llama = library()
    params = llama.llama_context_default_params()
    params.n_ctx = params.n_batch = max(cells, sequences)  # llama.cpp's least
    params.n_seq_max = sequences
    params.kv_unified = True
    params.swa_full = True  # branches need what a sliding window has left behind
    params.type_k = params.type_v = 0  # GGML_TYPE_F32
    params.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.n_threads = params.n_threads_batch = threads
    with captured_log() as said:
        pointer = llama.llama_init_from_model(model.pointer, params)
    if not pointer:
        raise EngineError(
            f"llama.cpp cannot make a context of {cells} cells for {model.path}: "
            f"{reason(said)}. Ask for a smaller window or fewer cells."
        )
    weakref.finalize(model, llama.llama_free, pointer)
    return pointer


def description(model: GgufModel) -> str:
    """The description of a model by llama.cpp: architecture, size, quantisation."""
    buffer = ctypes.create_string_buffer(256)
    library().llama_model_desc(model.pointer, buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace")
