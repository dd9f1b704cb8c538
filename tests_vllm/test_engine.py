"""vLLM as an exact engine: its trees agree with plain passes of transformers."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
import torch

import charwise
from charwise.engine import TokenLM, TokenTree
from charwise.engines.vllm import VllmLM
from charwise.errors import LimitError, ModelError, SettingError
from charwise.tokens.vocabulary import Vocabulary
from conftest import ENGINE, ENVIRONMENT

os.environ.update(ENVIRONMENT)

from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM

from trees import extend

WIDTH = 64  # ids 26 … 61 and 63 spell nothing, 62 ends a text
TEXT = 26
END = 62


@pytest.fixture(scope="session")
def plain() -> LlamaForCausalLM:
    """A random Llama; the large initializer range makes its attention matter."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WIDTH,
        hidden_size=128,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.2,
        pad_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    letters = [bytes([97 + i]) for i in range(TEXT)]
    return Vocabulary.from_bytes([*letters, *[None] * (WIDTH - TEXT)], end_ids=[END], bos_ids=[END])


@pytest.fixture(scope="session")
def llm(plain, tmp_path_factory) -> LLM:
    folder = tmp_path_factory.mktemp("llama")
    plain.save_pretrained(folder)
    return LLM(str(folder), **ENGINE | {"max_model_len": 128, "skip_tokenizer_init": True})


@pytest.fixture(scope="session")
def lm(llm, vocabulary) -> VllmLM:
    return VllmLM(llm, vocabulary)


@torch.inference_mode()
def difference(plain, prompt: list[int], tree: TokenTree, nodes: list[int]) -> float:
    """Largest |log-probability - that of a plain pass| over counted ids."""
    counted = torch.zeros(WIDTH, dtype=torch.bool)
    counted[[*range(TEXT), END]] = True
    found = tree.logprobs(nodes)
    assert found.dtype == torch.float32
    assert (found[:, ~counted] == -torch.inf).all()
    assert torch.allclose(found.exp().sum(-1), torch.ones(len(nodes)), atol=1e-5)
    worst = 0.0
    for row, node in zip(found, nodes, strict=True):
        logits = plain(torch.tensor([[*prompt, *tree.tokens(node)]])).logits[0, -1]
        true = logits.masked_fill(~counted, -torch.inf).log_softmax(-1)
        worst = max(worst, float((row - true)[counted].abs().max()))
    return worst


def grow(tree: TokenTree, live: list[int], rng: np.random.Generator, count: int) -> list[int]:
    """Extend by random edges, whose parents are old and new, recent ones more often."""
    parents = list(live)
    edges = []
    for i in range(count):
        recent = max(0, len(parents) - 3) if rng.random() < 0.7 else 0
        edges.append((int(parents[rng.integers(recent, len(parents))]), int(rng.integers(TEXT))))
        parents.append(tree.size + i)
    return extend(tree, edges)


def test_trees_agree_with_plain_passes(lm, plain):
    rng = np.random.default_rng(0)
    for _ in range(40):
        prompt = [END, *rng.integers(TEXT, size=rng.integers(0, 70)).tolist()]
        tree = lm.tree(prompt)
        live = [0]
        for _ in range(2):
            live += grow(tree, live, rng, int(rng.integers(1, 7)))
        kept = rng.choice(live, size=2).tolist()
        tree.keep(kept)
        live = sorted({0, *kept})
        live += grow(tree, live, rng, int(rng.integers(1, 5)))
        assert difference(plain, prompt, tree, live) < 1e-3


def test_a_path_is_one_call(lm, plain):
    assert isinstance(lm, TokenLM)
    tree = lm.tree([END])
    assert isinstance(tree, TokenTree)
    nodes = extend(tree, [(i, i + 1) for i in range(10)])
    assert (nodes, tree.size, tree.contexts, tree.calls) == (list(range(1, 11)), 11, 11, 2)
    assert (tree.depth(10), tree.tokens(3)) == (10, (1, 2, 3))
    assert difference(plain, [END], tree, nodes) < 1e-3
    more = extend(tree, [(2, 7), (4, 8)])
    assert difference(plain, [END], tree, extend(tree, [(more[1], 3)])) < 1e-3
    assert tree.extend([]) == []
    assert tree.logprobs([]).shape == (0, WIDTH)
    assert tree.logprobs([3, 0, 3]).shape == (3, WIDTH)
    tree.logprobs([0]).add_(1)  # callers may write to what they are given
    assert tree.logprobs([0]).exp().sum().item() == pytest.approx(1)


def test_forgotten_and_dropped_nodes(lm, plain):
    tree = lm.tree([END])
    a, b = extend(tree, [(0, 1), (0, 2)])
    c, d = extend(tree, [(a, 3), (b, 4)])
    tree.forget([c])
    with pytest.raises(ModelError, match="forgotten"):
        tree.logprobs([c])
    tree.keep([d])
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
    assert extend(tree, [(d, 5)]) == [5]
    assert difference(plain, [END], tree, [0, b, d, 5]) < 1e-3


