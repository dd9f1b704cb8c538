"""The nodes of a tree, and all of a `TokenTree` but its evaluation: the base of every engine's."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count

import torch

from charwise.engine import Branches, Row, TokenLM, TokenTree
from charwise.errors import LimitError, ModelError
from charwise.tokens.index import SortedVocabulary


class BaseTree(TokenTree, ABC):
    """A `TokenTree` without a model: parents, children, log-probabilities, rows.

    An engine's tree calls `_evaluate` for its first nodes when it is made; the base does so for
    new ones. `_evaluate` hands over logits by `_put`; an engine that has its own overrides
    `logprobs` and `_forget`.

    Args:
        lm: whose vocabulary and window bound the tree.
        prompt_ids: the root.
        branches: the first nodes, for engines that evaluate them with the prompt.
        lock: held while the tree changes; by default one of its own.

    Raises:
        LimitError: for a prompt, or branches, longer than the window.
        ModelError: for an empty prompt, ids outside the vocabulary, unknown nodes.

    >>> from charwise.engines.ngram import NgramLM
    >>> vocabulary = charwise.Vocabulary.from_bytes([b"a", b"ab", None], end_ids=[2])
    >>> class EvenTree(BaseTree):
    ...     def _evaluate(self, nodes):
    ...         self._put(nodes, torch.zeros(len(nodes), self._width))
    ...         self.calls += 1
    >>> tree = EvenTree(NgramLM(vocabulary, 1, {}), [2])
    >>> [[a, ab]] = tree.extend([(0, [0, 1])])
    >>> tree.logprobs([ab]).exp()
    tensor([[0.3333, 0.3333, 0.3333]])
    """

    root = 0

    def __init__(
        self,
        lm: TokenLM,
        prompt_ids: Sequence[int],
        branches: Branches = (),
        *,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        if not prompt_ids:
            raise ModelError(
                "the prompt has no tokens, so there is nothing to condition the first token on. "
                "Start it with the vocabulary's bos_ids, or with an end-of-text token."
            )
        for id in prompt_ids:
            if not 0 <= id < lm.vocabulary.width:
                raise ModelError(f"{id} is not a token id: the width is {lm.vocabulary.width}.")
        self.index = SortedVocabulary.of(lm.vocabulary)
        self._vocabulary, self._width = lm.vocabulary, lm.vocabulary.width
        self._window, self._device = lm.window, lm.device
        self._prompt_ids = [int(id) for id in prompt_ids]
        # Of the nodes that were not dropped:
        self._parent, self._token, self._depth = {0: -1}, {0: -1}, {0: 0}
        self._children: dict[tuple[int, int], int] = {}  # that `extend` returns again
        self._released: set[int] = set()  # dropped, but for those that go on from them
        self._size = 1
        self._logits: dict[int, torch.Tensor] = {}  # `[width]` of those not forgotten
        self._row_bytes = 0  # of each of them
        self._serial = next(_SERIALS)
        self._lock: AbstractContextManager[object] = threading.RLock() if lock is None else lock
        self.guard: Callable[[], AbstractContextManager[object]] = nullcontext
        self.contexts = 0
        self.calls = 0
        self._add(branches)

    @abstractmethod
    def _evaluate(self, nodes: list[int]) -> None:
        """Evaluate new nodes, keep their log-probabilities, and count the calls.

        The lock is held; after a failure comes `_take_back`.
        """

    def _take_back(self, size: int) -> None:
        """Free the nodes from `size` on, which a failed `_evaluate` left."""

    def _free(self, nodes: set[int]) -> None:
        """Free all else of nodes that were just dropped."""

    @property
    def size(self) -> int:
        return self._size

    @property
    def live(self) -> list[int]:
        """The nodes that were not dropped, in rising order."""
        return list(self._parent)

    @property
    def nbytes(self) -> int:
        return len(self._logits) * self._row_bytes

    def extend(self, branches: Branches, *, own: bool = False) -> list[list[int]]:
        with self._lock, self._growing(branches, own) as (nodes, new):
            if new:
                with self.guard():
                    self._evaluate(new)
                self.contexts += len(new)
        return nodes

    @contextmanager
    def _growing(
        self, branches: Branches, own: bool
    ) -> Iterator[tuple[list[list[int]], list[int]]]:
        """Nodes along branches, and the new ones, which are taken back if evaluation fails."""
        size = self._size
        try:
            nodes = self._add(branches, own)
            yield nodes, list(range(size, self._size))
        except BaseException:  # an interrupt, too: half-grown, a tree would corrupt what follows
            if self._size > size:
                self._take_back(size)
                new = range(size, self._size)
                self._forget(new)
                self._remove(new)
                self._size = size
            raise
        if self._released:
            self._released.difference_update(*nodes)

    @torch.no_grad()
    def logprobs(self, nodes: Sequence[int]) -> torch.Tensor:
        with self._lock:
            self._check(nodes)
            if not nodes:
                return torch.empty((0, self._width), device=self._device)
            try:
                logits = torch.stack([self._logits[node] for node in nodes])
            except KeyError as missing:
                raise self._forgotten(missing.args[0]) from None
        logs = logits.log_softmax(-1, dtype=torch.float32)
        # A logit that is infinite or not a number makes its whole row not a number.
        if logs[:, 0].isnan().any():
            raise self._not_numbers()
        return logs.to(self._device)

    def row(self, node: int) -> Row:
        key = self._serial, node
        row = _ROWS.get(key)
        if row is None:
            logs = self.logprobs([node])[0]
            ends = list(self._vocabulary.end_ids)
            in_order = logs[self.index.ids_on(logs.device)].double().exp_().cpu().numpy()
            row = Row(in_order, float(logs[ends].double().exp().sum()) if ends else 0.0)
        with _ROWS_LOCK:
            _ROWS.pop(key, None)
            _ROWS[key] = row  # last, as the one that was asked for last
            while len(_ROWS) * row.in_order.nbytes > 2**27:
                del _ROWS[next(iter(_ROWS))]
        return row

    def _put(self, nodes: list[int], logits: torch.Tensor) -> None:
        """Keep logits `[n, width]`, without the uncounted ids: before any softmax."""
        uncounted = torch.from_numpy(self._vocabulary.uncounted).to(logits.device)
        logits = logits.index_fill_(1, uncounted, -torch.inf)
        self._row_bytes = self._width * logits.element_size()
        # Each in memory of its own: a view would keep the others' alive.
        self._logits.update((node, row.clone()) for node, row in zip(nodes, logits, strict=True))

    def _not_numbers(self) -> ModelError:
        """The error of logits that are not finite."""
        return ModelError(
            "the model's logits are not finite: its weights are damaged, or too large for their "
            "type. Read them again, or load the model in bfloat16 or float32."
        )

    def _forgotten(self, node: int) -> ModelError:
        """The error of asking for log-probabilities that were forgotten."""
        return ModelError(
            f"node {node} has no log-probabilities: it was forgotten. forget() nodes only when "
            "done with them."
        )

    def _forget(self, nodes: Collection[int]) -> None:
        """Free the log-probabilities of these nodes, where there are any."""
        for node in nodes:
            self._logits.pop(node, None)

    def forget(self, nodes: Sequence[int]) -> None:
        with self._lock:
            self._check(nodes)
            self._forget(nodes)

    def depth(self, node: int) -> int:
        self._check((node,))
        return self._depth[node]

    def tokens(self, node: int) -> tuple[int, ...]:
        self._check((node,))
        path = []
        while node > 0:
            path.append(self._token[node])
            node = self._parent[node]
        return tuple(reversed(path))

    def keep(self, nodes: Sequence[int]) -> None:
        with self._lock:
            self._check(nodes)
            path_nodes = {0}
            for node in nodes:
                while node not in path_nodes:
                    path_nodes.add(node)
                    node = self._parent[node]
            dropped = self._parent.keys() - path_nodes
            if dropped:
                self._forget(dropped)
                self._remove(dropped)
                self._released -= dropped
                self._free(dropped)

    def drop(self, nodes: Sequence[int]) -> None:
        with self._lock:
            self._released.update(self._parent.keys() & set(nodes))
            self.keep(list(self._parent.keys() - self._released))

    def _check(self, nodes: Sequence[int]) -> None:
        """Raise `ModelError` unless all of these are nodes, and none was dropped."""
        for node in nodes:
            if node not in self._parent:
                raise ModelError(
                    f"node {node} was dropped by keep(). Name it in keep() while it is needed, or "
                    "extend an ancestor that was kept."
                    if 0 <= node < self.size
                    else f"node {node} does not exist: the tree has {self.size} nodes."
                )

    def _add(self, branches: Branches, own: bool = False) -> list[list[int]]:
        """Nodes along token strings, each after a node; unknown ones, or all, are added."""
        paths, longest = [], 0
        for node, tokens in branches:
            self._check((node,))
            path = []
            for token in tokens:
                known = None if own else self._children.get((node, token))
                if known is None:
                    if not 0 <= token < self._width:
                        raise ModelError(f"{token} is not a token id: the width is {self._width}.")
                    known, self._size = self._size, self._size + 1
                    if not own:
                        self._children[node, token] = known
                    self._parent[known], self._token[known] = node, int(token)
                    self._depth[known] = self._depth[node] + 1
                    longest = max(longest, self._depth[known])
                node = known
                path.append(node)
            paths.append(path)
        length = len(self._prompt_ids) + longest
        if self._window is not None and length > self._window:
            raise LimitError(
                f"a context of {length} tokens is longer than the model's window of "
                f"{self._window}. Shorten the prompt or the text, or score it in overlapping "
                "windows (CharLM.score does)."
            )
        return paths

    def _remove(self, nodes: Collection[int]) -> None:
        for node in nodes:
            edge = self._parent.pop(node), self._token.pop(node)
            if self._children.get(edge) == node:
                del self._children[edge]
            del self._depth[node]


#: The rows of all trees that were asked for last: 128 MiB at most.
_ROWS: dict[tuple[int, int], Row] = {}
_ROWS_LOCK = threading.Lock()
_SERIALS = count()
