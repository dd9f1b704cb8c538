"""vLLM as an exact engine: its trees agree with plain passes of transformers."""

import os
import pickle

import numpy as np
import pytest
import torch

import charwise
from charwise.engines.vllm import VllmLM
from charwise.errors import ModelError, SettingError
from charwise.tokens.vocabulary import Vocabulary
from conftest import ENGINE, ENVIRONMENT

os.environ.update(ENVIRONMENT)

from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM

from trees import LAWS, Subject, extend, random_trees_agree

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


@pytest.fixture(scope="session")
def one(lm, plain) -> Subject:
    @torch.inference_mode()
    def true(contexts: list[list[int]]) -> torch.Tensor:
        counted = torch.from_numpy(lm.vocabulary.counted.copy())
        rows = torch.stack([plain(torch.tensor([ids])).logits[0, -1] for ids in contexts])
        return rows.masked_fill(~counted, -torch.inf).log_softmax(-1)

    return Subject(lm, true, start=END, letters=TEXT, close=1e-3)


@pytest.mark.parametrize("law", LAWS)
def test_trees_keep_the_contract(one, law):
    law(one)


def test_trees_after_long_prompts_agree_with_plain_passes(one):
    random_trees_agree(one, longest=70)


def test_many_contexts_on_a_path_are_one_request(llm, lm, vocabulary, one, monkeypatch):
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
    assert one.agrees([END, 3], tree, nodes)
    lm = VllmLM(llm, vocabulary)
    lm.batch_values = 40 * WIDTH
    short = lm.tree([END, 3])  # in calls of 40 contexts
    assert one.agrees([END, 3], short, extend(short, [*chain[:60], *((0, i) for i in range(26))]))
    assert all(isinstance(length, int) for length in asked[4:])


def test_a_failing_call_leaves_the_tree_as_it_was(lm, llm, one, monkeypatch):
    tree = lm.tree([END])
    [a] = extend(tree, [(0, 1)])
    with monkeypatch.context() as patched:
        patched.setattr(llm.llm_engine, "step", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            extend(tree, [(a, 2), (2, 3)])
    assert (tree.size, tree.contexts) == (2, 2)
    assert one.agrees([END], tree, [a, *extend(tree, [(a, 3), (0, 4)])])


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


def test_copies_open_the_model_again_if_charwise_opened_it(lm, exact):
    assert pickle.loads(pickle.dumps(exact)).engine is exact.engine
    with pytest.raises(ModelError, match="open it by name"):
        pickle.dumps(lm)


def test_what_does_not_go_together_is_refused(llm, lm):
    assert lm.window == 127  # and one for the token that vLLM generates
    with pytest.raises(ModelError, match="width=64"):
        VllmLM(llm, Vocabulary.from_bytes([b"a", b"b"]))
    with pytest.raises(SettingError, match="where it was built for"):
        charwise.load("embedded", engine="vllm", device="cuda")
