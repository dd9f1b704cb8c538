"""The shape of a tree of contexts, and what may be asked of it: shared by the engines."""

from __future__ import annotations

from collections.abc import Sequence

from charwise.errors import ContextLengthError, EngineError
from charwise.tokens.vocabulary import Vocabulary


class Contexts:
    """Parent, last token and depth of every node; which nodes were dropped.

    >>> contexts = Contexts()
    >>> contexts.add([(0, 7), (1, 8), (0, 9)])
    [1, 2, 3]
    >>> contexts.tokens(2), contexts.depth[2]
    ((7, 8), 2)
    >>> sorted(contexts.drop_all_but([2])), contexts.live
    ([3], [0, 1, 2])
    """

    def __init__(self) -> None:
        self.parent = [-1]
        self.token = [-1]
        self.depth = [0]
        self.live = [0]  # nodes not dropped, in rising order
        self._dropped: set[int] = set()

    def __len__(self) -> int:
        return len(self.parent)

    def check(self, nodes: Sequence[int]) -> None:
        """Raise `EngineError` unless all of these are nodes, and none was dropped."""
        for node in nodes:
            if not 0 <= node < len(self.parent):
                raise EngineError(f"node {node} does not exist: the tree has {len(self)} nodes.")
            if node in self._dropped:
                raise EngineError(
                    f"node {node} was dropped by keep(). Name it in keep() while it is needed, or "
                    "extend an ancestor that was kept."
                )

    def check_edges(
        self,
        edges: Sequence[tuple[int, int]],
        width: int,
        prompt_length: int,
        window: int | None,
    ) -> None:
        """Raise unless every edge can be added: known parents, tokens in range, room left."""
        first = len(self)
        depths: list[int] = []
        for i, (parent, token) in enumerate(edges):
            if not first <= parent < first + i:
                self.check((parent,))
            if not 0 <= token < width:
                raise EngineError(f"{token} is not a token id: the vocabulary's width is {width}.")
            depths.append(1 + (self.depth[parent] if parent < first else depths[parent - first]))
        check_length(prompt_length + max(depths, default=0), window)

    def add(self, edges: Sequence[tuple[int, int]]) -> list[int]:
        """Add checked edges; returns the new nodes."""
        first = len(self)
        for parent, token in edges:
            self.parent.append(parent)
            self.token.append(token)
            self.depth.append(self.depth[parent] + 1)
        new = list(range(first, len(self)))
        self.live += new
        return new

    def truncate(self, size: int) -> None:
        """Take back the nodes from `size` on, as if they had never been added."""
        del self.parent[size:], self.token[size:], self.depth[size:]
        while self.live[-1] >= size:
            self.live.pop()

    def tokens(self, node: int) -> tuple[int, ...]:
        """The token string from the root to this node."""
        path = []
        while node > 0:
            path.append(self.token[node])
            node = self.parent[node]
        return tuple(reversed(path))

    def drop_all_but(self, nodes: Sequence[int]) -> set[int]:
        """Drop what is neither one of these nodes nor an ancestor of one; returns the dropped."""
        self.check(nodes)
        kept = {0}
        for node in nodes:
            while node not in kept:
                kept.add(node)
                node = self.parent[node]
        dropped = set(self.live) - kept
        self.live = sorted(kept)
        self._dropped |= dropped
        return dropped


def check_prompt(prompt_ids: Sequence[int], vocabulary: Vocabulary, window: int | None) -> None:
    """Raise unless this is a prompt that the model can be conditioned on."""
    if not prompt_ids:
        raise EngineError(
            "the prompt has no tokens, so there is nothing to condition the first token on. Start "
            "it with the vocabulary's bos_ids, or with an end-of-text token."
        )
    for id in prompt_ids:
        if not 0 <= id < vocabulary.width:
            raise EngineError(f"{id} is not a token id: the width is {vocabulary.width}.")
    check_length(len(prompt_ids), window)


def check_length(length: int, window: int | None) -> None:
    """Raise `ContextLengthError` for a context longer than the window."""
    if window is not None and length > window:
        raise ContextLengthError(
            f"a context of {length} tokens is longer than the model's window of {window}. Shorten "
            "the prompt or the text, or score it in overlapping windows (CharLM.score does)."
        )


def not_there(node: int) -> EngineError:
    """The error of asking for log-probabilities that were not wanted, or no longer."""
    return EngineError(
        f"node {node} has no log-probabilities: it was extended with logprobs=False, or forgotten. "
        "Ask for them in extend(), and forget() nodes only when done with them."
    )
