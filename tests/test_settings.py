"""What users type in Python, and the error that they get for it."""

import math
from collections.abc import Callable
from typing import Any

import pytest

import charwise
from charwise import (
    CharLM,
    Effort,
    SortedVocabulary,
    Vocabulary,
    combine,
    compare,
    constraints,
    heal_generate,
    heal_infill,
    healing,
)
from charwise.errors import (
    ConstraintError,
    ModelError,
    SettingError,
    VocabularyError,
    ZeroProbabilityError,
)
from charwise.healing.fim import Template
from charwise.models import EMBEDDED
from models import table

few = Vocabulary.from_bytes([b"a", b"ab", b"b", None], end_ids=[3])
ab = CharLM(table([b"a", b"b"], {(): [0.5, 0.0, 0.5]}).lm)

TABLE: list[tuple[Callable[[Any], object], type[Exception]]] = [
    # Models
    (lambda lm: charwise.load("./nowhere"), ModelError),
    (lambda lm: charwise.load(engine="x"), SettingError),
    (lambda lm: charwise.load(device="x"), SettingError),
    (lambda lm: charwise.load(preset="slow"), SettingError),
    (lambda lm: CharLM.from_transformers(3, None), ModelError),
    (lambda lm: Vocabulary.from_bytes([b"a", b""]), VocabularyError),
    (lambda lm: Vocabulary.from_transformers("gpt2"), VocabularyError),
    (lambda lm: charwise.load(EMBEDDED, revision="v2"), SettingError),
    (lambda lm: charwise.load(dtype="int8"), SettingError),
    (lambda lm: charwise.load(engine="llama.cpp", dtype="float32"), SettingError),
    (lambda lm: charwise.load(engine="vllm", device_map="auto"), SettingError),
    (lambda lm: charwise.load(device="cpu", device_map="auto"), SettingError),
    # Prompts
    (lambda lm: lm.next(None), VocabularyError),
    (lambda lm: lm.next({"a"}), VocabularyError),
    (lambda lm: lm.next([1.5]), VocabularyError),
    (lambda lm: Vocabulary.from_bytes([b"a"]).split_prompt("a"), SettingError),
    (lambda lm: lm.next(["a", "b"]), VocabularyError),
    (lambda lm: lm.next([10**6]), VocabularyError),
    (lambda lm: lm.score("\ud800"), VocabularyError),
    (lambda lm: few.encode("z"), VocabularyError),
    (lambda lm: ab.next("ab"), ZeroProbabilityError),
    # Effort
    (lambda lm: lm.next("a", tolerance=0), SettingError),
    (lambda lm: Effort(0), SettingError),
    # Distributions and scores
    (lambda lm: lm.next_chars("a", coverage=2), SettingError),
    (lambda lm: lm.score("a", entropy="line"), SettingError),
    (lambda lm: lm.scores("import"), SettingError),
    (lambda lm: lm.scores(["a"], contexts=[]), SettingError),
    *(
        (lambda lm, pair=pair: lm.score("ab").spans([(0, 1), pair]), SettingError)
        for pair in [(0, 9), (1, 1), (0, 1.5), 1]
    ),
    (lambda lm: lm.score("ab").spans([(0, 1)], unit="word"), SettingError),
    (lambda lm: lm.score("ab").regex("("), SettingError),
    (lambda lm: lm.score("ab").words("x"), SettingError),
    (lambda lm: lm.score("ab").words("none", boundaries="unicodes"), SettingError),
    (lambda lm: lm.score("ab").words("none", boundaries=[9]), SettingError),
    (lambda lm: lm.score("ab", entropy="byte").words("ending"), SettingError),
    (
        lambda lm: lm.score("ab", entropy="byte", end=True).words("ending", boundaries=[1]),
        SettingError,
    ),
    (lambda lm: lm.next("a")["é"], SettingError),
    *((lambda lm, byte=byte: lm.next("a")[byte], IndexError) for byte in (-1, 257)),
    (lambda lm: lm.next("a").top(-1), SettingError),
    (lambda lm: lm.next_chars("a").top(-1), SettingError),
    (lambda lm: lm.choose("a", ["b"]).top(-1), SettingError),
    (lambda lm: lm.state("a") - 2, SettingError),
    (lambda lm: lm.state("a").without_bytes(2), SettingError),
    (lambda lm: lm.covering("a", tolerance=2), SettingError),
    (lambda lm: compare([], "a"), SettingError),
    (lambda lm: compare([lm, lm], []), SettingError),
    # Generation
    *(
        (lambda lm, option=option: lm.complete("a", **option), SettingError)
        for option in [
            *({"max_new_bytes": -1}, {"n": 0}, {"top_p": 1.5}, {"temperature": math.inf}),
            *({"stop": stop} for stop in ("", {"a": 1})),
            {"conditioning": "global"},
        ]
    ),
    (lambda lm: lm.complete("a", choices="a", conditioning="global"), ConstraintError),
    (lambda lm: lm.complete("a", choices=["a"], conditioning="global", top_k=2), SettingError),
    (lambda lm: lm.complete("a", regex=".*", conditioning="global", particles=0), SettingError),
    (lambda lm: lm.stream("a", n=2), SettingError),
    (lambda lm: lm.infill("a", stop="a"), SettingError),
    (lambda lm: lm.choose("a", ["b", "b"]), SettingError),
    (lambda lm: lm.choose("a", ["b", "bc"]), SettingError),
    (lambda lm: lm.choose("a", ["b"], stop="c", ended=True), SettingError),
    # Constraints
    (lambda lm: lm.complete("a", regex="a", choices=["a"]), ConstraintError),
    (lambda lm: lm.complete("a", regex="["), ConstraintError),
    (lambda lm: constraints.regex("(?=a)"), ConstraintError),
    (lambda lm: constraints.grammar("a: b"), ConstraintError),
    (lambda lm: constraints.json_schema("x.json"), ConstraintError),
    (lambda lm: constraints.choices([]), ConstraintError),
    # Infilling and healing
    (lambda lm: ab.infill("a", "b"), SettingError),
    (lambda lm: Template.named(few, "a", "b"), SettingError),
    (lambda lm: Template(0, 1, None).order("psm"), SettingError),
    (lambda lm: healing.cut("a", lm.index, rule="x"), SettingError),
    *(
        (
            lambda lm, wrong=wrong: heal_generate(lm.engine.model, lm.index, "a", **wrong),
            SettingError,
        )
        for wrong in [
            *({name: None} for name in ("input_ids", "attention_mask")),
            *({"max_new_tokens": "5"}, {"max_new_tokens": True}, {"max_new_bytes": 0}),
            *({"max_length": "20"}, {"stop_strings": [""]}, {"token_healing": True}, {"rule": -1}),
        ]
    ),
    (lambda lm: heal_generate("llama", lm.index, "a"), SettingError),
    (lambda lm: heal_generate(lm.engine.model, lm.vocabulary, "a"), VocabularyError),
    (lambda lm: heal_infill(lm.engine.model, SortedVocabulary(few), "a", "b"), SettingError),
    (lambda lm: heal_infill(lm.engine.model, lm.index, ["a"], ["b", "c"]), SettingError),
    (lambda lm: heal_infill(lm.engine.model, lm.index, "a", "b", right="word"), SettingError),
    # Combinations
    (lambda lm: combine.mixture([]), SettingError),
    (lambda lm: combine.mixture([lm, lm], [1]), SettingError),
    (lambda lm: combine.contrast(lm, lm, plausibility=2), SettingError),
    (lambda lm: combine.shares(lm), SettingError),
    (lambda lm: combine.Member(lm, before=[10**6]), VocabularyError),
]


@pytest.mark.parametrize(("call", "error"), TABLE)
def test_errors(call: Callable[[CharLM], object], error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        call(charwise.load())
    assert len(str(caught.value)) < 500


def test_the_name_of_an_option_is_suggested() -> None:
    lm: Any = charwise.load()
    with pytest.raises(TypeError, match="is it 'regex'"):
        lm.complete("x", regx="a")
    with pytest.raises(TypeError, match="is it 'tolerance'"):
        lm.score("a", tolerence=0.1)
