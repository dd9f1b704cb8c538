"""Bad input: every refusal is a typed error that says what to type, whoever is asked.

And input that looks odd, and is fine: numbers and lists of other libraries, every way to name a
byte.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import charwise
from charwise import (
    CharLM,
    SortedVocabulary,
    Vocabulary,
    constraints,
    healing,
)
from charwise.engines.ngram import NgramLM
from charwise.engines.transformers import TransformersLM
from charwise.errors import CharwiseError, TokenizationError
from charwise.fim import Template, cut_suffix
from charwise.tokens.words import words

#: What the calls use.
USED = (np, SortedVocabulary, TransformersLM, cut_suffix, Template, words)
few = Vocabulary.from_bytes([b"a", b"ab", b"b", None], end_ids=[3])
index = SortedVocabulary(few)
few_lm = NgramLM(few, 1, {(): [1, 0, 0, 0]})
nan = math.nan

#: A call that makes no sense, on what stands in this module, and the way out that its error names.
REFUSED = {
    'load("")': "Give a folder with a config.json",
    "load(3)": "CharLM.from_transformers(model, tokenizer)",
    'load("http://127.0.0.1/v1")': "give the name of its model",
    'load("./nowhere")': "Give a folder with a config.json",
    "load(device=[3])": "give its name",
    'load(engine="x")': "use 'transformers' or 'llama.cpp' or 'vllm'",
    'load(preset="slow")': "default, accurate, exact, or pass an Effort",
    "CharLM(5)": "takes a model that one has already",
    "CharLM.from_transformers(3, None)": "with AutoModelForCausalLM.from_pretrained",
    "lm.next(None)": "or a list of texts and token ids",
    'lm.next(["a", "b"])': "join them, or give them one by one",
    "lm.next([-1])": "the width is 8195",
    "lm.next([True])": "is text, bytes or a token id, not True",
    'lm.next("a", tolerance=nan)': "For an error of 0 choose the preset 'exact'",
    'lm.next_chars("a", coverage=2)': "it must lie in (0, 1]",
    'lm.next_chars("a", coverage=0)': "it must lie in (0, 1]",
    "lm.state(np.zeros(2))": "bytes or a token id, not np.float64(0.0)",
    'lm.score("a", end=2)': "it must be True or False",
    'lm.score("a", entropy="line")': "choose 'byte', 'char', 'word' or None",
    'lm.score("a", entropy="word", coverage=0)': "coverage is 0",
    'lm.next_words("a", coverage=2)': "coverage is 2",
    'lm.score("\\ud800")': "or decode the source with errors='replace'",
    'lm.scores("import")': "put one text into a list",
    'lm.scores(["a"], contexts=[])': "give one for each",
    "lm.logprob(object())": "a list of texts and token ids",
    'lm.complete("a", n=0)': "it must be 1 or more",
    'lm.complete("a", max_new_bytes="5")': "it must be a whole number",
    'lm.complete("a", temperature=-1)': "it must be 0 or more",
    'lm.complete("a", stop=5)': "give a string, or a list of strings",
    'lm.complete("a", regex="a", choices=["a"])': "give one, or constraint=both(…, …)",
    'lm.complete("a", constraint=3)': "regex('…') makes one",
    'lm.complete("a", choices=["a"], conditioning="x")': "choose 'local' or 'global'",
    'lm.complete("a", {"n": 3})': "or keywords such as n=3",
    'lm.characters("a", max_new_bytes=-1)': "it must be 0 or more",
    'lm.choose("a", "yes")': "give a list of strings",
    'lm.choose("a", ["b", "b"])': "give each once",
    'lm.infill(3, "b")': "a text must be str or bytes, not int",
    'lm.infill("a", "b", template=1.5)': "make one with Template.named",
    'lm.score_infill("a", None, "b")': "a text must be str or bytes",
    'lm.covering("a", tolerance=2)': "it must lie in [0, 1]",
    'lm.covering("a").top(-1)': "it must be 0 or more",
    'lm.encodings("a").top(1.5)': "it must be a whole number",
    'lm.state("a").next(3)': "regex('…') makes one",
    'lm.state("a").next_chars(-1)': "it must lie in (0, 1]",
    'lm.state("a") + 3': "a text must be str or bytes, not int",
    'lm.state("a").without_bytes(-1)': "give a whole number, 0 or more",
    'lm.next("a")["ab"]': "or extend the state byte by byte",
    'lm.next("a").top(-1)': "it must be 0 or more",
    'lm.next_chars("a").top(0.5)': "it must be a whole number",
    'lm.choose("a", ["b", "c"]).top(-1)': "it must be 0 or more",
    'lm.score("a").words([])': "the whitespace between two words",
    'lm.score("a").spans(0.5)': "are pairs of integers (start, end), not 0.5",
    'lm.score("a").spans([(0, 9)])': "the text ends at character 1",
    'lm.score("a").spans([(0, 1)], unit="page")': "offsets count 'character' or 'byte'",
    'lm.score("a").words("both")': "or to neither ('none', 'ending')",
    "Score(b'a', *np.zeros((2, 1))).tokens()": "Pass token_ends to Score",
    'lm.score("a").regex("(")': "), unterminated subpattern at position 0",
    "Effort(1.5)": "give a whole number, 1 or more",
    'lm.next("a", preset="fast", tolerance=0.1)': "give one of them",
    "Effort(0)": "give a whole number, 1 or more",
    "Effort(8, tolerance=-1)": "For an error of 0 choose the preset 'exact'",
    "GenerationOptions(n=None)": "it must be a whole number",
    "Vocabulary.from_bytes([])": "give the bytes of one or more",
    'Vocabulary.from_bytes([b"a", b""])': "pass None for ids that spell nothing",
    'Vocabulary.from_bytes([b"a", b"b"], width=1)': "Load the tokenizer that was saved with",
    'Vocabulary.from_transformers("gpt2")': "use_fast=True",
    "few.encode(5)": "a text must be str or bytes, not int",
    'few.encode("z")': "or use a model",
    'few.encode_beginning("za")': "or use a model",
    "few.encode_prompt([9])": "the width is 4",
    "few.decode([4])": "the width is 4",
    "Vocabulary([b'a'], end_ids=[5])": "Pass width=model.config.vocab_size",
    "index.length(9)": "the width is 4",
    'healing.cut("", index)': "Give it at least one token",
    'healing.cut("a", lm.index, rule=-1)': "or a number of tokens",
    'healing.allowed_next(b"z", index)': "Shorten the prompt, or check that the",
    'heal_generate(3, lm.index, "a")': "give a causal language model",
    'heal_generate(model, lm.index, "a", rule="x")': "use 'auto', 'word', 'off' or a number",
    'heal_generate(model, lm.index, "a", method="x")': "use 'mask' or 'exact'",
    'heal_infill(model, lm.index, None, "b")': "or two lists of texts, as prefix and suffix",
    'cut_suffix([1, 2], lm.index, "x")': "use 'auto', 'word', 'off' or a number",
    "Template.of(few)": "name its sentinels",
    'Template.named(few, "a", "b")': "those of this model are none",
    "Template(0, 1, 2).order([])": "choose 'psm' or 'spm'",
    'Template(0, 1, None).order("psm")': "Leave the order out, or ask for order='spm'",
    "constraints.regex(5)": "a regular expression is a str, not 5",
    'constraints.regex("[")': "unclosed character class",
    'constraints.regex("\\ud800")': "is no text",
    'constraints.regex("(?=a)")': "look-around",
    "constraints.lark(None)": "a grammar is a str",
    'constraints.lark("a: b")': "no start rule found",
    'constraints.json_schema("x.json")': "Give what is in the file, not its name",
    'constraints.json_schema({"minLenght": 3})': "An annotation may be called 'x-minLenght'",
    'constraints.choices("ab")': "give a list of strings",
    "constraints.choices([])": "give at least one string",
    'constraints.both(constraints.choices(["a"]), 3)': "regex('…') makes one",
    'constraints.both(constraints.regex("a"), constraints.regex("b"))': "no text is in it",
    'constraints.constraint_of({"regex": 3})': "a regular expression is a str",
    "constraints.constraint_of([])": "give a dict of keywords",
    'constraints.choices(["a"]).after(b"b")': "b'a'",
    'constraints.regex("a").after(None)': "a text must be str or bytes",
    'compare([], "a")': "give two or more",
    "compare([lm, lm], [])": "there is no text to compare the models on",
    'compare([lm, lm], "a", over="x")': "choose 'auto', 'texts' or 'blocks'",
    "NgramLM(few, 0, {})": "an n-gram model needs n ≥ 1",
    "few_lm.tree([])": "Start it with the vocabulary's bos_ids,",
    "TransformersLM(3, few)": "AutoModelForCausalLM",
    "lm.engine.tree([])": "Start it with the vocabulary's bos_ids,",
    'words("ab", boundaries=3)': "offsets in characters, or a function, not 3",
}


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What the calls are made on."""
    lm = charwise.load()
    engine: Any = lm.engine
    public = {name: getattr(charwise, name) for name in charwise.__all__}
    return {**globals(), **public, "lm": lm, "model": engine.model}


