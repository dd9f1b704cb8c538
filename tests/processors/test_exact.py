"""Exact healing inside transformers, against the covering that the exact engine finds."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import charwise
from charwise import SortedVocabulary, heal_generate
from charwise.boundary import Members, boundary_covering
from charwise.coverings.covering import Query
from charwise.errors import SettingError
from charwise.healing import cut
from charwise.models import EMBEDDED
from charwise.processors.transformers import exact
from charwise.processors.transformers.generate import index_of
from near import approx
from tiny import family

PROMPTS = ["return isinst", "for i in rang", "import nump", "class Nod", "x = ", "def f(self, val"]


@cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(EMBEDDED)


@cache
def embedded() -> Any:
    return AutoModelForCausalLM.from_pretrained(EMBEDDED, dtype=torch.float32).eval()


def unknown_cache(*_: Any) -> None:
    """In the place of `_copied`: the model's cache is of a kind that is not known."""


@pytest.mark.parametrize("kind", ["llama", "mistral", "gpt2", "bloom", "mamba"])
@pytest.mark.parametrize("known", [True, False])
def test_answers_are_the_models(kind, known, monkeypatch):
    """A batch of contexts of prompts of several lengths, and each by itself."""
    if not known:
        monkeypatch.setattr(exact, "_copied", unknown_cache)
    model = family(kind)
    kept = [list(range(5, 5 + n)) for n in (3, 12, 8)]
    if kind == "mamba":
        kept = kept[:1]  # it reads what is padded
    contexts = [(0, ()), (0, (7, 9, 30)), (len(kept) - 1, (8,)), (len(kept) - 1, ())]
    ids = np.array([1, 20, 31])
    asked = [(at, Query(tokens, ids)) for at, tokens in contexts]
    with torch.no_grad():
        answers = exact._Kept(model, kept, 0).answers(asked)
        for (at, query, found), (expected_at, tokens) in zip(answers, contexts, strict=True):
            assert (at, query.context) == (expected_at, tokens)
            logits = model(torch.tensor([[*kept[at], *tokens]])).logits[0, -1]
            assert found == approx(logits.log_softmax(-1)[ids].numpy(), abs=1e-4)


def members_of(index: SortedVocabulary, kept: list[int], forced: bytes) -> Members:
    """The members that the embedded model finds after a prompt, beside a longer one."""
    covering = boundary_covering(index, forced)
    with torch.no_grad():
        batch = exact._Kept(embedded(), [kept, [*kept, 5, 6, 7]], 0)
        while asked := covering.queries():
            for _, query, logs in batch.answers([(0, each) for each in asked]):
                covering.answer(query.context, logs)
    return Members(covering)


def test_members_are_those_of_the_exact_engine():
    """Every member's log-probability, for the embedded model, on prompts of several lengths."""
    lm = charwise.load()
    index = index_of(tokenizer(), embedded())
    for prompt in PROMPTS:
        kept, forced = cut(prompt, index)
        members = members_of(index, kept, forced)
        covering = lm.covering([*kept, forced])
        assert members.missing <= 1e-3
        total = covering.prefix_logprob().upper
        logs = dict(zip(map(members.token_ids, range(len(members))), members.logprobs, strict=True))
        for member in covering.top(8):
            if member.logprob > total + math.log(2e-3):
                assert logs[member.token_ids] == approx(member.logprob, abs=2e-3)


def test_a_short_token_is_weighed_by_what_follows_it():
    """The mask goes on from ` is`, which is a word; conditioning knows what `inst` is part of."""
    prompt = "def f(x):\n    return isinst"
    settings = {"max_new_tokens": 4, "do_sample": False}
    [masked] = heal_generate(embedded(), tokenizer(), prompt, **settings)
    [exactly] = heal_generate(embedded(), tokenizer(), prompt, method="exact", **settings)
    assert masked.startswith("r(x, x")
    assert exactly.startswith("ance(x, ")
    index = index_of(tokenizer(), embedded())
    kept, forced = cut(prompt, index)
    members = members_of(index, kept, forced)
    share = sum(
        weight
        for at, weight in enumerate(members.weights())
        if b"".join(index.vocabulary.tokens[id] for id in members.token_ids(at)).startswith(
            forced + b"ance"
        )
    )
    assert share > 0.999


