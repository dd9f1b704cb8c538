"""Trees of contexts agree with plain forward passes, whatever the model's attention looks like."""

from collections.abc import Sequence
from functools import partial, wraps
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import transformers

import charwise.engines.transformers
from charwise.engine import TogetherLM, TokenTree
from charwise.engines.forward import SlotLayer
from charwise.engines.transformers import TransformersLM
from charwise.errors import LimitError, ModelError
from charwise.tokens.vocabulary import Vocabulary
from tiny import BRANCHED, EAGER_ONLY, FAMILIES, WIDTH, family
from trees import LAWS, Subject, extend, paths, random_trees_agree

TEXT = 26  # of the output layers' 32: ids 26 … 29 and 31 spell nothing, 30 ends a text


def make_vocabulary(width: int = WIDTH) -> Vocabulary:
    letters = [bytes([97 + i]) for i in range(TEXT)]
    return Vocabulary.from_bytes([*letters, *[None] * (width - TEXT)], end_ids=[30], bos_ids=[30])


with_each_kind = pytest.mark.parametrize("path", ["tree", "branches"])


def fastest(name: str) -> str:
    return "eager" if name in EAGER_ONLY else "sdpa"


def of_kind(lm: TransformersLM, path: str) -> TransformersLM:
    if path == "branches":
        lm.forward.unmaskable = "a test says so"
    return lm


def make_lm(
    name: str,
    attention: str = "eager",
    dtype=torch.float32,
    path: str = "tree",
    batch_bytes: int = 2**28,
    **options,
) -> TransformersLM:
    lm = TransformersLM(family(name, attention, dtype), make_vocabulary(), **options)
    lm.forward.batch_bytes = batch_bytes
    return of_kind(lm, path)


@torch.inference_mode()
def plain(lm: TransformersLM, contexts: list[list[int]]) -> torch.Tensor:
    """Log-probabilities `[n, width]` by plain passes, one batch per length, without any cache."""
    out = torch.empty(len(contexts), lm.vocabulary.width)
    counted = torch.from_numpy(lm.vocabulary.counted.copy())
    lengths = np.array([len(ids) for ids in contexts])
    for length in np.unique(lengths):
        at = np.flatnonzero(lengths == length)
        batch = torch.tensor([contexts[i] for i in at])
        logits = lm.model(input_ids=batch, use_cache=False).logits[:, -1].float()
        out[at] = logits.masked_fill(~counted, -torch.inf).log_softmax(-1)
    return out


def subject(lm: TransformersLM) -> Subject:
    return Subject(lm, partial(plain, lm))


def agrees(lm: TransformersLM, prompt: list[int], tree: TokenTree, nodes: list[int]) -> bool:
    return subject(lm).agrees(prompt, tree, nodes)


