"""Everything that `CharLM` does, on GGUF files, beside transformers."""

import pickle

import numpy as np
import pytest
import torch
from prompts import cut_prompts
from transformers import AutoModelForCausalLM, AutoTokenizer

import charwise
from charwise import CharLM, Vocabulary
from charwise.engines.llama_cpp import LlamaCppLM
from charwise.engines.transformers import TransformersLM
from charwise.errors import VocabularyError

#: Nats. Two engines whose arithmetic is float32 stay well within this.
CLOSE = 1e-3

PROMPTS = ("raise ValueErr", "import nump", "for i in rang", "naï", b"\xe6\x97", b"\xff", "", " ")
TEXT = (
    'def area(width, height):\n    """Of a rectangle, in m²."""\n    if width < 0:\n'
    "        raise ValueError('a width of', width)\n    return width * height\n"
)


@pytest.fixture(scope="session")
def reference():
    return charwise.load()


@pytest.fixture(scope="session")
def lm(embedded_file, reference):
    """The embedded model by llama.cpp, with its own tokenizer, so that all else is equal."""
    return CharLM(LlamaCppLM(embedded_file, reference.vocabulary))


def test_loading(embedded_file):
    lm = charwise.load(embedded_file)
    assert lm.engine is charwise.load(str(embedded_file), engine="llama.cpp").engine
    assert lm.info()["path"] == "shared sequences"
    assert lm.info()["window"] == str(charwise.load().engine.window)
    assert lm.next("import nump").top(1)[0][0] == "y"
    assert pickle.loads(pickle.dumps(lm)).engine is lm.engine


def test_plain_logprobs_agree_with_transformers(lm, reference):
    ids = [*reference.vocabulary.bos_ids, *reference.vocabulary.encode(TEXT)]
    trees = [which.engine.tree(ids[:1]) for which in (lm, reference)]
    found, expected = (tree.logprobs(tree.extend([(0, ids[1:])])[0]) for tree in trees)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)  # −∞ where the other is


@pytest.mark.parametrize("preset", ["fast", "default", "accurate"])
def test_next_bytes_and_scores_agree(lm, reference, preset):
    for prompt in PROMPTS:
        found, expected = (which.next(prompt, preset=preset) for which in (lm, reference))
        likely = expected.probs > 1e-6
        assert np.abs(found.logprobs[likely] - expected.logprobs[likely]).max() < CLOSE, prompt
    found, expected = (which.score(TEXT, preset=preset, end=True) for which in (lm, reference))
    assert np.abs(found.logprobs - expected.logprobs).max() < CLOSE
    assert found.end_logprob == pytest.approx(expected.end_logprob, abs=CLOSE)
    assert found.contexts == expected.contexts
    texts = ["import os\n", TEXT, "x"]
    for one, other in zip(lm.scores(texts), reference.scores(texts), strict=True):
        assert np.abs(one.logprobs - other.logprobs).max() < CLOSE


def test_a_text_longer_than_the_window(embedded_file, reference):
    lm = CharLM(
        LlamaCppLM(embedded_file, reference.vocabulary, window=200, sequences=16, cells=260)
    )
    small = CharLM(TransformersLM(reference.engine.model, reference.vocabulary, window=200))
    found, expected = lm.score(TEXT * 6), small.score(TEXT * 6)
    assert np.abs(found.logprobs - expected.logprobs).max() < CLOSE


def test_three_hundred_prompts_cut_at_random_bytes(lm, reference, data):
    same = 0
    for prompt in cut_prompts(data, 300):
        found, expected = (
            which.complete(prompt, max_new_bytes=8, preset="fast")[0] for which in (lm, reference)
        )
        start, raw = prompt[: found.exact_from], lm.vocabulary.decode(found.token_ids)
        assert (start + raw).startswith(prompt + found.raw), prompt
        if found.token_ids == expected.token_ids:
            same += 1
            assert found.logprob == pytest.approx(expected.logprob, abs=CLOSE)
        else:  # only at a tie
            assert found.logprob == pytest.approx(expected.logprob, abs=10 * CLOSE), prompt
    assert same >= 295


@pytest.fixture(scope="session")
def stories(stories_file):
    """The real file by transformers, which makes its weights float32."""
    folder, name = stories_file.parent, stories_file.name
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    vocabulary = Vocabulary.from_transformers(tokenizer, width=model.config.vocab_size)
    return CharLM(TransformersLM(model.eval(), vocabulary))


STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play in the park with "
    "her friends. One day, she saw a big dog."
)


def test_a_real_file_agrees_with_transformers(stories, stories_float_file):
    # llama.cpp and transformers tokenize this file's texts differently; the numbers are the same.
    lm = CharLM(LlamaCppLM(stories_float_file, stories.vocabulary))
    for end in (1, 9, 14, 15, 40, 60, 85):
        found, expected = (which.next(STORY[:end]) for which in (lm, stories))
        likely = expected.probs > 1e-6
        assert np.abs(found.logprobs[likely] - expected.logprobs[likely]).max() < CLOSE
    found, expected = (which.score(STORY) for which in (lm, stories))
    assert np.abs(found.logprobs - expected.logprobs).max() < CLOSE
    own = charwise.load(stories_float_file)
    for prompt in ("Once upon a ti", "She loved to pl", "One day, sh"):
        texts = [which.complete(prompt)[0].text for which in (lm, own, stories)]
        assert texts[0] == texts[1] == texts[2]


def test_eight_bits_are_near(stories, stories_file):
    # The weights are the same, but llama.cpp also rounds activations to eight bits.
    lm = charwise.load(stories_file)
    found, expected = lm.score(STORY), stories.score(STORY)
    assert found.bits_per_byte == pytest.approx(expected.bits_per_byte, abs=0.02)
    assert lm.complete("Once upon a ti", max_new_bytes=2)[0].text == "me"
    with pytest.raises(VocabularyError, match="no token of this vocabulary spells"):
        lm.score("naïve" + " and so on" * 10)
