"""Trees grown by (parent, token) pairs, and the contract that the trees of every engine keep.

Parents may be the nodes of earlier pairs. To hold an engine to the contract, make a `Subject` of
it, and call each of `LAWS` with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from charwise.engine import TokenLM, TokenTree
from charwise.errors import LimitError, ModelError

Pairs = Sequence[tuple[int, int]]


def paths(pairs: Pairs, size: int) -> list[tuple[int, list[int]]]:
    """Branches to each pair, in a tree of this size; the first pair stands for node `size`."""
    branches: list[tuple[int, list[int]]] = []
    for parent, token in pairs:
        node, tokens = branches[parent - size] if size <= parent else (parent, [])
        branches.append((node, [*tokens, token]))
    return branches


def extend(tree: Any, pairs: Pairs) -> list[int]:
    """The nodes of pairs, in one call."""
    return [path[-1] for path in tree.extend(paths(pairs, tree.size))]


@dataclass
class Subject:
    """An engine, and the truth about it."""

    lm: Any
    plain: Callable[[list[list[int]]], torch.Tensor]  # `[n, width]` logs, from another source
    start: int = 30  # an id that begins prompts
    letters: int = 26  # ids below this one are tokens with bytes
    close: float = 1e-4  # nats that the two may differ

    def agrees(self, prompt: list[int], tree: Any, nodes: list[int]) -> bool:
        """Whether the log-probabilities of nodes are those of plain passes."""
        branches = tree.logprobs(nodes)
        true = self.plain([[*prompt, *tree.tokens(node)] for node in nodes]).to(branches.dtype)
        counted = torch.from_numpy(self.lm.vocabulary.counted.copy())
        assert (branches[:, ~counted] == -torch.inf).all()
        assert torch.allclose(branches.exp().sum(-1), branches.new_ones(len(nodes)), atol=1e-5)
        return torch.allclose(branches, true, rtol=0, atol=self.close)

    def grow(self, tree: Any, live: list[int], rng: np.random.Generator, count: int) -> list[int]:
        """New nodes, whose parents are old and new, recent ones more often."""
        return extend(tree, random_pairs(tree.size, live, rng, count, self.letters))


def random_pairs(
    size: int, live: list[int], rng: np.random.Generator, count: int, letters: int = 26
) -> list[tuple[int, int]]:
    """Pairs for a tree of `size` nodes."""
    parents, pairs = list(live), []
    for i in range(count):
        recent = max(0, len(parents) - 3) if rng.random() < 0.7 else 0
        pairs.append((int(parents[rng.integers(recent, len(parents))]), int(rng.integers(letters))))
        parents.append(size + i)
    return pairs


def random_trees_agree(one: Subject, trees: int = 20, longest: int = 12) -> None:
    """With nodes that go with the prompt, and with `keep` and further growth in between."""
    rng = np.random.default_rng(0)
    for _ in range(trees):
        prompt = [one.start, *rng.integers(one.letters, size=rng.integers(0, longest)).tolist()]
        first = random_pairs(1, [0], rng, int(rng.integers(0, 7)), one.letters)
        tree = one.lm.tree(prompt, paths(first, 1))
        live = list(range(tree.size))
        for _ in range(2):
            live += one.grow(tree, live, rng, int(rng.integers(1, 7)))
        ids = rng.choice(live, size=2).tolist()
        tree.keep(ids)
        live = sorted({0, *ids})
        live += one.grow(tree, live, rng, int(rng.integers(1, 5)))
        assert one.agrees(prompt, tree, live)


def a_path_is_one_call(one: Subject) -> None:
    assert isinstance(one.lm, TokenLM)
    prompt = [one.start]
    tree = one.lm.tree(prompt)
    assert isinstance(tree, TokenTree)
    nodes = extend(tree, [(i, i % 3) for i in range(6)])
    assert (nodes, tree.size, tree.contexts) == ([1, 2, 3, 4, 5, 6], 7, 7)
    assert tree.calls == (7 if one.lm.info()["path"] == "cache per branch" else 2)
    assert (tree.depth(6), tree.tokens(3)) == (6, (0, 1, 2))
    more = extend(tree, [(2, 0), (4, 2)])
    assert one.agrees(prompt, tree, [*nodes, *extend(tree, [(more[1], 3)])])
    assert tree.extend([(0, [0, 1])]) == [[1, 2]]
    calls = tree.calls
    assert tree.extend([]) == []
    assert (tree.logprobs([]).shape, tree.logprobs([3, 0, 3]).shape) == (
        (0, one.lm.vocabulary.width),
        (3, one.lm.vocabulary.width),
    )
    tree.logprobs([0]).add_(1)  # callers may write to what they are given
    assert one.agrees(prompt, tree, [0])
    assert tree.calls == calls
    own = [node for [node] in tree.extend([(0, [0]), (0, [0])], own=True)]
    assert (own, tree.extend([(0, [0])])) == ([10, 11], [[1]])
    assert torch.equal(tree.logprobs([10]), tree.logprobs([11]))


def forgotten_and_dropped_nodes(one: Subject) -> None:
    prompt = [one.start]
    tree = one.lm.tree(prompt)
    a, b, c = extend(tree, [(0, 1), (0, 2), (0, 3)])
    tree.forget([a, b])
    with pytest.raises(ModelError, match="forgotten"):
        tree.logprobs([a])
    d, e = extend(tree, [(a, 3), (b, 0)])
    assert one.agrees(prompt, tree, [c, d])
    tree.keep([e])
    for use in (
        lambda: tree.logprobs([a]),
        lambda: extend(tree, [(c, 1)]),
        lambda: tree.keep([a]),
        lambda: tree.tokens(c),
        lambda: tree.depth(a),
        lambda: tree.forget([a]),
    ):
        with pytest.raises(ModelError, match=r"dropped by keep\(\)"):
            use()
    assert extend(tree, [(e, 2)]) == [6]
    assert tree.live == [0, b, e, 6]
    assert one.agrees(prompt, tree, [0, e, 6])
    tree.drop([b, 6])  # b as soon as nothing goes on from it
    assert tree.live == [0, b, e]
    tree.drop([e])
    assert tree.live == [0]
    assert one.agrees(prompt, tree, [0, *extend(tree, [(0, 1)])])


def bad_requests_change_nothing(one: Subject) -> None:
    width = one.lm.vocabulary.width
    with pytest.raises(ModelError, match="no tokens"):
        one.lm.tree([])
    with pytest.raises(ModelError, match=f"{width} is not a token id"):
        one.lm.tree([width])
    tree = one.lm.tree([one.start])
    for node, token in [(1, 0), (-1, 0), (0, width), (0, -1)]:
        with pytest.raises(ModelError, match=r"does not exist|not a token id"):
            tree.extend([(node, [token]), (0, [3])])
    assert tree.size == 1
    window = one.lm.window
    if window is None:
        return
    with pytest.raises(LimitError, match=f"{window + 1} tokens is longer than the .* of {window}"):
        one.lm.tree([1] * (window + 1))
    prompt = [1] * (window - 3)
    tree = one.lm.tree(prompt)
    assert len(extend(tree, [(i, i) for i in range(3)])) == 3
    with pytest.raises(LimitError, match=f"window of {window}"):
        extend(tree, [(0, 2), (3, 1)])
    assert tree.size == 4
    assert one.agrees(prompt, tree, [3, *extend(tree, [(2, 3), (0, 3)])])


def threads_share_a_tree(one: Subject) -> None:
    tree, made = one.lm.tree([one.start, 1]), list[int]()

    def work(token: int) -> None:
        node = 0
        for step in range(8):
            (node,) = extend(tree, [(node, (token + step) % one.letters)])
            made.append(node)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert sorted(made) == list(range(1, 33))
    assert one.agrees([one.start, 1], tree, made)


def more_nodes_than_the_window(one: Subject) -> None:
    prompt, rng, live = [one.start, 1, 2, 3], np.random.default_rng(0), [0]
    tree = one.lm.tree(prompt)
    while tree.size < 4 * (one.lm.window or 64):
        shallow = [node for node in live if tree.depth(node) < 12]
        parents = rng.choice(shallow, size=20).tolist()
        live += extend(tree, [(parent, int(rng.integers(one.letters))) for parent in parents])
    assert one.agrees(prompt, tree, live)
    leaf = max(live, key=tree.depth)
    tokens = [i % one.letters for i in range(10)]
    assert one.agrees(prompt, tree, tree.extend([(leaf, tokens)])[0])


#: What the trees of every engine keep.
LAWS = [
    random_trees_agree,
    a_path_is_one_call,
    forgotten_and_dropped_nodes,
    bad_requests_change_nothing,
    threads_share_a_tree,
    more_nodes_than_the_window,
]
