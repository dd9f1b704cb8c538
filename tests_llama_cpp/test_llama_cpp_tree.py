"""Trees on shared sequences agree with plain passes of transformers, however little they hold."""

import gc
import pickle
from functools import partial

import convert
import numpy as np
import pytest
import torch

from charwise.engines.llama_cpp import LlamaCppLM
from charwise.errors import ModelError, SettingError
from charwise.tokens.gguf import library
from test_tree import TEXT, WIDTH, make_vocabulary, plain
from tiny import LLAMA, family
from trees import LAWS, Subject, extend, random_trees_agree

WINDOW = LLAMA["max_position_embeddings"]

#: Sequences and cells: plenty, few of each, and the least that there can be.
ROOMS = {"plenty": (256, 2048), "few": (6, 160), "cells": (256, WINDOW), "least": (2, WINDOW)}


class Both:
    """A tiny Llama in transformers and in a GGUF file: what the other engines' tests want."""

    def __init__(self, path, model=None, batch_bytes=2**28, **options):
        self.vocabulary = make_vocabulary()
        self.model = model or family("llama")
        self.lm = LlamaCppLM(path, **options)
        self.lm.batch_bytes = batch_bytes
        self.tree = self.lm.tree
        self.subject = Subject(self.lm, partial(plain, self))
        self.agrees, self.grow = self.subject.agrees, self.subject.grow

    def check(self):
        """What is noted of the cells is what llama.cpp has."""
        cells = self.lm.cells
        seen_by = np.zeros(cells.count, int)
        for number in range(cells.sequences * len(cells._copies)):
            sequence = number % cells.sequences
            size = cells._size[sequence]
            positions = [
                getattr(library(), f"llama_memory_seq_pos_{end}")(cells._memory, number)
                for end in ("min", "max")
            ]
            assert positions == ([0, size - 1] if size else [-1, -1])
            own = cells._cells[sequence, :size]
            assert len(set(own)) == size
            assert len(set(zip(own, range(size), cells._tokens[sequence], strict=False))) == size
            seen_by[own] += number < cells.sequences
        assert (cells._seen_by == seen_by).all()


@pytest.fixture(scope="session")
def path(files):
    return convert.write_model(files / "tiny.gguf", family("llama"), None)


@pytest.fixture(params=ROOMS)
def both(request, path):
    sequences, cells = ROOMS[request.param]
    return Both(path, sequences=sequences, cells=cells)


@pytest.fixture
def plenty(path):
    return Both(path)


@pytest.mark.parametrize("law", LAWS)
def test_trees_keep_the_contract(both, law):
    law(both.subject)
    both.check()


@pytest.mark.parametrize("room", ROOMS)
def test_sliding_windows_are_cut_along_the_path(files, room):
    model = family("gemma3", "eager")
    # llama.cpp scales by the width of a head; the other's default is for another size of model.
    for layer in model.model.layers:
        layer.self_attn.scaling = model.config.head_dim**-0.5
    sequences, cells = ROOMS[room]
    path = convert.write_model(files / f"gemma3-{room}.gguf", model)
    both = Both(path, model, sequences=max(4, sequences), cells=cells)
    # llama.cpp looks this model's activation function up in a table of float16.
    both.subject.close = 1e-2
    random_trees_agree(both.subject)
    rng = np.random.default_rng(0)
    for size in (1, 3, 20):
        prompt = [30, *rng.integers(TEXT, size=size - 1).tolist()]
        tree = both.tree(prompt)
        # Two paths in alternation, each longer than the sliding window of 5.
        edges = [(0, 1), (0, 2)]
        edges += [(tree.size + i - 2, (5 * i) % TEXT) for i in range(2, 20)]
        nodes = extend(tree, edges)
        nodes += extend(tree, [(node, 7) for node in nodes])
        both.check()
        assert both.agrees(prompt, tree, [0, *nodes])


def test_trees_share_the_cells_in_turn(both):
    rng = np.random.default_rng(1)
    prompts = [[30, *rng.integers(TEXT, size=size).tolist()] for size in (0, 3, 9, 20)]
    trees = [both.tree(prompt) for prompt in prompts]
    live = [[0] for _ in trees]
    for _ in range(40):
        i = int(rng.integers(len(trees)))
        shallow = [node for node in live[i] if trees[i].depth(node) < 12]
        live[i] += both.grow(trees[i], shallow, rng, int(rng.integers(1, 9)))
        both.check()
    for prompt, tree, nodes in zip(prompts, trees, live, strict=True):
        assert both.agrees(prompt, tree, nodes)


