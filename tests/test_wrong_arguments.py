"""Arguments that make no sense: a typed error that says so, when the call is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import charwise
from charwise import CharLM
from charwise.errors import EngineError, ModelNotFoundError, SettingError


@pytest.mark.parametrize("texts", ["import", b"import", bytearray(b"ab"), {"a": 1}, {"a"}, 1.5])
def test_one_text_is_no_list_of_texts(texts: Any):
    lm = charwise.load()
    with pytest.raises(SettingError, match="prompts are a list of texts"):
        lm.scores(texts)
    with pytest.raises(SettingError, match="contexts are a list of texts"):
        lm.scores(["a"], contexts=texts)


@pytest.mark.parametrize("texts", [("a", "b"), iter(["a", "b"])])
def test_what_gives_texts_is_a_list_of_texts(texts: Any):
    assert [score.text for score in charwise.load().scores(texts)] == ["a", "b"]


@pytest.mark.parametrize(
    "ask",
    [
        lambda lm: lm.stream("a", stop=5),
        lambda lm: lm.stream("a", max_new_bytes="5"),
        lambda lm: lm.state("a").stream(stop=[""]),
        lambda lm: lm.characters("a", max_new_bytes=-1),
        lambda lm: lm.score("a").words([]),
        lambda lm: lm.score("a").spans(0.5),
        lambda lm: lm.infill("a", "b", template=1.5),
    ],
)
def test_arguments_are_looked_at_when_the_call_is_made(ask: Callable[[CharLM], object]):
    with pytest.raises(SettingError):
        ask(charwise.load())


def test_what_is_no_engine_and_no_name():
    with pytest.raises(EngineError, match=r"int is no engine.*from_transformers"):
        CharLM(5)  # type: ignore[arg-type]
    with pytest.raises(ModelNotFoundError, match="xxx"):
        charwise.load("x" * 300)
    with pytest.raises(SettingError, match="unknown engine"):
        charwise.load(engine=[None])  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers():
    lm = charwise.load()
    same = [
        lm.complete("a", n=kind(2), max_new_bytes=kind(4), temperature=1.0, seed=kind(3))
        for kind in (int, np.int64, np.uint8)
    ]
    assert same[0] == same[1] == same[2]


@pytest.mark.parametrize("byte", [b"y", bytearray(b"y"), memoryview(b"y"), "y", ord("y")])
def test_every_way_to_name_a_byte(byte: Any):
    nxt = charwise.load().next("import nump")
    assert nxt[byte] == nxt.probs[ord("y")]
