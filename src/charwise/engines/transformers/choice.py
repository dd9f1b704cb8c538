"""How a model's contexts share prefixes: tree attention where it works, else a cache per branch.

The configuration says what a mask must look like, or that none will do; a small tree, compared
with plain passes through the same model, says whether that is true.

GPT-Neo cuts its local windows by slot, from a buffer of its own. In a tree, slots are not
positions, and there may be more of them than that buffer is long. So a twin of the model, which
shares all weights and leaves the user's model as it is, attends by the mask of each layer's own
kind. In one fused operation, as transformers lets other models: theirs writes the scores of every
head to memory several times.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import scaled_dot_product_attention
from transformers.cache_utils import Cache
from transformers.models.gpt_neo.modeling_gpt_neo import GPTNeoSelfAttention

from charwise.engines.transformers.branch_cache import BranchCache
from charwise.engines.transformers.forward import Forward, not_numbers
from charwise.engines.transformers.together import Together, parted
from charwise.engines.transformers.tree_attention import FlatCache, MaskedForward, Masks, masks_of
from charwise.errors import EngineError

#: Largest difference of a tree's logits to plain passes, relative to the spread of the logits,
#: that passes for rounding. A wrong mask is off by far more, unless attention hardly matters.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 5e-3, torch.float16: 0.05, torch.bfloat16: 0.1}

#: The small tree: a chain of 5, branches off its start and off the root, and a node off each.
_PARENTS = np.array([0, 1, 2, 3, 4, 1, 0, 5, 6, 7])


class _TreeCache(Protocol):
    """Evaluates the contexts of one tree: a `FlatCache` or a `BranchCache`."""

    @property
    def rows(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def row_bytes(self, more: int) -> int: ...
    def start(
        self, prompt_ids: list[int], parents: list[int], tokens: list[int]
    ) -> tuple[torch.Tensor, int]: ...
    def append(
        self, parents: NDArray[np.int64], tokens: list[int], wanted: NDArray[np.int64]
    ) -> torch.Tensor: ...
    def truncate(self, rows: int) -> None: ...
    def select(self, rows: NDArray[np.int64]) -> None: ...


@dataclass(frozen=True)
class Choice:
    """The way to make a tree's cache, its name, and the reason for it."""

    make: Callable[[], _TreeCache]
    name: str
    why: str


@dataclass(frozen=True)
class Trial:
    """The inputs that a model is tried with.

    Attributes:
        forward: the model.
        text_ids: tokens that may stand in a text.
        counted: the ids whose logits are compared; nobody looks at the others.
        window: longest context.
    """

    forward: Forward
    text_ids: Sequence[int]
    counted: NDArray[np.int64]
    window: int | None


def choose(trial: Trial, path: str) -> Choice:
    """The first path that works of those asked for ("tree", "branches", or "auto" for both).

    Raises:
        EngineError: for a model that gives other logits with its cache than without, or logits
            that are not numbers.
    """
    forward = trial.forward
    why = "asked for"
    if path != "branches":
        found = _tree_attention(trial)
        if isinstance(found, Choice):
            return found
        if path == "tree":
            raise EngineError(f"tree attention does not work for this model: {found}.")
        why = f"no tree attention: {found}"
    name = type(forward.model).__name__
    try:
        error = _discrepancy(lambda: BranchCache(forward), trial)
    except (torch.OutOfMemoryError, EngineError):
        raise
    except Exception as failure:
        raise EngineError(
            f"{name} cannot be evaluated context by context ({failure!r}). Use a model whose cache "
            "is of transformers' own kinds."
        ) from failure
    if not error <= 4 * TOLERANCE.get(forward.dtype, 0.1):
        raise EngineError(
            f"{name} gives other logits with a cache than without one ({_off(error)}): its "
            "contexts cannot share prefixes."
        )
    return Choice(lambda: BranchCache(forward), "cache per branch", why)


