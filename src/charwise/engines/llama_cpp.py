"""GGUF models as a `TokenLM`, by llama.cpp: all trees of a model share one llama.cpp context.

Keys and values are in float32 and flash attention is off, for numbers that agree with other
engines. Only causal models without a recurrent state can share prefixes.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from charwise.engine import Branches
from charwise.engines.base import BaseTree
from charwise.engines.llama_cells import Cells
from charwise.errors import ModelError, SettingError
from charwise.tokens.gguf import GgufModel, captured_log, library
from charwise.tokens.vocabulary import Vocabulary


class LlamaCppLM:
    """A model in a GGUF file.

    Args:
        path: of the file.
        vocabulary: by default the file's own.
        window: longest context in tokens; by default the model's, up to 4,096.
        cells: how many tokens' keys and values to hold; by default the window and 2,048 more.
            All of them are reserved at once. More let larger trees stay evaluated.
        sequences: of llama.cpp, 2 to 256: it holds as many deepest contexts, or half of them for a
            model with sliding windows.
        threads: of a call; by default as many as torch uses.
        gpu_layers: how many layers to compute on a GPU, −1 for all.

    Raises:
        ModelError: there is no such file; llama.cpp cannot load it, has no memory for its cells,
            or the model cannot share prefixes; a vocabulary of another width.
        VocabularyError: the file's vocabulary has no bytes.
        SettingError: a number that makes no sense.

    >>> lm = LlamaCppLM("model.gguf", window=512)  # doctest: +SKIP
    >>> tree = lm.tree(lm.vocabulary.bos_ids)  # doctest: +SKIP
    >>> tree.logprobs(tree.extend([(0, [15, 7])])[0]).shape  # doctest: +SKIP
    torch.Size([2, 2048])
    """

    device = torch.device("cpu")
    #: Bound on the logits of one call.
    batch_bytes = 256 * 2**20

    def __init__(
        self,
        path: str | os.PathLike[str],
        vocabulary: Vocabulary | None = None,
        *,
        window: int | None = None,
        cells: int | None = None,
        sequences: int = 256,
        threads: int | None = None,
        gpu_layers: int = 0,
    ) -> None:
        again = partial(
            LlamaCppLM, window=window, cells=cells, sequences=sequences, threads=threads,
            gpu_layers=gpu_layers,
        )  # fmt: skip
        #: What `__reduce__` returns: how to open this engine again.
        self.origin: tuple[Any, ...] = again, (path, vocabulary)
        llama = library()
        self._model = GgufModel(path, n_gpu_layers=gpu_layers)
        _check_kind(self._model)
        self.vocabulary = self._model.vocabulary() if vocabulary is None else vocabulary
        if self.vocabulary.width != self._model.width:
            raise ModelError(
                f"the model's output layer has width {self._model.width}, the vocabulary "
                f"{self.vocabulary.width}. Make the vocabulary with width={self._model.width}."
            )
        trained = int(llama.llama_model_n_ctx_train(self._model.pointer))
        # The longest window that is taken without being asked for: cells are reserved, not grown.
        self.window = min(trained, 4096) if window is None else window
        self.threads = torch.get_num_threads() if threads is None else threads
        self._gpu_layers = gpu_layers
        count = self.window + self._spare() if cells is None else cells
        # llama.cpp gives away a cell that a single sequence has left behind its sliding window,
        # which branches need: there, two sequences hold each context.
        copies = 2 if llama.llama_model_n_swa(self._model.pointer) else 1
        most = int(llama.llama_max_parallel_sequences())
        for name, value, least, limit in (
            ("window", self.window, 1, trained),
            ("cells", count, self.window, 2**31 - 1),  # a context needs as many as its tokens
            ("sequences", sequences, 2 * copies, most),
            ("threads", self.threads, 1, 2**31 - 1),
        ):
            if not least <= value <= limit:
                raise SettingError(
                    f"{name} is {value}: {self._model.path} takes {least} to {limit}."
                )
        if gpu_layers and not llama.llama_supports_gpu_offload():
            raise SettingError(
                "this llama-cpp-python was built without support for a GPU: leave device out, or "
                "install it with CMAKE_ARGS='-DGGML_CUDA=on'."
            )
        self.cells = Cells(
            self._open_context(count, sequences),
            np.zeros((sequences // copies, self.window), np.int32),
            count,
            copies,
            self.vocabulary.width,
        )
        self.lock = threading.RLock()

    def __reduce__(self) -> tuple[Any, ...]:
        return self.origin

    def tree(self, prompt_ids: Sequence[int], branches: Branches = ()) -> _LlamaCppTree:
        return _LlamaCppTree(self, prompt_ids, branches)

    def info(self) -> dict[str, str]:
        metadata = self._model.metadata
        about = ctypes.create_string_buffer(256)  # architecture, size, quantisation
        library().llama_model_desc(self._model.pointer, about, len(about))
        return {
            "engine": f"llama.cpp by llama-cpp-python {library().__version__}",
            "model": metadata.get("general.name", self._model.path.name),
            "device": f"{self._gpu_layers} layers on a GPU" if self._gpu_layers else "cpu",
            "dtype": f"{about.value.decode('utf-8', 'replace')}, keys and values in float32",
            "attention": f"{self.threads} threads",
            "path": "shared sequences",
            "why": (
                f"{self.cells.sequences} sequences over {self.cells.count} cells; what they cannot "
                "hold is evaluated again"
            ),
        }

    def _open_context(self, cells: int, sequences: int) -> Any:
        """A llama.cpp context whose sequences share cells; freed with the model."""
        llama = library()
        params = llama.llama_context_default_params()
        params.n_ctx = params.n_batch = max(cells, sequences)  # llama.cpp's least
        params.n_seq_max = sequences
        params.kv_unified = True
        params.swa_full = True
        params.type_k = params.type_v = 0  # GGML_TYPE_F32
        params.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.n_threads = params.n_threads_batch = self.threads
        with captured_log() as said:
            pointer = llama.llama_init_from_model(self._model.pointer, params)
        if not pointer:
            raise ModelError(
                f"llama.cpp cannot make a context of {cells} cells for {self._model.path}: "
                f"{said[0]}. Ask for a smaller window or fewer cells."
            )
        weakref.finalize(self._model, llama.llama_free, pointer)
        return pointer

    def _spare(self) -> int:
        """Cells beyond the window, for the branches of a tree.

        None where more of them than the original context would stretch all positions: llama.cpp
        chooses that by the number of cells.
        """
        metadata = self._model.metadata
        key = f"{metadata.get('general.architecture')}.rope.scaling.original_context_length"
        return 0 if self.window <= int(metadata.get(key, 0)) else 2048


def _check_kind(model: GgufModel) -> None:
    """Raise `ModelError` for models whose contexts cannot share prefixes."""
    for what, why in (
        ("is_recurrent", "has a recurrent state"),
        ("is_hybrid", "has layers with a recurrent state"),
        ("is_diffusion", "is a diffusion model"),
        ("has_encoder", "is an encoder-decoder or embedding model"),
    ):
        if getattr(library(), f"llama_model_{what}")(model.pointer):
            raise ModelError(
                f"{model.path} {why}, so llama.cpp cannot share the prefixes of its contexts. Use "
                "a causal language model with attention only, or load it with transformers."
            )


class _LlamaCppTree(BaseTree):
    """The `TokenTree` of a `LlamaCppLM`."""

    def __init__(self, lm: LlamaCppLM, prompt_ids: Sequence[int], branches: Branches) -> None:
        super().__init__(lm, prompt_ids, branches, lock=lm.lock)
        self._lm = lm
        with lm.lock:
            self._evaluate(self.live)
        self.contexts = self.size

    def _evaluate(self, nodes: list[int]) -> None:
        """In as many calls as keep to `batch_bytes`, and to the cells."""
        contexts = {-1: tuple(self._prompt_ids[:-1])}
        for node in nodes:
            above, token = self._parent[node], self._token[node]
            if above not in contexts:
                contexts[above] = (*self._prompt_ids, *self.tokens(above))
            contexts[node] = (*contexts[above], token if node else self._prompt_ids[-1])
        cells, most = self._lm.cells, max(1, self._lm.batch_bytes // (4 * self._width))
        while nodes:
            part, leaves = list[int](), set[int]()
            for node in nodes[:most]:
                leaves.discard(self._parent[node])
                leaves.add(node)
                if len(leaves) > cells.sequences // 2:
                    break
                part.append(node)
            part.sort(key=contexts.__getitem__)
            logits = cells.evaluate([contexts[node] for node in part], self)
            self._put(part[: len(logits)], torch.from_numpy(logits))
            self.calls += 1
            evaluated = set(part[: len(logits)])
            nodes = [node for node in nodes if node not in evaluated]