@pytest.mark.parametrize(("call", "way_out"), REFUSED.items(), ids=list(REFUSED))
def test_a_refusal_says_what_to_type(call: str, way_out: str, names: dict[str, Any]) -> None:
    with pytest.raises(CharwiseError) as refused:
        eval(call, names)
    assert way_out in str(refused.value)
    assert len(str(refused.value)) < 500


def test_a_missing_or_unknown_argument_is_a_type_error() -> None:
    wrong: Any = charwise.load()
    for keyword, says in (
        ("max_new_tokens", "'max_new_tokens': lengths are in bytes, max_new_bytes=…"),
        ("regx", "'regx': is it 'regex'?"),
        ("zzz", "'zzz'."),
    ):
        with pytest.raises(TypeError) as raised:
            wrong.complete("x", **{keyword: 3})
        assert str(raised.value) == f"unexpected keyword {says}"
    for call in (wrong.choose, healing.cut, charwise.compare):
        with pytest.raises(TypeError, match="missing"):
            call()


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
        lambda lm, it: lm.next("a")[it],
        lambda lm, it: lm.scores(LONG, contexts=it),
        lambda lm, it: lm.score("a").regex([it]),
        lambda lm, it: lm.score("a").spans([it]),
        lambda lm, it: lm.complete("a", temperature=it),
        lambda lm, it: lm.complete("a", stop=[[it]]),
        lambda lm, it: lm.complete("a", regex="(" + LONG),
        lambda lm, it: lm.complete("a", choices=[[it]]),
        lambda lm, it: lm.complete("a", json_schema={"type": it}),
        lambda lm, it: lm.choose("a", {LONG: it}),
        lambda lm, it: lm.next({"a": it}),
        lambda lm, it: lm.next([it, 3.5]),
        lambda lm, it: charwise.load([it]),
    ],
)
def test_an_error_is_short_whatever_was_given(ask: Callable[[CharLM, Any], object], given: Any):
    with pytest.raises(CharwiseError) as caught:
        ask(charwise.load(), given)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("given", [None, 3, object(), np.array(2), torch.tensor(2)])
