"""Logits between the call that makes them and the caller who asks for them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from charwise.errors import EngineError


class Logits:
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
    """The error of asking for log-probabilities that were not wanted, or no longer."""
    return EngineError(
        f"node {node} has no log-probabilities: it was extended with logprobs=False, or forgotten. "
        "Ask for them in extend(), and forget() nodes only when done with them."
    )
