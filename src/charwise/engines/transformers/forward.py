"""One call of a transformers model: ids in, the logits that were asked for out."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from charwise.errors import ContextLengthError, EngineError

#: What the argument is called that takes a cache, and the output that returns it: the newest
#: name first. The last is an older one of models that carry a recurrent state.
_CACHES = ("cache", "past_key_values", "cache_params")


class Forward:
    """A causal language model's forward pass, with the argument names of any family.

    Attributes:
        config: of the text model.
        cache_name: the argument that takes a cache, and the output that returns it.
        takes_positions: whether the model can be told positions.
    """

    def __init__(self, model: Any, width: int) -> None:
        self.model = model
        self.config = model.config.get_text_config(decoder=True)
        self.width = width
        names = inspect.signature(model.forward).parameters
        self.cache_name = next((name for name in _CACHES if name in names), "")
        if not self.cache_name or getattr(model.config, "is_encoder_decoder", False):
            raise EngineError(
                f"{type(model).__name__} is not a causal language model with a cache: it takes "
                f"none of {', '.join(_CACHES)}. Load one that is, by AutoModelForCausalLM."
            )
        self.takes_positions = "position_ids" in names
        self._takes_keep = "logits_to_keep" in names

    @property
    def device(self) -> torch.device:
        """Where ids go in."""
        device: torch.device = self.model.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the model's weights."""
        dtype: torch.dtype = self.model.dtype
        return dtype

    @property
    def attention(self) -> str:
        """The attention implementation: eager, sdpa, flash_attention_2, …"""
        return str(getattr(self.config, "_attn_implementation", None) or "unknown")

    @torch.inference_mode()
    def __call__(
        self,
        ids: list[list[int]],
        cache: Any = None,
        *,
        positions: NDArray[np.int64] | None = None,
        attention_mask: torch.Tensor | dict[str, torch.Tensor] | None = None,
        keep: int | torch.Tensor = 0,
    ) -> torch.Tensor:
        """Logits `[batch, kept, width]` of ids `[batch, n]`; the cache grows by them.

        Args:
            positions: `[n]`, the same for all rows.
            attention_mask: additive; by default the model's own causal mask.
            keep: of the n positions, how many at the end (0 for all of them), or which.

        Raises:
            ContextLengthError: the model has no embedding of such a position.
            EngineError: logits of another width.
        """
        device = self.device
        arguments: dict[str, Any] = {
            "input_ids": torch.tensor(ids, dtype=torch.long, device=device),
            "use_cache": cache is not None,
            "return_dict": True,
        }
        if cache is not None:
            arguments[self.cache_name] = cache
        if positions is not None and self.takes_positions:
            arguments["position_ids"] = torch.from_numpy(positions).to(device).expand(len(ids), -1)
        if attention_mask is not None:
            arguments["attention_mask"] = attention_mask
        if isinstance(keep, torch.Tensor):
            keep = keep.to(device)
        if self._takes_keep:
            arguments["logits_to_keep"] = keep
        try:
            logits: torch.Tensor = self.model(**arguments).logits
        except IndexError as error:
            length = len(ids[0]) if positions is None else int(positions.max()) + 1
            raise ContextLengthError(
                f"{type(self.model).__name__} fails at a context of {length} tokens, or at one of "
                f"their ids ({error}): its embeddings end there. State how long a context it "
                "takes, as TransformersLM(…, window=…)."
            ) from error
        if logits.shape[-1] != self.width:
            raise EngineError(
                f"the model's output layer has width {logits.shape[-1]}, the vocabulary "
                f"{self.width}. Make the vocabulary with width={logits.shape[-1]}."
            )
        if not self._takes_keep:
            # Cloned, or the logits of every position would stay alive behind a few.
            logits = (logits[:, -keep:] if isinstance(keep, int) else logits[:, keep]).clone()
        return logits


def check_causal(model: Any) -> None:
    """Refuse a model that is no causal language model.

    Raises:
        EngineError: how to load one.
    """
    if not hasattr(model, "config") or not hasattr(model, "generate"):
        raise EngineError(
            f"{type(model).__name__} is no causal language model of transformers: load one with "
            "AutoModelForCausalLM.from_pretrained."
        )


def not_numbers(forward: Forward) -> EngineError:
    """The error of logits that are NaN or +∞ where a token counts, or −∞ for all that count."""
    dtype = str(forward.dtype).removeprefix("torch.")
    return EngineError(
        f"{type(forward.model).__name__} gives logits that are not finite (NaN or infinite) in "
        f"{dtype}: its weights are damaged, or too large for {dtype}. Load it in bfloat16 or "
        "float32, or read the weights again."
    )
