"""Arguments that make no sense: a typed error that says so, when the call is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import charwise
from charwise import CharLM, constraints, healing
from charwise.errors import (
    CharwiseError,
    ConstraintError,
    EngineError,
    ModelNotFoundError,
    SettingError,
)


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


@pytest.mark.parametrize("constraint", [3, "a", b"a", object(), constraints.choices])
def test_what_is_no_constraint(constraint: Any):
    lm = charwise.load()
    for ask in (
        lambda: lm.state("a").next(constraint),
        lambda: lm.next("a").under(constraint),
        lambda: lm.complete("a", constraint=constraint),
        lambda: lm.state("a").complete(constraint=constraint),
        lambda: constraints.both(constraints.choices(["a"]), constraint),
    ):
        with pytest.raises(ConstraintError, match="is no constraint"):
            ask()


LONG = "long " * 10_000


@pytest.mark.parametrize(
    "given",
    [LONG, LONG.encode(), [LONG] * 3, -(10**5000), 10**5000],
    ids=["str", "bytes", "list", "small", "large"],
)
@pytest.mark.parametrize(
    "ask",
    [
        lambda lm, it: lm.state("a") - it,
        lambda lm, it: lm.state("a").without_bytes(it),
        lambda lm, it: lm.state("a").next(it),
        lambda lm, it: lm.next("a")[it],
        lambda lm, it: lm.next("a").top([it]),
        lambda lm, it: lm.scores(LONG, contexts=it),
        lambda lm, it: lm.score("a", entropy=it),
        lambda lm, it: lm.score("a").words(it),
        lambda lm, it: lm.score("a").regex([it]),
        lambda lm, it: lm.score("a").spans([it]),
        lambda lm, it: lm.score("a").spans([(0, 1)], unit=it),
        lambda lm, it: lm.complete("a", n=[it]),
        lambda lm, it: lm.complete("a", temperature=it),
        lambda lm, it: lm.complete("a", seconds=[it]),
        lambda lm, it: lm.complete("a", cancel=it),
        lambda lm, it: lm.complete("a", progress=it),
        lambda lm, it: lm.complete("a", stop=[[it]]),
        lambda lm, it: lm.complete("a", regex=[it]),
        lambda lm, it: lm.complete("a", regex="(" + LONG),
        lambda lm, it: lm.complete("a", choices=[[it]]),
        lambda lm, it: lm.complete("a", json_schema=[it]),
        lambda lm, it: lm.complete("a", json_schema={"type": it}),
        lambda lm, it: lm.complete("a", grammar=[it]),
        lambda lm, it: lm.complete("a", choices=["a"], how=it),
        lambda lm, it: lm.choose("a", {LONG: it}),
        lambda lm, it: lm.choose("a", [LONG, LONG]),
        lambda lm, it: lm.infill("a", "b", template=it),
        lambda lm, it: lm.covering("a", tolerance=it),
        lambda lm, it: lm.covering("a").top([it]),
        lambda lm, it: lm.next({"a": it}),
        lambda lm, it: lm.next([[it]]),
        lambda lm, it: lm.next([it, 3.5]),
        lambda lm, it: lm.vocabulary.decode([it]),
        lambda lm, it: lm.index.range([it]),
        lambda lm, it: lm.index.narrow(0, 1, 0, it),
        lambda lm, it: healing.cut("a", lm.index, rule=[it]),
        lambda lm, it: healing.remaining([it], [], lm.vocabulary),
        lambda lm, it: healing.remaining(b"a", it, lm.vocabulary),
        lambda lm, it: healing.allowed_next([it], lm.index),
        lambda lm, it: charwise.load(engine=it),
        lambda lm, it: charwise.load(device=[it]),
        lambda lm, it: charwise.load(dtype=[it]),
        lambda lm, it: charwise.load([it]),
    ],
)
def test_an_error_is_short_whatever_was_given(ask: Callable[[CharLM, Any], object], given: Any):
    with pytest.raises(CharwiseError) as caught:
        ask(charwise.load(), given)
    assert len(str(caught.value)) < 500


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
