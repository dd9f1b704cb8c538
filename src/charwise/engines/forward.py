"""One call of a transformers model: ids in, the logits that were asked for out."""

import copy
import inspect
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import scaled_dot_product_attention
from transformers.cache_utils import DynamicLayer
from transformers.models.gpt_neo.modeling_gpt_neo import GPTNeoSelfAttention

from charwise.errors import LimitError, ModelError

#: What the argument is called that takes a cache, and the output that returns it: the newest
#: name first. The last is an older one of models that carry a recurrent state.
_CACHES = ("cache", "past_key_values", "cache_params")


class SlotLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values, `[1, heads, slots, width]`, in buffers with room to grow.

    `DynamicLayer` copies the whole cache at every step; this appends in place.
    """

    #: The slots that a call attends to, those that it appends among them; None for all.
    chosen: torch.Tensor | None = None
    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._buffers: tuple[torch.Tensor, ...] = ()

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append slots; returns the keys and values of all, or of the chosen."""
        count = self.get_seq_length()
        needed = count + key_states.shape[-2]
        if not self._buffers or needed > self._buffers[0].shape[-2]:
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
            room = needed + max(64, needed // 4)
            pairs = ((self.keys, key_states), (self.values, value_states))
            self._buffers = tuple(_grown(old, count, new, room) for old, new in pairs)
        keys, values = self._buffers
        keys[:, :, count:needed] = key_states
        values[:, :, count:needed] = value_states
        self.keys, self.values = keys[:, :, :needed], values[:, :, :needed]
        if self.chosen is None:
            return self.keys, self.values
        index = self.chosen.to(keys.device)
        return self.keys.index_select(2, index), self.values.index_select(2, index)

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers, their room to grow included."""
        return sum(buffer.nbytes for buffer in self._buffers)

    def truncate(self, slots: int) -> None:
        """Free the slots from `slots` on."""
        if self.is_initialized and self.get_seq_length() > slots:
            self.keys, self.values = self.keys[:, :, :slots], self.values[:, :, :slots]

    def select(self, slots: torch.Tensor) -> None:
        """Keep these slots, in this order, in buffers of their size."""
        if self.is_initialized:
            index = slots.to(self.keys.device)
            self.keys = self.keys.index_select(2, index)
            self.values = self.values.index_select(2, index)
            self._buffers = (self.keys, self.values)


def _grown(old: torch.Tensor, count: int, new: torch.Tensor, room: int) -> torch.Tensor:
    """A buffer with so much room, and the first `count` of the old slots."""
    buffer = new.new_empty((*new.shape[:2], room, new.shape[3]))
    if count:
        buffer[:, :, :count] = old
    return buffer


class Forward:
    """A causal language model's forward pass, with the argument names of any family."""

    #: Bound on the logits, and on the attention mask, of one call: larger ones are split, but for
    #: the prompt's.
    batch_bytes = 256 * 2**20

    def __init__(self, model: Any, width: int) -> None:
        self.check(model)
        self.model, self._width = model, width
        self.config = model.config.get_text_config(decoder=True)
        self.attention = str(getattr(self.config, "_attn_implementation", None) or "unknown")
        names = inspect.signature(model.forward).parameters
        self._cache_name = next((name for name in _CACHES if name in names), "")
        if not self._cache_name or getattr(model.config, "is_encoder_decoder", False):
            raise ModelError(
                f"{type(model).__name__} is not a causal language model with a cache: it takes "
                f"none of {', '.join(_CACHES)}. Load one that is, by AutoModelForCausalLM."
            )
        self._takes_positions = "position_ids" in names
        self._takes_keep = "logits_to_keep" in names
        #: The masks of its layers: name → window in tokens, None for all of the path.
        self.windows: dict[str, int | None] = {}
        #: Why no mask can say who sees whom; None where one can.
        self.unmaskable = self._find_masks()

    @staticmethod
    def check(model: Any) -> None:
        """Raise `ModelError` for an object that is no causal language model."""
        if not hasattr(model, "config") or not hasattr(model, "generate"):
            raise ModelError(
                f"{type(model).__name__} is no causal language model of transformers: load one "
                "with AutoModelForCausalLM.from_pretrained."
            )

    def _find_masks(self) -> str | None:
        """Set `windows` as transformers makes masks, or say why there are none."""
        config = self.config
        if "flash" in self.attention:
            return f'{self.attention} takes no mask; load with attn_implementation="sdpa" for it'
        if self._cache_name == "cache_params":
            return "its layers carry a recurrent state"
        if not self._takes_positions:
            return "it cannot be told positions"
        layers = getattr(config, "per_layer_config", ())
        if len({getattr(layer, "sliding_window", None) for layer in layers}) > 1:
            return "its layers have sliding windows of different sizes"
        types = set(getattr(config, "layer_types", None) or ())
        if others := types - {"full_attention", "sliding_attention"}:
            return f"it has layers that take no mask: {', '.join(sorted(others))}"
        window = getattr(config, "sliding_window", None)
        if "sliding_attention" in types:
            # Single masks are silently wrong for these: every layer would use the same one.
            self.windows = {"full_attention": None, "sliding_attention": window}
        elif not types and getattr(config, "attention_chunk_size", None) is not None:
            return "its attention is chunked"
        else:
            self.windows = {"": None if types else window}
        return None

    def with_mask(
        self, ids: list[int], cache: Any, positions: NDArray[np.int64],
        visible: Mapping[str, NDArray[np.bool_]], keep: int,
    ) -> torch.Tensor:  # fmt: skip
        """Logits `[kept, width]` of tokens that see these slots, `[n, slots]` for each mask."""
        masks = {name: self._additive(seen) for name, seen in visible.items()}
        mask = masks if len(masks) > 1 else masks[""]
        return self([ids], cache, positions=positions, attention_mask=mask, keep=keep)[0]

    def _additive(self, seen: NDArray[np.bool_]) -> torch.Tensor:
        """0 where seen, else the least float: `[1, 1, q, slots]`.

        Never boolean: eager attention would *add* True and False to its scores.
        """
        hidden = torch.from_numpy(~seen).to(self.model.device)
        mask = torch.zeros_like(hidden, dtype=self.model.dtype)
        return mask.masked_fill_(hidden, torch.finfo(mask.dtype).min)[None, None]

    @torch.inference_mode()
    def __call__(
        self,
        ids: list[list[int]],
        cache: Any = None,
        *,
        positions: NDArray[np.int64] | None = None,
        attention_mask: torch.Tensor | dict[str, torch.Tensor] | None = None,
        keep: int = 0,
    ) -> torch.Tensor:
        """Logits `[batch, kept, width]` of ids `[batch, n]`; the cache grows by them.

        Args:
            positions: `[n]`, the same for all rows.
            attention_mask: additive; by default the model's own causal mask.
            keep: of the n positions, how many at the end; 0 for all of them.
        """
        device = self.model.device
        arguments: dict[str, Any] = {
            "input_ids": torch.tensor(ids, dtype=torch.long, device=device),
            "use_cache": cache is not None,
            "return_dict": True,
        }
        if cache is not None:
            arguments[self._cache_name] = cache
        if positions is not None and self._takes_positions:
            arguments["position_ids"] = torch.from_numpy(positions).to(device).expand(len(ids), -1)
        if attention_mask is not None:
            arguments["attention_mask"] = attention_mask
        if self._takes_keep:
            arguments["logits_to_keep"] = keep
        try:
            logits: torch.Tensor = self.model(**arguments).logits
        except IndexError as error:
            length = len(ids[0]) if positions is None else int(positions.max()) + 1
            raise LimitError(
                f"{type(self.model).__name__} fails at a context of {length} tokens, or at one of "
                f"their ids ({error}): its embeddings end there. State how long a context it "
                "takes, as TransformersLM(…, window=…)."
            ) from error
        if logits.shape[-1] != self._width:
            raise ModelError(
                f"the model's output layer has width {logits.shape[-1]}, the vocabulary "
                f"{self._width}. Make the vocabulary with width={logits.shape[-1]}."
            )
        return logits if self._takes_keep else logits[:, -keep:]


class GPTNeoForward(Forward):
    """A GPT-Neo, whose local windows are cut by slot, and slots of a tree are not positions.

    So a twin of the model, which shares all weights and leaves the user's as it is, attends by the
    mask of each layer's own kind.
    """

    def __init__(self, model: Any, width: int) -> None:
        super().__init__(model, width)
        self.windows = {"global": None, "local": self.config.window_size}
        shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        self.twin = Forward(copy.deepcopy(model, shared), width)
        self._masks: dict[str, torch.Tensor] = {}
        self._lock = threading.Lock()  # the masks are of one call at a time
        for module in self.twin.model.modules():
            if isinstance(module, GPTNeoSelfAttention):
                module._attn = _MaskedAttention(self._masks, module.attention_type)

    def with_mask(
        self, ids: list[int], cache: Any, positions: NDArray[np.int64],
        visible: Mapping[str, NDArray[np.bool_]], keep: int,
    ) -> torch.Tensor:  # fmt: skip
        with self._lock:
            self._masks.update({name: self._additive(seen) for name, seen in visible.items()})
            return self.twin([ids], cache, positions=positions, keep=keep)[0]


class _MaskedAttention:
    """Stands for the method `_attn` of a GPT-Neo attention module, whose scores are not scaled."""

    def __init__(self, masks: dict[str, torch.Tensor], name: str) -> None:
        self._masks, self._name = masks, name

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: object
    ) -> tuple[torch.Tensor, None]:
        mask = self._masks[self._name]
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=1.0), None
