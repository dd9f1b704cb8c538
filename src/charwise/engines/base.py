"""The nodes of a tree, and all of a `TokenTree` but its evaluation: the base of every engine's.

`_Logits` are between the call that makes them and the caller who asks for them.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch

from charwise.errors import ContextLengthError, EngineError
from charwise.token_lm import TokenLM
from charwise.tokens.vocabulary import Vocabulary, no_id


class TreeNodes(ABC):
    """A `TokenTree` without a model: parents, dropped nodes, held rows.

    An engine's tree evaluates its prompt when it is made, and new nodes in `_evaluate`. It hands
    over logits by `_put`, or has `logprobs` of its own and says in `_forget` how to free them.

    Args:
        lm: whose vocabulary and window bound the tree.
        prompt_ids: the root.
        edges: the first nodes, for engines that evaluate them with the prompt.
        lock: held while the tree changes; by default one of its own.

    Raises:
        ContextLengthError: for a prompt, or edges, longer than the window.
        EngineError: for an empty prompt, ids outside the vocabulary, unknown parents.

    >>> from types import SimpleNamespace as Some
    >>> class Counting(TreeNodes):
    ...     def _evaluate(self, nodes):
    ...         return len(nodes)
    >>> tree = Counting(Some(vocabulary=Some(width=10), window=None, device="cpu"), [0])
    >>> tree.extend([(0, 7), (1, 8), (0, 9)])
    [1, 2, 3]
    >>> tree.tokens(2), tree.depth(2), tree.size
    ((7, 8), 2, 4)
    >>> tree.keep([2])
    >>> tree.live
    [0, 1, 2]
    """

    root = 0

    def __init__(
        self,
        lm: TokenLM,
        prompt_ids: Sequence[int],
        edges: Sequence[tuple[int, int]] = (),
        *,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        _check_prompt(prompt_ids, lm.vocabulary, lm.window)
        self._vocabulary, self._width = lm.vocabulary, lm.vocabulary.width
        self._window, self._device = lm.window, lm.device
        self._prompt_ids = [int(id) for id in prompt_ids]
        self._parent, self._token, self._depth = {0: -1}, {0: -1}, {0: 0}  # of nodes not dropped
        self._size = 1
        self._logits = _Logits()
        self._lock: AbstractContextManager[object] = threading.RLock() if lock is None else lock
        self.contexts = 0
        self.calls = 0
        self._check_edges(edges)
        self._add(edges)

    @abstractmethod
    def _evaluate(self, nodes: list[int]) -> int:
        """Evaluate new nodes, hold their log-probabilities, and count the calls.

        Returns how many contexts that were. The lock is held; after a failure comes `_take_back`.
        """

    @torch.no_grad()
    def logprobs(self, nodes: Sequence[int]) -> torch.Tensor:
        """See `TokenTree.logprobs`: `[n, width]` float32, of the logits that are held."""
        with self._lock:
            self._check(nodes)
            if not nodes:
                return torch.empty((0, self._width), device=self._device)
            logits = self._logits.take(nodes)  # [n, width]
        logs = logits.log_softmax(-1, dtype=torch.float32)
        # A logit that is infinite or not a number makes its whole row not a number.
        if logs[:, 0].isnan().any():
            raise self._not_numbers()
        return logs.to(self._device)

    def _put(self, nodes: list[int], logits: torch.Tensor) -> None:
        """Hold logits `[n, width]`, without the uncounted ids: before any softmax."""
        uncounted = torch.from_numpy(self._vocabulary.uncounted).to(logits.device)
        self._logits.put(nodes, logits.index_fill_(1, uncounted, -torch.inf))

    def _not_numbers(self) -> EngineError:
        """The error of logits that are not finite."""
        return EngineError(
            "the model's logits are not finite: its weights are damaged, or too large for their "
            "type. Read them again, or load the model in bfloat16 or float32."
        )

    def _forget(self, nodes: Collection[int]) -> None:
        """Free the log-probabilities of these nodes, where there are any."""
        self._logits.drop(nodes)

    def _take_back(self, size: int) -> None:  # noqa: B027 - most hold nothing else
        """Free the nodes from `size` on, which a failed `_evaluate` left."""

    def _free(self, nodes: set[int]) -> None:  # noqa: B027 - as above
        """Free all else that is held of nodes that were just dropped."""

    @property
    def size(self) -> int:
        """Nodes handed out so far."""
        return self._size

    @property
    def live(self) -> list[int]:
        """The nodes that were not dropped, in rising order."""
        return list(self._parent)

    @property
    def nbytes(self) -> int:
        """The bytes held: log-probabilities, and the additions of an engine's tree."""
        return self._logits.nbytes

    def extend(self, edges: Sequence[tuple[int, int]]) -> list[int]:
        """See `TokenTree.extend`."""
        if not edges:
            return []
        with self._lock, self._growing(edges) as new:
            self.contexts += self._evaluate(new)
        return new

    @contextmanager
    def _growing(self, edges: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
        """New nodes to be evaluated, taken back if that fails; the lock is held."""
        self._check_edges(edges)
        size = self.size
        new = self._add(edges)
        try:
            yield new
        except BaseException:
            # Also on an interrupt: half-grown, a tree would corrupt all that follows.
            self._take_back(size)
            self._forget(new)
            self._remove(new)
            self._size = size
            raise

    def forget(self, nodes: Sequence[int]) -> None:
        """See `TokenTree.forget`."""
        with self._lock:
            self._check(nodes)
            self._forget(nodes)

    def depth(self, node: int) -> int:
        """The number of tokens after the prompt."""
        self._check((node,))
        return self._depth[node]

    def tokens(self, node: int) -> tuple[int, ...]:
        """The token string after the prompt."""
        self._check((node,))
        path = []
        while node > 0:
            path.append(self._token[node])
            node = self._parent[node]
        return tuple(reversed(path))

    def keep(self, nodes: Sequence[int]) -> None:
        """See `TokenTree.keep`."""
        with self._lock:
            self._check(nodes)
            kept = {0}
            for node in nodes:
                while node not in kept:
                    kept.add(node)
                    node = self._parent[node]
            dropped = self._parent.keys() - kept
            if dropped:
                self._remove(dropped)
                self._free(dropped)
                self._forget(dropped)

    def _check(self, nodes: Sequence[int]) -> None:
        """Raise `EngineError` unless all of these are nodes, and none was dropped."""
        for node in nodes:
            if node not in self._parent:
                raise EngineError(
                    f"node {node} was dropped by keep(). Name it in keep() while it is needed, or "
                    "extend an ancestor that was kept."
                    if 0 <= node < self.size
                    else f"node {node} does not exist: the tree has {self.size} nodes."
                )

    def _check_edges(self, edges: Sequence[tuple[int, int]]) -> None:
        """Raise unless every edge can be added: known parents, tokens in range, room left."""
        first = self.size
        depths: list[int] = []
        for i, (parent, token) in enumerate(edges):
            if not first <= parent < first + i:
                self._check((parent,))
            if not 0 <= token < self._width:
                raise EngineError(str(no_id(token, self._width)))
            depths.append(1 + (self._depth[parent] if parent < first else depths[parent - first]))
        _check_length(len(self._prompt_ids) + max(depths, default=0), self._window)

    def _add(self, edges: Sequence[tuple[int, int]]) -> list[int]:
        """Add checked edges; returns the new nodes."""
        first = self.size
        for node, (parent, token) in enumerate(edges, start=first):
            self._parent[node], self._token[node] = parent, token
            self._depth[node] = self._depth[parent] + 1
        self._size += len(edges)
        return list(range(first, self.size))

    def _remove(self, nodes: Collection[int]) -> None:
        for node in nodes:
            del self._parent[node], self._token[node], self._depth[node]


def _check_prompt(prompt_ids: Sequence[int], vocabulary: Vocabulary, window: int | None) -> None:
    """Raise unless this is a prompt that the model can be conditioned on."""
    if not prompt_ids:
        raise EngineError(
            "the prompt has no tokens, so there is nothing to condition the first token on. Start "
            "it with the vocabulary's bos_ids, or with an end-of-text token."
        )
    for id in prompt_ids:
        if not 0 <= id < vocabulary.width:
            raise EngineError(str(no_id(id, vocabulary.width)))
    _check_length(len(prompt_ids), window)


def _check_length(length: int, window: int | None) -> None:
    """Raise `ContextLengthError` for a context longer than the window."""
    if window is not None and length > window:
        raise ContextLengthError(
            f"a context of {length} tokens is longer than the model's window of {window}. Shorten "
            "the prompt or the text, or score it in overlapping windows (CharLM.score does)."
        )


class _Logits:
    """Logits of the nodes that may be asked for them, in the blocks in which they were made."""

    def __init__(self) -> None:
        self._at: dict[int, tuple[int, int]] = {}  # node → (block, row)
        self._blocks: dict[int, torch.Tensor] = {}  # [n, width], in the model's dtype
        self._nodes: dict[int, set[int]] = {}  # of each block
        self._next = 0
        #: Bytes of all blocks.
        self.nbytes = 0

    def put(self, nodes: Sequence[int], logits: torch.Tensor) -> None:
        if not nodes:
            return
        self._at |= {node: (self._next, row) for row, node in enumerate(nodes)}
        self._blocks[self._next] = logits
        self.nbytes += logits.nbytes
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

    def drop(self, nodes: Collection[int]) -> None:
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
            self.nbytes -= held.nbytes
            self.put(left, held[rows] if left else held)


def not_there(node: int) -> EngineError:
    """The error of asking for log-probabilities that were forgotten."""
    return EngineError(
        f"node {node} has no log-probabilities: it was forgotten. "
        "forget() nodes only when done with them."
    )