def test_many_contexts_on_a_path_are_one_request(llm, lm, vocabulary, plain, monkeypatch):
    asked = []
    alone, along = VllmLM.next_logprobs, VllmLM.path_logprobs

    def next_logprobs(self, contexts):
        asked.extend(len(ids) for ids in contexts)
        return alone(self, contexts)

    def path_logprobs(self, path, lengths):
        asked.append(lengths)
        return along(self, path, lengths)

    monkeypatch.setattr(VllmLM, "next_logprobs", next_logprobs)
    monkeypatch.setattr(VllmLM, "path_logprobs", path_logprobs)
    tree = lm.tree([END, 3])
    chain = [(node, (7 * node) % TEXT) for node in range(90)]
    nodes = extend(tree, [*chain, (5, 1), (91, 2)])
    assert asked == [2, list(range(3, 93)), 8, 9]
    assert difference(plain, [END, 3], tree, nodes) < 1e-3
    lm = VllmLM(llm, vocabulary)
    lm.batch_values = 40 * WIDTH
    short = lm.tree([END, 3])
    assert difference(plain, [END, 3], short, extend(short, chain[:60])) < 1e-3
    assert all(isinstance(length, int) for length in asked[4:])


def test_large_calls_are_split(llm, lm, vocabulary):
    split = VllmLM(llm, vocabulary)
    split.batch_values = 3 * WIDTH
    edges = [(0, i) for i in range(10)]
    trees = [each.tree([END, 5]) for each in (lm, split)]
    found = [tree.logprobs(extend(tree, edges)) for tree in trees]
    assert torch.allclose(*found, atol=1e-4)


def test_a_failing_call_leaves_the_tree_as_it_was(lm, llm, plain, monkeypatch):
    tree = lm.tree([END])
    [a] = extend(tree, [(0, 1)])
    with monkeypatch.context() as patched:
        patched.setattr(llm.llm_engine, "step", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            extend(tree, [(a, 2), (2, 3)])
    assert (tree.size, tree.contexts) == (2, 2)
    assert difference(plain, [END], tree, [a, *extend(tree, [(a, 3), (0, 4)])]) < 1e-3


def test_bad_requests(lm, llm):
    with pytest.raises(ModelError, match="no tokens"):
        lm.tree([])
    with pytest.raises(ModelError, match="64 is not a token id"):
        lm.tree([WIDTH])
    tree = lm.tree([END])
    for node, token in [(1, 0), (-1, 0), (0, WIDTH), (0, -1)]:
        with pytest.raises(ModelError, match=r"does not exist|not a token id"):
            tree.extend([(node, [token]), (0, [3])])
    assert tree.size == 1
    with pytest.raises(ModelError, match="width=64"):
        VllmLM(llm, Vocabulary.from_bytes([b"a", b"b"]))


def test_context_length(lm, plain):
    assert lm.window == 127
    with pytest.raises(LimitError, match=r"128 tokens is longer than the .* window of 127"):
        lm.tree([1] * 128)
    tree = lm.tree([1] * 123)
    assert len(extend(tree, [(i, 1) for i in range(4)])) == 4
    with pytest.raises(LimitError, match="window of 127"):
        extend(tree, [(0, 2), (4, 1)])
    assert tree.size == 5
    assert difference(plain, [1] * 123, tree, [4]) < 1e-3


def test_contexts_come_from_the_prefix_cache(lm, llm):
    def hits() -> int:
        metrics = llm.get_metrics()
        return sum(m.value for m in metrics if m.name == "vllm:prefix_cache_hits")

    tree = lm.tree([END, *[i % TEXT for i in range(90)]])
    before = hits()
    extend(tree, [(0, i) for i in range(20)])
    assert hits() - before == 20 * 64  # two of its blocks of 32 tokens, for each


@pytest.fixture(scope="module")
def exact() -> charwise.CharLM:
    return charwise.load("embedded", engine="vllm")


def test_charwise_on_vllm_says_what_it_says_on_transformers(exact):
    other = charwise.load("embedded")
    assert exact.info()["engine"].startswith("vllm ")
    assert exact.info()["path"] == "prefix cache"
    text = "def check(value):\n    if value < 0:\n        raise ValueErr"
    a, b = exact.score(text), other.score(text)
    assert np.abs(a.logprobs - b.logprobs).max() < 1e-3
    assert np.abs(exact.next(text).probs - other.next(text).probs).max() < 1e-4
    assert exact.next(text).top(1)[0][0] == "o"
    [one], [two] = exact.complete(text), other.complete(text)
    assert one.text == two.text
    assert one.logprob == pytest.approx(two.logprob, abs=1e-2)


def test_what_load_refuses():
    with pytest.raises(SettingError, match="where it was built for"):
        charwise.load("embedded", engine="vllm", device="cuda")
    with pytest.raises(charwise.errors.ModelError):
        charwise.load("./nowhere", engine="vllm")


def test_copies_open_the_model_again_if_charwise_opened_it(lm, exact):
    assert pickle.loads(pickle.dumps(exact)).engine is exact.engine
    with pytest.raises(ModelError, match="open it by name"):
        pickle.dumps(lm)