@pytest.mark.parametrize(
    "ask",
    [
        lambda lm, it: lm.choose("a", it),
        lambda lm, it: lm.complete("a", stop=it or 5),
        lambda lm, it: lm.scores(it),
        lambda lm, it: lm.score("a").spans(it),
        lambda lm, it: constraints.constraint_of(it),
        lambda lm, it: lm.vocabulary.encode_prompt(it),
    ],
)
def test_what_is_no_list(ask: Callable[[CharLM, Any], object], given: Any):
    with pytest.raises(CharwiseError):
        ask(charwise.load(), given)


def test_no_error_is_longer_than_one_reads():
    error = TokenizationError("a" * 5000 + " Do this.", position=7)
    assert len(str(error)) < 1010
    assert str(error).endswith(" Do this.")
    again = copy.copy(error)
    assert (str(again), again.position, type(again)) == (str(error), 7, TokenizationError)


@pytest.mark.parametrize("kind", [Fraction, np.float32, np.float64, float])
def test_every_kind_of_number_is_a_temperature_and_a_share(kind: Callable[[float], Any]):
    lm = charwise.load()
    drawn = [
        lm.complete("a", max_new_bytes=4, temperature=of(0.5), top_p=of(0.75), seed=1)
        for of in (float, kind)
    ]
    assert drawn[0] == drawn[1]
    assert lm.complete("a", max_new_bytes=4, temperature=10**30, seed=1)


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


@pytest.mark.parametrize("texts", [("a", "b"), iter(["a", "b"])])
def test_what_gives_texts_is_a_list_of_texts(texts: Any):
    assert [score.text for score in charwise.load().scores(texts)] == ["a", "b"]


def test_numbers_of_any_library_are_numbers() -> None:
    vocabulary = Vocabulary.from_bytes(
        [b"a", b"ab", b"b", None], end_ids=np.array([3]), width=np.int64(5)
    )
    assert (vocabulary.end_ids, vocabulary.width) == ((3,), 5)
    assert vocabulary.decode(np.array([0, 2])) == vocabulary.decode(torch.tensor([0, 2])) == b"ab"
    assert vocabulary.encode_prompt(np.array([0, 2])) == [0, 2]
    assert vocabulary.encode_prompt(torch.tensor([0, 2])) == [0, 2]
    assert vocabulary.encode(bytearray(b"ab")) == vocabulary.encode(memoryview(b"ab")) == [1]
