"""Rows of token ids as one batch: padded on the left, where nothing is generated."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def left_padded(rows: Sequence[list[int]], filler: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and attention mask, both `[rows, longest]` int64, on the host.

    >>> left_padded([[1, 2], [3]], filler=0)
    (tensor([[1, 2],
            [0, 3]]), tensor([[1, 1],
            [0, 1]]))
    """
    length = max(map(len, rows))
    ids = torch.tensor([[filler] * (length - len(row)) + row for row in rows])
    seen = torch.tensor([[0] * (length - len(row)) + [1] * len(row) for row in rows])
    return ids, seen