def test_calls_are_split_by_their_logits(path):
    results = []
    for batch_bytes in (2**28, 3 * 4 * WIDTH):
        both = Both(path, batch_bytes=batch_bytes)
        tree = both.tree([30, 5])
        nodes = both.grow(tree, [0], np.random.default_rng(0), 20)
        results.append((tree.calls, tree.logprobs(nodes)))
    assert [calls for calls, _ in results] == [2, 1 + 7]
    assert both.tree([30, 4], [(0, [1, 2])]).calls == 1  # a first path goes with the prompt
    assert torch.allclose(results[0][1], results[1][1], atol=1e-4)


def test_a_tree_that_is_gone_frees_its_cells(plenty):
    tree = plenty.tree([30, 1, 2])
    extend(tree, [(0, 1), (0, 2), (1, 3)])
    other = plenty.tree([30])
    del tree
    gc.collect()
    extend(other, [(0, 4)])
    assert plenty.lm.cells.used == 2
    plenty.check()


@pytest.mark.parametrize("failure", [KeyboardInterrupt, ModelError])
def test_a_failing_call_leaves_the_tree_as_it_was(path, monkeypatch, failure):
    both = Both(path, batch_bytes=2 * 4 * WIDTH)
    tree = both.tree([30])
    (a,) = extend(tree, [(0, 1)])
    decode = both.lm.cells._decode
    calls = []

    def failing(*arguments):
        calls.append(1)
        if len(calls) == 2:
            raise failure
        return decode(*arguments)

    monkeypatch.setattr(both.lm.cells, "_decode", failing)
    with pytest.raises(failure):
        extend(tree, [(a, 2), (2, 3), (a, 4), (0, 5), (a, 6), (3, 7)])
    assert (tree.size, tree.contexts, both.lm.cells.used) == (2, 2, 0)
    assert both.agrees([30], tree, [a, *extend(tree, [(a, 3), (0, 4)])])
    both.check()


def test_what_llama_cpp_refuses_is_an_error(plenty):
    tree = plenty.tree([30, 3])
    (a,) = extend(tree, [(0, 1)])
    cells = plenty.lm.cells
    # Behind its back: the next token's position does not follow what is left.
    [sequence] = np.flatnonzero(cells._size == 3)
    library().llama_memory_seq_rm(cells._memory, int(sequence), 1, -1)
    with pytest.raises(ModelError, match="llama_decode returned -1"):
        extend(tree, [(a, 2)])
    assert tree.size == 2
    assert plenty.agrees([30, 3], tree, extend(tree, [(a, 2)]))
    plenty.check()


def test_settings_that_cannot_be(path):
    with pytest.raises(ModelError, match="width=32"):
        LlamaCppLM(path, make_vocabulary(31))
    for options in (
        *({"window": window} for window in (WINDOW + 1, 0)),
        {"cells": WINDOW - 1},
        *({"sequences": sequences} for sequences in (1, 257)),
        {"threads": 0},
    ):
        with pytest.raises(SettingError, match=f"{next(iter(options))} is .* takes"):
            LlamaCppLM(path, **options)


def test_more_cells_than_the_original_context_stretch_nothing(files):
    path = convert.write_model(files / "stretched.gguf", family("llama"), None, stretched_from=32)
    assert LlamaCppLM(path, window=32).cells.count == 32
    assert LlamaCppLM(path).cells.count > WINDOW


def test_information_and_copies(path):
    lm = LlamaCppLM(path, window=40, threads=1)
    info = lm.info()
    assert info["path"] == "shared sequences"
    assert "float32" in info["dtype"]
    assert info["attention"] == "1 threads"
    copy = pickle.loads(pickle.dumps(lm))
    assert (copy.window, copy.threads, copy.vocabulary.tokens) == (40, 1, lm.vocabulary.tokens)
    assert torch.equal(copy.tree([30]).logprobs([0]), lm.tree([30]).logprobs([0]))
