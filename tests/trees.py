"""Trees grown by (parent, token) pairs, whose parents may be the nodes of earlier pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Pairs = Sequence[tuple[int, int]]


def paths(pairs: Pairs, size: int) -> list[tuple[int, list[int]]]:
    """Branches to each pair, in a tree of this size; the first pair stands for node `size`."""
    found: list[tuple[int, list[int]]] = []
    for parent, token in pairs:
        node, tokens = found[parent - size] if size <= parent else (parent, [])
        found.append((node, [*tokens, token]))
    return found


def extend(tree: Any, pairs: Pairs) -> list[int]:
    """The nodes of pairs, in one call."""
    return [path[-1] for path in tree.extend(paths(pairs, tree.size))]
