"""Any causal language model of transformers as a `TokenLM`.

Contexts share one cache by tree attention (`attention.py`) where the model takes a mask, and have
a cache per branch (`branches.py`) where it does not. Which of the two is decided by what the
configuration says, then checked in numbers on a small tree before first use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from charwise.engines.attention import FlatCache, GPTNeoForward, MaskedForward, masks_of
from charwise.engines.branches import BranchCache
from charwise.engines.contexts import Contexts, check_prompt, not_there
from charwise.engines.forward import Forward
from charwise.errors import EngineError
from charwise.vocabulary import Vocabulary

#: Largest difference of a tree's logits to plain passes, relative to the spread of the logits,
#: that passes for rounding. A wrong mask is off by far more, unless attention hardly matters.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 5e-3, torch.float16: 0.05}

#: Where configurations state the longest context.
_WINDOWS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


class _Cache(Protocol):
    """How contexts are evaluated: a `FlatCache` or a `BranchCache`."""

    @property
    def rows(self) -> int: ...
    def row_bytes(self) -> int: ...
    def start(self, prompt_ids: list[int]) -> torch.Tensor: ...
    def append(
        self, parents: NDArray[np.int64], tokens: list[int], wanted: NDArray[np.int64]
    ) -> torch.Tensor: ...
    def truncate(self, rows: int) -> None: ...
    def select(self, rows: NDArray[np.int64]) -> None: ...


class TransformersLM:
    """A causal language model of transformers.

    Args:
        model: an instance of any `…ForCausalLM`, on any device, in any dtype. It is put into
            eval mode, and otherwise left as it is.
        vocabulary: as wide as the model's output layer.
        window: longest context in tokens; by default what the configuration says.
        batch_bytes: bound on the logits, and on the attention mask, of one model call. Larger
            calls to `extend` are split; the prompt is always one call.
        path: "tree" for tree attention, "branches" for a cache per branch, "auto" for the first
            of them that works.

    Raises:
        EngineError: for a model that is not a causal language model with a cache.

    >>> import torch
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1)
    >>> config = LlamaConfig(vocab_size=4, num_attention_heads=2, **sizes)
    >>> vocabulary = Vocabulary.from_bytes([b"a", b"b", None], end_ids=[2], bos_ids=[2], width=4)
    >>> lm = TransformersLM(LlamaForCausalLM(config), vocabulary)
    >>> tree = lm.tree([2])
    >>> tree.extend([(0, 0), (0, 1), (1, 1)])
    [1, 2, 3]
    >>> tree.logprobs([3]).shape, tree.logprobs([3])[0, 3].item()       # id 3 is not a token
    (torch.Size([1, 4]), -inf)
    >>> lm.info()["path"]
    'tree attention'
    """

    def __init__(
        self,
        model: Any,
        vocabulary: Vocabulary,
        *,
        window: int | None = None,
        batch_bytes: int = 256 * 2**20,
        path: Literal["auto", "tree", "branches"] = "auto",
    ) -> None:
        self.vocabulary = vocabulary
        self.model = model.eval()
        self.batch_bytes = batch_bytes
        self._forward = Forward(model, vocabulary.width)
        self.window = window if window is not None else _window(self._forward.config)
        self._path = path
        self._lock = threading.Lock()
        self._chosen: tuple[Callable[[], _Cache], str, str] | None = None
        self.counted = (
            None if vocabulary.counted.all() else torch.from_numpy(vocabulary.counted.copy())
        )

    @property
    def device(self) -> torch.device:
        """Where log-probabilities live: the model's device."""
        return self._forward.device

    def tree(self, prompt_ids: Sequence[int]) -> TransformersTree:
        """A tree whose root is this prompt; see `TokenLM.tree`."""
        check_prompt(prompt_ids, self.vocabulary, self.window)
        return TransformersTree(self, self._choice()[0](), [int(id) for id in prompt_ids])

    def info(self) -> dict[str, str]:
        """Engine, device, dtype, how contexts share prefixes, and why."""
        _, path, why = self._choice()
        return {
            "engine": f"transformers {transformers.__version__}",
            "model": type(self.model).__name__,
            "device": str(self.device),
            "dtype": str(self._forward.dtype).removeprefix("torch."),
            "attention": self._forward.attention,
            "path": path,
            "why": why,
        }

    def _choice(self) -> tuple[Callable[[], _Cache], str, str]:
        """How to make a cache, what that path is called, and why it was chosen; settled once."""
        with self._lock:
            if self._chosen is None:
                self._chosen = self._choose()
            return self._chosen

    def _choose(self) -> tuple[Callable[[], _Cache], str, str]:
        forward = self._forward
        why = "asked for"
        if self._path != "branches":
            made = self._tree_attention()
            if not isinstance(made, str):
                return made[0], "tree attention", made[1]
            if self._path == "tree":
                raise EngineError(f"tree attention does not work for this model: {made}.")
            why = f"no tree attention: {made}"

        def branches() -> BranchCache:
            return BranchCache(forward)

        try:
            error = self._check(branches)
        except (torch.OutOfMemoryError, EngineError):
            raise
        except Exception as failure:
            raise EngineError(
                f"{type(self.model).__name__} cannot be evaluated context by context ({failure!r})."
                " Use a model with an attention or state-space cache of transformers' own."
            ) from failure
        if not error <= 4 * self._tolerance():
            raise EngineError(
                f"{type(self.model).__name__} gives other logits with a cache than without one "
                f"({error:.1e} of their spread): its contexts cannot share prefixes."
            )
        return branches, "cache per branch", why

    def _tree_attention(self) -> tuple[Callable[[], _Cache], str] | str:
        """How to make its cache, and the proof; or why it does not work for this model."""
        forward = self._forward
        if "flash" in forward.attention:
            return (
                f"{forward.attention} takes no mask; load the model with "
                'attn_implementation="sdpa" for it'
            )
        if forward.cache_name != "past_key_values":
            return "its layers carry a recurrent state"
        if not forward.takes_positions:
            return "it cannot be told positions"
        masks = masks_of(forward.config)
        if isinstance(masks, str):
            return masks
        try:
            neo = forward.config.model_type == "gpt_neo"
            masked = (GPTNeoForward if neo else MaskedForward)(forward, masks)

            def tree() -> FlatCache:
                return FlatCache(forward, masked)

            error = self._check(tree)
        except (torch.OutOfMemoryError, EngineError):
            raise
        except Exception as failure:
            return f"the model refused its mask ({failure!r})"
        proof = f"{error:.1e} of the logits' spread from plain passes on a small tree"
        return (tree, proof) if error <= self._tolerance() else proof

    def _tolerance(self) -> float:
        return TOLERANCE.get(self._forward.dtype, 0.1)

    def _check(self, make: Callable[[], _Cache]) -> float:
        """Root mean square difference of a small tree's logits to plain passes, over their spread.

        Windows too long for a small tree are taken from the configuration unchecked.
        """
        text = [id for id, token in enumerate(self.vocabulary.tokens) if token is not None]
        ids = [text[i * len(text) // 8] for i in range(8)]
        room = min(self.window or 24, 24)
        prompt = ids[: max(1, min(3, room - 3))]
        # A chain of 5, a branch off its start and one off the root, then one node off each.
        parents = np.array([0, 1, 2, 3, 4, 1, 0, 5, 6, 7])
        parents = parents[: 10 if room >= 9 else 1]
        tokens = [ids[(3 * i + 3) % 8] for i in range(len(parents))]
        paths = [prompt]
        for parent, token in zip(parents.tolist(), tokens, strict=True):
            paths.append([*paths[parent], token])
        cache = make()
        every = np.arange(len(parents) - min(3, len(parents)), len(parents))
        with torch.inference_mode():
            cache.start(prompt)
            found = cache.append(parents, tokens, every).double()
            true = torch.cat([self._forward([paths[i + 1]], keep=1)[0] for i in every]).double()
            spread = (true - true.mean(-1, keepdim=True)).square().mean().sqrt()
            return float((found - true).square().mean().sqrt() / spread)


class TransformersTree:
    """The `TokenTree` of a `TransformersLM`."""

    root = 0

    def __init__(self, lm: TransformersLM, cache: _Cache, prompt_ids: list[int]) -> None:
        self._lm = lm
        self._cache = cache
        self._prompt_length = len(prompt_ids)
        self._contexts = Contexts()
        self._row = [0]  # node → row of the cache, for live nodes
        self._logits = _Logits()
        self._lock = threading.RLock()
        self._logits.put([0], cache.start(prompt_ids))
        self.evaluated = 1
        self.calls = 1

    @property
    def size(self) -> int:
        """Nodes handed out so far."""
        return len(self._contexts)

    def extend(
        self, edges: Sequence[tuple[int, int]], logprobs: Sequence[bool] | None = None
    ) -> list[int]:
        """See `TokenTree.extend`."""
        if not edges:
            return []
        wanted = np.ones(len(edges), np.bool_) if logprobs is None else np.array(logprobs, np.bool_)
        if len(wanted) != len(edges):
            raise EngineError(f"{len(wanted)} wishes for log-probabilities, {len(edges)} edges.")
        with self._lock:
            self._contexts.check_edges(
                edges, self._lm.vocabulary.width, self._prompt_length, self._lm.window
            )
            size, rows = self.size, self._cache.rows
            new = self._contexts.add(edges)
            self._row += range(rows, rows + len(new))
            try:
                done = 0
                while done < len(new):
                    done += self._evaluate(new[done : done + self._fit(wanted[done:])], wanted[done:])
            except BaseException:
                # Also on an interrupt: a half-grown cache would corrupt all that follows.
                self._cache.truncate(rows)
                self._logits.drop(range(size, len(self._contexts)))
                self._contexts.truncate(size)
                del self._row[size:]
                raise
            self.evaluated += len(new)
        return new

    def _fit(self, wanted: NDArray[np.bool_]) -> int:
        """How many nodes the next call may have, so that it keeps to `batch_bytes`."""
        row = self._cache.row_bytes()
        logits = 4 * self._lm.vocabulary.width
        most = max(1, min(len(wanted), self._lm.batch_bytes // max(row, 1)))
        fits = int(np.searchsorted(np.cumsum(wanted[:most]) * logits, self._lm.batch_bytes, "right"))
        return max(1, fits)

    def _evaluate(self, nodes: list[int], wanted: NDArray[np.bool_]) -> int:
        """One model call; returns how many nodes it evaluated."""
        contexts, row = self._contexts, self._row
        parents = np.array([row[contexts.parent[node]] for node in nodes])
        tokens = [contexts.token[node] for node in nodes]
        picked = np.flatnonzero(wanted[: len(nodes)])
        logits = self._cache.append(parents, tokens, picked)
        self._logits.put([nodes[i] for i in picked.tolist()], logits)
        self.calls += 1
        return len(nodes)

    @torch.no_grad()
    def logprobs(self, nodes: Sequence[int]) -> torch.Tensor:
        """See `TokenTree.logprobs`: `[n, width]` float32."""
        lm = self._lm
        with self._lock:
            self._contexts.check(nodes)
            if not nodes:
                return torch.empty((0, lm.vocabulary.width), device=lm.device)
            logits = self._logits.take(nodes).float()  # [n, width]
        if lm.counted is not None:
            lm.counted = lm.counted.to(logits.device)
            logits = logits.masked_fill(~lm.counted, -torch.inf)
        logs = logits.log_softmax(-1)
        if logs.amax(-1).isnan().any():
            raise EngineError(
                f"the model's logits are not finite in {lm.info()['dtype']}. Load it in bfloat16 "
                "or float32."
            )
        return logs.to(lm.device)

    def forget(self, nodes: Sequence[int]) -> None:
        """See `TokenTree.forget`."""
        with self._lock:
            self._contexts.check(nodes)
            self._logits.drop(nodes)

    def depth(self, node: int) -> int:
        """Tokens after the prompt."""
        self._contexts.check((node,))
        return self._contexts.depth[node]

    def tokens(self, node: int) -> tuple[int, ...]:
        """The token string after the prompt."""
        self._contexts.check((node,))
        return self._contexts.tokens(node)

    @torch.inference_mode()
    def keep(self, nodes: Sequence[int]) -> None:
        """See `TokenTree.keep`."""
        with self._lock:
            dropped = self._contexts.drop_all_but(nodes)
            if not dropped:
                return
            live = self._contexts.live
            self._cache.select(np.array([self._row[node] for node in live]))
            for row, node in enumerate(live):
                self._row[node] = row
            self._logits.drop(dropped)


class _Logits:
    """Logits of the nodes that may be asked for them, in the blocks in which they were made."""

    def __init__(self) -> None:
        self._at: dict[int, tuple[int, int]] = {}  # node → (block, row)
        self._blocks: dict[int, torch.Tensor] = {}  # [n, width], in the model's dtype
        self._nodes: dict[int, set[int]] = {}  # of each block
        self._next = 0

    def put(self, nodes: Sequence[int], logits: torch.Tensor) -> None:
        if not nodes:
            return
        self._at |= {node: (self._next, row) for row, node in enumerate(nodes)}
        self._blocks[self._next] = logits
        self._nodes[self._next] = set(nodes)
        self._next += 1

    def take(self, nodes: Sequence[int]) -> torch.Tensor:
        """`[n, width]`, in the order of the nodes."""
        try:
            places = [self._at[node] for node in nodes]
        except KeyError as missing:
            raise not_there(missing.args[0]) from None
        if len({block for block, _ in places}) == 1:
            block = self._blocks[places[0][0]]
            rows = [row for _, row in places]
            if rows == list(range(len(block))):
                return block
            return block[torch.tensor(rows, device=block.device)]
        return torch.stack([self._blocks[block][row] for block, row in places])

    def drop(self, nodes: Sequence[int] | set[int] | range) -> None:
        shrunk = set()
        for node in nodes:
            if node in self._at:
                block, _ = self._at.pop(node)
                self._nodes[block].discard(node)
                shrunk.add(block)
        for block in shrunk:
            left = sorted(self._nodes[block])
            held = self._blocks[block]
            if 2 * len(left) > len(held):
                continue
            # Half of it is unused or more: free that, which a view would not do.
            rows = torch.tensor([self._at[node][1] for node in left], device=held.device)
            del self._blocks[block], self._nodes[block]
            self.put(left, held[rows] if left else held)


def _window(config: Any) -> int | None:
    """The longest context that the configuration states, if it does."""
    for name in _WINDOWS:
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None