@pytest.fixture(autouse=True)
def one_thread():
    """Models this small only lose time to a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


#: A family, its attention, numbers and trees.
CASES = [
    *((name, "eager", "float32", "tree") for name in FAMILIES | BRANCHED),
    *((name, "sdpa", "float32", "tree") for name in FAMILIES if name not in EAGER_ONLY),
    *((name, "eager", "float32", "branches") for name in ("llama", "gemma3", "gpt_neo")),
    *(
        (name, "sdpa", dtype, "tree")
        for name in ("llama", "gpt_neo", "gemma3", "mamba")
        for dtype in ("bfloat16", "float16")
    ),
]


@pytest.mark.parametrize("trees", [10, pytest.param(80, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "attention", "dtype", "path"), CASES)
def test_trees_agree_with_plain_passes(name, attention, dtype, path, trees):
    lm = make_lm(name, attention, getattr(torch, dtype), path)
    info, masked = lm.info(), path == "tree" and name not in BRANCHED
    assert (info["dtype"], info["path"]) == (
        dtype,
        "tree attention" if masked else "cache per branch",
    )
    assert info["why"].startswith("no tree attention: ") != masked
    close = 1e-4
    if dtype != "float32":
        close = 0.25 * max(1.0, plain(lm, [[30, 1, 2]])[:, :TEXT].std().item())
    random_trees_agree(Subject(lm, partial(plain, lm), close=close), trees)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neo", "mamba"])
def test_trees_keep_the_contract(name, law):
    law(subject(make_lm(name, window=36 if name == "mamba" else None)))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_call_attends_to_no_more_than_its_paths(name, monkeypatch):
    """Slots that no row of the call sees are left out where they are many, and come back later."""
    lm = make_lm(name, fastest(name))
    prompt = [30, 1, 2, 3, 4, 5]
    tree = lm.tree(prompt)
    path = extend(tree, [(tree.size + i - 1 if i else 0, i) for i in range(5)])
    leaves = extend(tree, [(path[i % 5], 6 + i % 20) for i in range(30)])
    sizes, update = [], SlotLayer.update

    def spied(layer, *arguments, **options):
        actual = update(layer, *arguments, **options)
        sizes.append(actual[0].shape[2])
        return actual

    monkeypatch.setattr(SlotLayer, "update", spied)
    longer = extend(tree, [(path[2], 7), (path[-1], 8), (tree.size, 9)])
    assert set(sizes) == {len(prompt) + len(path) + 3}  # of 44 slots
    sizes.clear()
    every = extend(tree, [(leaf, 10) for leaf in leaves])
    assert set(sizes) == {len(prompt) + tree.size - 1}
    assert agrees(lm, prompt, tree, [0, *path, *leaves, *longer, *every])


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_neo", "mistral"])
def test_the_first_edges_go_with_the_prompt(name, monkeypatch):
    """In the same call; after a prompt whose mask would be large, what branches off in a second."""
    lm = make_lm(name)
    prompt, path = [30, *range(1, 12)], [(0, 1), (1, 2), (2, 3)]
    branches = [*path, (0, 4), (1, 5), (5, 6), (3, 7)]
    for edges, calls in (([], 1), (path, 1), (branches, 1)):
        tree = lm.tree(prompt, paths(edges, 1))
        assert (tree.calls, tree.size, tree.contexts) == (calls, 1 + len(edges), 1 + len(edges))
        assert agrees(lm, prompt, tree, list(range(tree.size)))
        assert agrees(lm, prompt, tree, extend(tree, [(tree.size - 1, 8), (0, 9)]))
    monkeypatch.setattr(charwise.engines.transformers, "_SMALL_MASK", 4)
    tree = lm.tree(prompt, paths(branches, 1))
    assert (tree.calls, tree.size) == (2, 8)
    assert agrees(lm, prompt, tree, list(range(8)))


@pytest.mark.parametrize("name", ["llama", "mamba"])
def test_large_calls_are_split(name):
    results = []
    for batch_bytes in (2**28, 3 * 4 * WIDTH):
        lm = make_lm(name, batch_bytes=batch_bytes)
        tree = lm.tree([30, 5])
        rng = np.random.default_rng(0)
        nodes = subject(lm).grow(tree, [0], rng, 20)
        results.append((tree.calls, tree.logprobs(nodes)))
    assert results[0][0] < results[1][0] >= 8
    assert torch.allclose(results[0][1], results[1][1], atol=1e-4)
    tree.forget(nodes[1:])
    held = [row.untyped_storage().nbytes() for row in tree._logits.values()]
    assert sum(held) == 2 * 4 * WIDTH  # the root's and the first one's


def test_the_users_model_is_left_as_it_is():
    model = family("gpt_neo")
    before = {name: (value, value.clone()) for name, value in model.named_buffers()}
    parameters = dict(model.named_parameters())
    lm = TransformersLM(model, make_vocabulary())
    random_trees_agree(subject(lm), 3)
    assert all(value is before[name][0] for name, value in model.named_buffers())
    assert all(torch.equal(value, before[name][1]) for name, value in model.named_buffers())
    twin = lm.forward.twin.model
    assert twin is not model
    assert all(value is parameters[name] for name, value in twin.named_parameters())


@pytest.mark.parametrize("name", ["llama", "mamba"])
def test_a_failing_call_leaves_the_tree_as_it_was(name, monkeypatch):
    lm = make_lm(name, batch_bytes=2 * 4 * WIDTH)
    tree = lm.tree([30])
    (a,) = extend(tree, [(0, 1)])
    calls = []
    forward = lm.model.forward

    def failing(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return forward(*args, **kwargs)

    monkeypatch.setattr(lm.model, "forward", failing)
    with pytest.raises(KeyboardInterrupt):
        extend(tree, [(a, 2), (2, 3), (a, 4), (0, 5), (a, 6), (3, 7)])
    assert (tree.size, tree.contexts) == (2, 2)
    assert agrees(lm, [30], tree, [a, *extend(tree, [(a, 3), (0, 4)])])


def test_what_is_no_causal_model_of_this_width_is_refused():
    with pytest.raises(ModelError, match="width=32"):
        TransformersLM(family("llama"), make_vocabulary(31)).tree([30])
    t5 = transformers.T5Config(
        vocab_size=WIDTH, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2
    )
    with pytest.raises(ModelError, match="not a causal language model"):
        TransformersLM(transformers.T5ForConditionalGeneration(t5), make_vocabulary())
    assert (make_lm("gpt2").window, make_lm("mamba").window) == (64, None)


@with_each_kind
def test_a_window_that_the_models_positions_do_not_fill(path):
    lm = make_lm("gpt2", window=200, path=path)
    with pytest.raises(LimitError, match=r"fails at a context of 65 tokens"):
        lm.tree([1] * 65)
    tree = lm.tree([1] * 62)
    (node,) = extend(tree, [(0, 1)])
    with pytest.raises(LimitError, match=r"fails at a context of 65 tokens.*window="):
        extend(tree, [(node, 1), (2, 1)])
    assert tree.size == 2
    assert agrees(lm, [1] * 62, tree, [0, 1, *extend(tree, [(node, 2)])])


def adjusted(fixed: dict[int, float], path="tree") -> TransformersLM:
    """A Llama some of whose logits are fixed, as models do with columns that pad their output."""
    model = family("llama")

    def fix(model, inputs, output):
        for id, value in fixed.items():
            output.logits[..., id] = value

    model.register_forward_hook(fix)
    return of_kind(TransformersLM(model, make_vocabulary()), path)


@pytest.mark.parametrize(
    "fixed",
    [
        *(
            dict.fromkeys([*range(TEXT, 30), 31], value)
            for value in (-np.inf, np.inf, np.nan, -1e30)
        ),
        {3: -np.inf, 4: -np.inf},  # tokens that the model rules out
        dict.fromkeys(range(WIDTH), 0.0),  # a model without opinions
    ],
)
@with_each_kind
def test_fixed_logits_are_those_of_plain_passes(fixed, path):
    random_trees_agree(subject(adjusted(fixed, path)), 5)


@with_each_kind
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_not_finite(value, path):
    with pytest.raises(ModelError, match="not finite"):
        adjusted({3: value}, path).tree([30])
    fixed: dict[int, float] = {}
    tree = adjusted(fixed, path).tree([30])
    fixed[3] = value
    with pytest.raises(ModelError, match="not finite"):
        tree.logprobs(extend(tree, [(0, 1)]))
    assert tree.size == 2


def test_a_model_that_ignores_the_mask_is_found_out(monkeypatch):
    model = family("llama")
    forward = model.forward

    @wraps(forward)  # and has its arguments
    def careless(*args, attention_mask=None, **kwargs):
        return forward(*args, **kwargs)

    monkeypatch.setattr(model, "forward", careless)
    lm = TransformersLM(model, make_vocabulary())
    assert lm.info()["path"] == "cache per branch"
    assert "plain passes" in lm.info()["why"]
    random_trees_agree(subject(lm), 5)


def test_a_model_without_logits_to_keep_and_with_every_id_counted(monkeypatch):
    model = family("llama")
    forward = model.forward

    def old(attention_mask=None, position_ids=None, cache=None, **others):
        return forward(
            attention_mask=attention_mask, position_ids=position_ids, cache=cache, **others
        )

    monkeypatch.setattr(model, "forward", old)
    lm = TransformersLM(model, Vocabulary.from_bytes([bytes([i]) for i in range(WIDTH)]))
    assert not lm.forward._takes_keep
    tree = lm.tree([30, 1])
    nodes = extend(tree, [(0, 1), (0, 2), (1, 3)])
    assert agrees(lm, [30, 1], tree, [0, *nodes])


def together(
    lm: Any, wishes: Sequence[tuple[Any, Sequence[tuple[int, int]]]]
) -> list[list[int]] | None:
    """The new nodes of each tree, for (parent, token) pairs."""
    branches = [(tree, [(node, [token]) for node, token in edges]) for tree, edges in wishes]
    new_nodes = lm.extend_together(branches)
    return new_nodes and [[node for [node] in paths] for paths in new_nodes]


@pytest.mark.parametrize("name", FAMILIES)
def test_trees_extended_together_agree_with_plain_passes(name: str) -> None:
    lm, rng = make_lm(name, fastest(name)), np.random.default_rng(0)
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


def test_what_fails_leaves_all_trees_as_they_were(monkeypatch) -> None:
    lm = make_lm("llama", "sdpa")
    trees, full = [lm.tree([1, 2]), lm.tree([3])], lm.tree([4] * 64)
    together(lm, [(tree, [(0, 5)]) for tree in trees])
    for tree, edge in ((trees[1], (7, 1)), (trees[1], (0, 99)), (full, (0, 1))):
        with pytest.raises((ModelError, LimitError)):
            together(lm, [(trees[0], [(0, 6)]), (tree, [edge])])
        assert [tree.size for tree in trees] == [2, 2]
    with monkeypatch.context() as patched:
        patched.setattr(lm.model.model.layers[1].mlp, "forward", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            together(lm, [(tree, [(1, 6)]) for tree in trees])
    assert together(lm, [(tree, [(1, 6)]) for tree in trees]) == [[2], [2]]
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
