"""Several trees of a model extended in one call have what each of them would have alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from charwise.engine import TogetherLM
from charwise.errors import LimitError, ModelError
from test_tree import make_lm, plain
from tiny import EAGER_ONLY, FAMILIES


def together(
    lm: Any, wishes: Sequence[tuple[Any, Sequence[tuple[int, int]]]]
) -> list[list[int]] | None:
    """The new nodes of each tree, for (parent, token) pairs."""
    branches = [(tree, [(node, [token]) for node, token in edges]) for tree, edges in wishes]
    new_nodes = lm.extend_together(branches)
    return new_nodes and [[node for [node] in paths] for paths in new_nodes]


@pytest.mark.parametrize("name", FAMILIES)
def test_trees_extended_together_agree_with_plain_passes(name: str) -> None:
    lm, rng = make_lm(name, "eager" if name in EAGER_ONLY else "sdpa"), np.random.default_rng(0)
    assert isinstance(lm, TogetherLM)
    prompts = [rng.integers(0, 26, size).tolist() for size in (1, 4, 9, 14)]
    trees = [lm.tree(prompt) for prompt in prompts]
    grown = [[0] for _ in trees]
    contexts = [[prompt] for prompt in prompts]
    for _ in range(6):
        wishes = []
        for tree, nodes in zip(trees, grown, strict=True):
            parents = rng.choice(nodes, size=rng.integers(1, 4))
            wishes.append((tree, [(int(p), int(rng.integers(0, 26))) for p in parents]))
        new_nodes = together(lm, wishes)
        assert new_nodes is not None
        for nodes, texts, new, (_, edges) in zip(grown, contexts, new_nodes, wishes, strict=True):
            nodes += new
            texts += [[*texts[nodes.index(parent)], token] for parent, token in edges]
    for tree, prompt, nodes, texts in zip(trees, prompts, grown, contexts, strict=True):
        assert [[*prompt, *tree.tokens(node)] for node in nodes] == texts
        torch.testing.assert_close(tree.logprobs(nodes), plain(lm, texts), rtol=1e-4, atol=1e-4)
        assert (tree.calls, tree.contexts) == (7, len(nodes))


def test_what_fails_leaves_all_trees_as_they_were() -> None:
    lm = make_lm("llama", "sdpa")
    trees = [lm.tree([1, 2]), lm.tree([3])]
    together(lm, [(tree, [(0, 5)]) for tree in trees])
    for wrong, error in (((7, 1), ModelError), ((0, 99), ModelError)):
        with pytest.raises(error):
            together(lm, [(trees[0], [(0, 6)]), (trees[1], [wrong])])
        assert [tree.size for tree in trees] == [2, 2]
    full = lm.tree([4] * 64)
    with pytest.raises(LimitError):
        together(lm, [(trees[0], [(0, 6)]), (full, [(0, 1)])])

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no memory")

    layer = lm.model.model.layers[1].mlp
    forward, layer.forward = layer.forward, fail
    with pytest.raises(RuntimeError, match="no memory"):
        together(lm, [(tree, [(1, 6)]) for tree in trees])
    layer.forward = forward
    new_nodes = together(lm, [(tree, [(1, 6)]) for tree in trees])
    assert new_nodes == [[2], [2]]
    expected = plain(lm, [[1, 2, 5, 6], [3, 5, 6]])
    logs = torch.cat([tree.logprobs([2]) for tree in trees])
    torch.testing.assert_close(logs, expected, rtol=1e-4, atol=1e-4)


def test_calls_that_are_too_large_and_trees_of_others_are_left_alone() -> None:
    lm, other = make_lm("llama", "sdpa", batch_bytes=2000), make_lm("llama", "sdpa")
    trees = [lm.tree([1]), lm.tree([2])]
    assert together(lm, [(tree, [(0, 3)]) for tree in trees]) == [[1], [1]]
    assert together(lm, [(tree, [(0, 3)] * 9) for tree in trees]) is None
    assert [tree.size for tree in trees] == [2, 2]
    assert together(other, [(trees[0], [(0, 3)]), (other.tree([1]), [(0, 3)])]) is None
    branches = make_lm("llama", path="branches")
    assert together(branches, [(branches.tree([n]), [(0, 3)]) for n in (1, 2)]) is None