def test_a_batch_is_each_prompt_by_itself():
    settings = {"method": "exact", "max_new_tokens": 6, "do_sample": False}
    prompts = [
        *PROMPTS,
        b"na\xc3",
        "x = (",
        "def check(value):\n    if value < 0:\n        raise Va",
    ]
    alone = [heal_generate(embedded(), tokenizer(), prompt, **settings)[0] for prompt in prompts]
    assert heal_generate(embedded(), tokenizer(), prompts, **settings) == alone
    assert heal_generate(embedded(), tokenizer(), prompts, rule="off", **settings) == heal_generate(
        embedded(), tokenizer(), prompts, rule="off", max_new_tokens=6, do_sample=False
    )


def test_the_cache_changes_nothing(monkeypatch):
    settings = {"method": "exact", "max_new_tokens": 6, "do_sample": False}
    with_it = [heal_generate(embedded(), tokenizer(), p, **settings) for p in PROMPTS]
    without = [
        heal_generate(embedded(), tokenizer(), p, use_cache=False, **settings) for p in PROMPTS
    ]
    monkeypatch.setattr(exact, "_copied", unknown_cache)
    assert with_it == without
    assert with_it == [heal_generate(embedded(), tokenizer(), p, **settings) for p in PROMPTS]


def test_drawn_texts_have_the_models_distribution():
    """The first bytes beyond the prompt, against those that the exact engine gives."""
    lm, count = charwise.load(), 600
    prompt = "    return s"
    state = lm.state(prompt, preset="exact")
    expected = state.next()
    torch.manual_seed(1)
    settings = {"method": "exact", "do_sample": True, "top_k": 0, "num_return_sequences": count}
    texts = heal_generate(embedded(), tokenizer(), prompt, max_new_bytes=1, **settings)
    assert len(texts) == count
    for byte in "etuo(":
        share = float(expected[byte])
        spread = math.sqrt(share * (1 - share) / count)
        assert abs(texts.count(byte) / count - share) <= 4.5 * spread + 2e-3, byte


def test_seeds_and_returned_sequences():
    settings = {
        "method": "exact",
        "do_sample": True,
        "max_new_tokens": 3,
        "num_return_sequences": 4,
    }
    prompts = ["import nu", "class Nod"]
    drawn = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        drawn.append(heal_generate(embedded(), tokenizer(), prompts, **settings))
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == 8
    torch.manual_seed(3)
    config = embedded().generation_config.__class__(
        do_sample=True, max_new_tokens=3, num_return_sequences=4
    )
    given = heal_generate(
        embedded(), tokenizer(), prompts, method="exact", generation_config=config
    )
    assert given == drawn[0]


def test_limits():
    def healed(prompt: Any, **settings: Any) -> str:
        [text] = heal_generate(
            embedded(), tokenizer(), prompt, method="exact", do_sample=False, **settings
        )
        return text

    whole = healed("return isinst", max_new_tokens=8)
    assert healed("return isinst", max_new_tokens=1) == "ance"
    assert healed("return isinst", max_new_bytes=2) == "an"
    assert healed("return isinst", stop_strings=["ce("], max_new_tokens=8) == "an"
    assert healed("return isinst", stop_strings="st", max_new_tokens=8) == whole.split("st")[0]
    assert whole.startswith(healed("return isinst", max_new_tokens=2))
    window = embedded().config.max_position_embeddings
    ids = tokenizer()("import os\n" * window).input_ids[: window - 3]
    text = [*ids, "\nreturn isinst"]
    index = index_of(tokenizer(), embedded())
    while len(index.vocabulary.encode_prompt(text)) >= window:
        ids = ids[:-1]
        text = [*ids, "\nreturn isinst"]
    assert healed(text, max_new_tokens=50).startswith("ance")


def test_an_assistant_may_help():
    settings = {"method": "exact", "max_new_tokens": 8, "do_sample": False}
    for prompt in PROMPTS[:3]:
        alone = heal_generate(embedded(), tokenizer(), prompt, **settings)
        looked_up = heal_generate(
            embedded(), tokenizer(), prompt, prompt_lookup_num_tokens=2, **settings
        )
        assert looked_up == alone


def test_what_is_refused():
    def healed(**settings: Any) -> list[str]:
        return heal_generate(embedded(), tokenizer(), "import nu", **settings)

    with pytest.raises(SettingError, match="'mask' or 'exact'"):
        healed(method="best")
    with pytest.raises(SettingError, match="beams"):
        healed(method="exact", num_beams=2)
    with pytest.raises(SettingError, match="do_sample"):
        healed(method="exact", num_return_sequences=2)
