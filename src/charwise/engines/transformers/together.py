"""One model call for the contexts of several trees.

Trees of different prompts have caches of their own. What a step of one token costs is reading the
weights and starting each operation, and that is the same for eight tokens as for one: so the new
tokens of several trees go through the model as one row of ids, and part only where they attend,
each tree's to its own slots. transformers looks attention up by name at every call: under a name
of its own, for the length of the call, stands a function that calls the model's attention once
for each tree.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from charwise.engines.transformers.tree_attention import FlatCache, MaskedForward

#: Held while a model has the other name: of two calls at once, one would give the name back while
#: the other still needs it, and that one would then leave the wrong name behind.
_NAMED = threading.Lock()


class _Parts(NamedTuple):
    """The stand-in for attention's tensor: one for each tree, `[1, heads, slots, width]`.

    `ends`: of each tree's part of the row of ids.
    """

    tensors: list[torch.Tensor]
    ends: list[int]


class _JointLayer:
    """The same layer of several trees' caches, as one layer of a cache."""

    is_initialized = True
    is_sliding = False
    is_compileable = False

    def __init__(self, layers: Sequence[Any], ends: list[int]) -> None:
        self._layers = layers
        self._ends = ends

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[_Parts, _Parts]:
        """Append to each tree its part; returns the keys and values of all."""
        keys, values, start = [], [], 0
        for layer, end in zip(self._layers, self._ends, strict=True):
            key, value = layer.update(key_states[:, :, start:end], value_states[:, :, start:end])
            keys.append(key)
            values.append(value)
            start = end
        return _Parts(keys, self._ends), _Parts(values, self._ends)

    def get_seq_length(self, *args: Any) -> int:
        """Nothing is read off it: positions and masks are given."""
        return 0


def parted(attention: str) -> str | None:
    """The name of this attention, parted where several trees are evaluated; None if there is none.

    For whoever calls the model meanwhile, with plain tensors, it is the attention that it was.

    >>> parted("sdpa"), parted("eager")
    ('charwise_sdpa', None)
    """
    if attention not in ALL_ATTENTION_FUNCTIONS or attention not in ALL_MASK_ATTENTION_FUNCTIONS:
        return None
    name, plain = f"charwise_{attention}", ALL_ATTENTION_FUNCTIONS[attention]

    def attend(
        module: Any, query: torch.Tensor, key: Any, value: Any, attention_mask: Any, **rest: Any
    ) -> Any:
        if isinstance(key, torch.Tensor):
            return plain(module, query, key, value, attention_mask, **rest)
        found, start = [], 0
        for keys, values, end in zip(key.tensors, value.tensors, key.ends, strict=True):
            mask = attention_mask[:, :, start:end, : keys.shape[2]]
            part = query[:, :, start:end]  # [1, heads, rows, width]
            found.append(plain(module, part, keys, values, mask, **rest)[0])
            start = end
        return torch.cat(found, dim=1), None  # [1, rows, heads, width]

    if name not in ALL_ATTENTION_FUNCTIONS:
        AttentionInterface.register(name, attend)
        AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[attention])
    return name


class Together:
    """Evaluates new contexts of several trees of one model in one call.

    Args:
        masked: the model, called with masks.
        name: of its attention, parted.
    """

    def __init__(self, masked: MaskedForward, name: str) -> None:
        self._masked = masked
        self._name = name

    def append(
        self,
        caches: Sequence[FlatCache],
        parents: Sequence[NDArray[np.int64]],
        tokens: Sequence[list[int]],
    ) -> list[torch.Tensor]:
        """Evaluate a row below each parent: of each cache, the logits `[n, width]`.

        After a failure the caller truncates the caches.
        """
        placed = [cache.place(rows) for cache, rows in zip(caches, parents, strict=True)]
        ends = np.cumsum([len(rows) for rows in parents]).tolist()
        config = self._masked.plain.config
        with _NAMED:
            before = config._attn_implementation_internal
            config._attn_implementation_internal = self._name
            try:
                logits = self._masked(
                    [token for some in tokens for token in some],
                    _joint(caches, ends),
                    np.concatenate([positions for positions, _ in placed]),
                    _stacked([visible for _, visible in placed]),
                    0,
                )[0]
            finally:
                config._attn_implementation_internal = before
        # Each in memory of its own: a view would keep the others' alive.
        sizes = [len(rows) for rows in parents]
        return [part.clone() for part in torch.split(logits, sizes)]


def _joint(caches: Sequence[FlatCache], ends: list[int]) -> Cache:
    """The caches as one."""
    layers = zip(*(cache.layers for cache in caches), strict=True)
    return Cache(layers=[_JointLayer(some, ends) for some in layers])


def _stacked(visible: Sequence[dict[str, NDArray[np.bool_]]]) -> dict[str, NDArray[np.bool_]]:
    """The slots that rows see of their own tree: `[rows, most slots]`, by mask."""
    most = max(seen.shape[1] for one in visible for seen in one.values())
    return {
        name: np.concatenate(
            [np.pad(one[name], ((0, 0), (0, most - one[name].shape[1]))) for one in visible]
        )
        for name in visible[0]
    }
