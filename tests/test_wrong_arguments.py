"""Arguments that make no sense: a typed error that says so, when the call is made."""

from __future__ import annotations

import copy
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import charwise
from charwise import CharLM, Vocabulary, constraints, healing
from charwise.constraints import Constraint
from charwise.errors import (
    CharwiseError,
    ConstraintError,
    EngineError,
    ModelNotFoundError,
    SettingError,
    TokenizationError,
)
from charwise.infill import cut_start
from charwise.processors.transformers.arguments import check_arguments
from charwise.template import Template


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
        lambda lm: lm.score("a", end=2),
        lambda lm: lm.score("a", end=np.zeros(2)),
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


@pytest.mark.parametrize("given", [None, 3, object(), np.array(2), torch.tensor(2)])
@pytest.mark.parametrize(
    "ask",
    [
        lambda lm, it: lm.choose("a", it),
        lambda lm, it: lm.complete("a", choices=it or 5),
        lambda lm, it: lm.complete("a", stop=it or 5),
        lambda lm, it: lm.scores(it),
        lambda lm, it: lm.score("a").spans(it),
        lambda lm, it: Vocabulary.from_bytes(it),
        lambda lm, it: constraints.constraint_of(it),
        lambda lm, it: lm.vocabulary.decode(it),
        lambda lm, it: healing.remaining(b"a", it, lm.vocabulary),
    ],
)
def test_what_is_no_list(ask: Callable[[CharLM, Any], object], given: Any):
    with pytest.raises(CharwiseError):
        ask(charwise.load(), given)


@pytest.mark.parametrize("prompts", [np.array(2), torch.tensor(2), {"a": 1}, {"a"}, 3, None])
def test_what_are_no_prompts(prompts: Any):
    lm = charwise.load()
    with pytest.raises(CharwiseError, match="a prompt is"):
        lm.next(prompts)
    with pytest.raises(CharwiseError, match="a prompt is"):
        charwise.heal_generate(lm.engine.model, lm.index, prompts, max_new_tokens=1)  # type: ignore


@pytest.mark.parametrize("text", ["a", b"a", bytearray(b"a"), memoryview(b"a")])
def test_text_is_no_list_of_token_ids(text: Any):
    vocabulary = charwise.load().vocabulary
    with pytest.raises(CharwiseError, match="list of integers"):
        vocabulary.decode(text)
    with pytest.raises(SettingError, match="list of ids"):
        healing.remaining(b"a", text, vocabulary)


@pytest.mark.parametrize("make", [constraints.regex, lambda text: constraints.choices([text])])
def test_a_constraint_goes_on_with_text_or_bytes(make: Callable[[str], Constraint]):
    begun = make("ab")
    assert (begun.after("a").allowed() == begun.after(b"a").allowed()).all()  # type: ignore[arg-type]
    for wrong in (None, 3, [], object(), torch.tensor(2)):
        with pytest.raises(CharwiseError):
            begun.after(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make", [constraints.regex, lambda one: constraints.lark(f'start: "{one}"')]
)
def test_a_lone_surrogate_is_in_no_expression(make: Callable[[str], object]):
    with pytest.raises(ConstraintError, match="is no text"):
        make("\ud800")


@pytest.mark.parametrize("name", ["n", "particles"])
@pytest.mark.parametrize("many", [10**6 + 1, 2**63, 10**30])
def test_more_than_can_be_drawn(name: str, many: int):
    lm = charwise.load()
    with pytest.raises(SettingError, match=f"{name} is {many}: it must be 1,000,000 or less"):
        lm.complete("a", regex="[ab]+", conditioning="global", **{name: many})
    if name == "n":
        with pytest.raises(SettingError, match=f"n is {many}"):
            lm.complete("a", n=many)


@pytest.mark.parametrize("kind", [Fraction, np.float32, np.float64, float])
def test_every_kind_of_number_is_a_temperature_and_a_share(kind: Callable[[float], Any]):
    lm = charwise.load()
    drawn = [
        lm.complete("a", max_new_bytes=4, temperature=of(0.5), top_p=of(0.75), seed=1)
        for of in (float, kind)
    ]
    assert drawn[0] == drawn[1]
    assert lm.complete("a", max_new_bytes=4, temperature=10**30, seed=1)


@pytest.mark.parametrize("word", [np.zeros(2), torch.zeros(2), ["a"], 3, b"x"])
def test_what_is_none_of_the_words_asked_for(word: Any):
    lm = charwise.load()
    for ask in (
        lambda: lm.complete("a", choices=["a"], conditioning=word),
        lambda: lm.score("a", entropy=word),
        lambda: lm.score("a").spans([(0, 1)], unit=word),
        lambda: lm.score("a").words(word),
        lambda: Template(0, 0, 0).order(word),
        lambda: check_arguments(None, {}, None, word),
        lambda: charwise.load(engine=word),
    ):
        with pytest.raises(SettingError):
            ask()
    if not isinstance(word, int):
        for cut in (healing.cut, cut_start):
            with pytest.raises(SettingError, match="unknown healing rule"):
                cut([1, 2], lm.index, rule=word)


def test_no_error_is_longer_than_one_reads():
    error = TokenizationError("a" * 5000 + " Do this.", position=7)
    assert len(str(error)) < 1010
    assert str(error).endswith(" Do this.")
    again = copy.copy(error)
    assert (str(again), again.position, type(again)) == (str(error), 7, TokenizationError)


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
        lambda lm, it: lm.complete("a", choices=["a"], conditioning=it),
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


@pytest.mark.parametrize(
    "byte", [b"y", bytearray(b"y"), memoryview(b"y"), "y", ord("y"), np.int64(121)]
)
def test_every_way_to_name_a_byte(byte: Any):
    nxt = charwise.load().next("import nump")
    assert nxt[byte] == nxt.probs[ord("y")]