def _tree_attention(trial: Trial) -> Choice | str:
    """Tree attention, or why it does not work for this model."""
    forward = trial.forward
    if "flash" in forward.attention:
        return f'{forward.attention} takes no mask; load with attn_implementation="sdpa" for it'
    if forward.cache_name == "cache_params":
        return "its layers carry a recurrent state"
    try:
        masked = _masked(forward)
        if isinstance(masked, str):
            return masked
        if not forward.takes_positions:
            return "it cannot be told positions"
        error = _discrepancy(lambda: FlatCache(forward, masked), trial)
    except (torch.OutOfMemoryError, EngineError):
        raise
    except Exception as failure:
        return f"the model refused its mask ({failure!r})"
    proof = f"{_off(error)} from plain passes on a small tree"
    if not error <= TOLERANCE.get(forward.dtype, 0.1):
        return proof
    return Choice(lambda: FlatCache(forward, masked), "tree attention", proof)


def try_together(trial: Trial, choice: Choice) -> Together | None:
    """How several trees are evaluated in one call; None where the model cannot be so called.

    Two small trees are put to the test: the last node of one, and two of the other.
    """
    forward = trial.forward
    name = parted(forward.attention)
    masked = _masked(forward)
    if choice.name != "tree attention" or name is None or type(masked) is not MaskedForward:
        return None
    if trial.window is not None and trial.window < 9:
        return None
    together = Together(masked, name)
    ids = [trial.text_ids[i * len(trial.text_ids) // 8] for i in range(8)]
    both = [FlatCache(forward, masked) for _ in range(2)]
    alone = [FlatCache(forward, masked) for _ in range(2)]
    for caches in (both, alone):
        caches[0].start(ids[:3], [0, 0], ids[3:5])
        caches[1].start(ids[2:7], [], [])
    parents, tokens = [np.array([1]), np.array([0, 0])], [ids[6:7], ids[:2]]
    try:
        found = torch.cat(together.append(both, parents, tokens))
    except torch.OutOfMemoryError:
        raise
    except Exception:
        return None  # an attention of its own, which knows tensors only
    true = [
        cache.append(rows, some, np.arange(len(rows)))
        for cache, rows, some in zip(alone, parents, tokens, strict=True)
    ]
    counted = torch.from_numpy(trial.counted).to(found.device)
    error = _distance(found[:, counted].double(), torch.cat(true)[:, counted].double())
    return together if error <= TOLERANCE.get(forward.dtype, 0.1) else None


def _masked(forward: Forward) -> MaskedForward | str:
    """The model called with masks, or why its layers can have none."""
    if forward.config.model_type == "gpt_neo":
        return _GPTNeoForward(forward)
    masks = masks_of(forward.config)
    return masks if isinstance(masks, str) else MaskedForward(forward, masks)


def _off(error: float) -> str:
    return f"{error:.1e} of the logits' spread" if error == error else "NaN, and so any distance"


@torch.inference_mode()
def _discrepancy(make: Callable[[], _TreeCache], trial: Trial) -> float:
    """Root mean square difference of a small tree's logits to plain passes, over their spread.

    Sliding windows that are longer than its longest path, 9 tokens, are not put to the test.
    """
    text_ids, window = trial.text_ids, trial.window
    ids = [text_ids[i * len(text_ids) // 8] for i in range(8)]
    small = window is not None and window < 9
    parents = _PARENTS[:1] if small else _PARENTS
    prompt = ids[:1] if small else ids[:3]
    tokens = [ids[(3 * i + 3) % 8] for i in range(len(parents))]
    paths = [prompt]
    for parent, token in zip(parents.tolist(), tokens, strict=True):
        paths.append([*paths[parent], token])
    leaves = np.arange(len(parents))[-3:]
    true = torch.cat([trial.forward([paths[i + 1]], keep=1)[0] for i in leaves])
    counted = torch.from_numpy(trial.counted).to(true.device)
    true = true[:, counted].double()
    if true.isnan().any() or (true == torch.inf).any():
        raise not_numbers(trial.forward)
    cache = make()
    cache.start(prompt, [], [])
    found = cache.append(parents, tokens, leaves)[:, counted].double()
    return _distance(found, true)


def _distance(found: torch.Tensor, true: torch.Tensor) -> float:
    """Root mean square difference, over the spread of the true logits."""
    # A model may rule a token out, by −inf: there, both must do so.
    difference = torch.where(found == true, 0.0, found - true)
    if not difference.any():
        return 0.0
    finite = true.isfinite()
    centred = true - true.where(finite, torch.nan).nanmean(-1, keepdim=True)
    spread = centred[finite].square().mean().sqrt()
    return float(difference.square().mean().sqrt() / spread)


class _GPTNeoForward(MaskedForward):
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
