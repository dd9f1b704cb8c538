"""Log-probabilities of a completion are those of the texts that its reader sees."""

from __future__ import annotations

import math
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from charwise.api.writer import spelled, unspelled
from charwise.serve.logprobs import after_characters, alternatives
from models import Case, Model, cases, examples

PROMPTS = [
    "x = ", "raise ValueErr", "self.assertEq", "import nump", "# 🍋", "s = '🍋é東", "x = [1, 2", "",
    "é = 'nai",
]  # fmt: skip


@given(st.binary(max_size=6) | st.from_regex(rb"bytes:(\\x[0-9a-f]{2}){1,2}", fullmatch=True))
def test_a_spelling_is_of_one_token(raw: bytes) -> None:
    assert unspelled(spelled(raw)) == raw


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_place_lists_texts_that_could_be_there(
    http: httpx.Client, prompt: str, temperature: float
) -> None:
    query = {"prompt": prompt, "max_tokens": 6, "logprobs": 3, "seed": 4}
    query |= {"temperature": temperature, "stop": ["\n)", "o"]}
    choice = http.post("/v1/completions", json=query).json()["choices"][0]
    report = choice["logprobs"]
    raw = b"".join(map(unspelled, report["tokens"]))
    assert raw == b"".join(map(bytes, report["bytes"]))
    assert raw.decode("utf-8", "replace") == choice["text"]
    for at, token in enumerate(report["tokens"]):
        top = report["top_logprobs"][at]
        assert top[token] == report["token_logprobs"][at]
        assert 3 <= len(top) <= 4
        assert all(-1000 < value <= 1e-9 for value in top.values())
        assert sum(map(math.exp, top.values())) <= 1 + 1e-5
        likelier = sum(value > top[token] for value in top.values())
        assert len(top) == (4 if likelier == 3 else min(3, len(top)))


def test_after_characters_all_tokenizations_count(http: httpx.Client) -> None:
    """`x = ` ends in a token, in the middle of ` 0`, and between them."""
    query = {"prompt": "x = ", "max_tokens": 1, "logprobs": 100, "seed": 1}
    [report] = http.post("/v1/completions", json=query).json()["choices"]
    [top] = report["logprobs"]["top_logprobs"]
    chars = http.post("/v1/next", json={"prompt": "x = ", "top": 200}).json()["bytes"]
    by_byte = {one["byte"]: one["prob"] for one in chars}
    for byte in b"0N[":
        texts = [value for text, value in top.items() if text.startswith(chr(byte))]
        share = sum(map(math.exp, texts))
        assert 0.5 * by_byte[byte] < share <= by_byte[byte] * 1.001


def test_an_echo_and_its_tokens_are_one_text(http: httpx.Client) -> None:
    for prompt in ("s = '🍋é\r\n", "<fim_prefix>a<fim_suffix>b<fim_middle>"):
        query = {"prompt": prompt, "max_tokens": 2, "echo": True, "logprobs": 2}
        [choice] = http.post("/v1/completions", json=query).json()["choices"]
        raw = b"".join(map(unspelled, choice["logprobs"]["tokens"]))
        assert raw.decode() == choice["text"]
        report = choice["logprobs"]
        for at, token in enumerate(report["tokens"]):
            assert report["top_logprobs"][at][token] == report["token_logprobs"][at]


def first_texts(model: Model, prompt: bytes) -> dict[bytes, float]:
    """The text that the next token adds to a prompt: by all token strings that spell it."""
    masses: dict[bytes, float] = {}
    left: list[tuple[tuple[int, ...], bytes, float]] = [((), prompt, 1.0)]
    while left:
        tokens, rest, weight = left.pop()
        for id, p in enumerate(model.p(tokens)):
            token = model.vocabulary.tokens[id]
            if id in model.vocabulary.end_ids:
                if not rest:
                    masses[b""] = masses.get(b"", 0.0) + weight * p
            elif token and p > 0 and rest.startswith(token) and rest:
                left.append(((*tokens, id), rest[len(token) :], weight * p))
            elif token and token.startswith(rest):
                text = token[len(rest) :]
                masses[text] = masses.get(text, 0.0) + weight * p
    total = sum(masses.values())
    return {text: p / total for text, p in masses.items()} if total else {}


@given(cases())
@examples(150)
def test_alternatives_are_summed_as_by_brute_force(case: Case) -> None:
    model, prompt = case.model, case.text
    expected = first_texts(model, prompt)
    if not expected:  # nothing spells the prompt
        return
    state = model.exact().state(prompt)
    chosen = max(expected, key=expected.__getitem__)
    masses: Any = alternatives(after_characters(state), chosen, 50, state.shared.index)
    possible = {text: p for text, p in expected.items() if p > 1e-12}
    assert {text for text, p in masses if p > math.log(1e-12)} == set(possible)
    for text, value in masses:
        assert np.exp(value) == pytest.approx(expected[text], rel=1e-6, abs=1e-12)
