"""Tree attention for GPT-Neo, which cuts its local windows by slot, from a buffer of its own.

In a tree, slots are not positions, and there may be more of them than that buffer is long. So a
twin of the model, which shares all weights and leaves the user's model as it is, attends by the
mask of each layer's own kind. In one fused operation, as transformers lets other models: theirs
writes the scores of every head to memory several times.
"""

from __future__ import annotations

import copy
import threading

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import scaled_dot_product_attention
from transformers.cache_utils import Cache
from transformers.models.gpt_neo.modeling_gpt_neo import GPTNeoSelfAttention

from charwise.engines.transformers.forward import Forward
from charwise.engines.transformers.tree_attention import MaskedForward, Masks


class GPTNeoForward(MaskedForward):
    """Calls a twin of a GPT-Neo with a mask for its global layers and one for its local ones."""

    def __init__(self, forward: Forward) -> None:
        shared = {id(t): t for t in (*forward.model.parameters(), *forward.model.buffers())}
        twin = Forward(copy.deepcopy(forward.model, shared), forward.width)
        super().__init__(twin, Masks({"": None, "local": forward.config.window_size}, named=False))
        self.seen: dict[str, torch.Tensor] = {}
        self._lock = threading.Lock()  # `seen` is of one call at a time
        for module in self.plain.model.modules():
            if isinstance(module, GPTNeoSelfAttention):
                module._attn = _MaskedAttention(self.seen, module.attention_type)

    def __call__(
        self,
        tokens: list[int],
        cache: Cache,
        positions: NDArray[np.int64],
        visible: dict[str, NDArray[np.bool_]],
        keep: int | torch.Tensor,
    ) -> torch.Tensor:
        """Logits `[1, kept, width]`."""
        with self._lock:
            for name, key in (("global", ""), ("local", "local")):
                self.seen[name] = self._additive(visible[key])
            return self.plain([tokens], cache, positions=positions, keep=keep)


class _MaskedAttention:
    """Stands for the method `_attn` of a GPT-Neo attention module, whose scores are not scaled."""

    def __init__(self, seen: dict[str, torch.Tensor], name: str) -> None:
        self._seen, self._name = seen, name

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: object
    ) -> tuple[torch.Tensor, None]:
        mask = self._seen[self._name]
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=1.0), None
